// Package s3 is object storage that speaks S3, for package bucket.
package s3

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
	"github.com/minio/minio-go/v7/pkg/s3utils"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/replication/bucket"
)

// Options of Open.
type Options struct {
	Endpoint string // URL of the server, https://s3.eu-central-1.amazonaws.com, say
	Bucket   string
	Prefix   string // of all names, without a '/' at its ends; may be empty
	Region   string // empty: the server is asked
	// AccessKey and SecretKey; where both are empty, those of the environment (AWS_ACCESS_KEY_ID and so on) or of the
	// machine's role.
	AccessKey, SecretKey string
	Transport            http.RoundTripper // nil: HTTP's
}

const op = "bucket"

// store is one bucket of a server.
type store struct {
	core   *minio.Core
	bucket string
	prefix string
	most   int64 // bytes of an object that is read whole
}

// Open gives the bucket. It asks nobody. What it is opened with may list the bucket (s3:ListBucket), get, put and
// delete its objects (s3:GetObject, s3:PutObject, s3:DeleteObject), and without a Region ask where it is
// (s3:GetBucketLocation). A bucket with versions keeps what is deleted as an older one.
//
// Errors: Invalid.
func Open(o Options) (bucket.Bucket, error) {
	u, err := url.Parse(o.Endpoint)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" || strings.Trim(u.Path, "/") != "" {
		return nil, &skep.Error{Op: op, Kind: skep.Invalid, Field: "endpoint", Value: o.Endpoint,
			Limit: "http:// or https:// and a host", Err: err}
	}
	if err := s3utils.CheckValidBucketNameStrict(o.Bucket); err != nil {
		return nil, &skep.Error{Op: op, Kind: skep.Invalid, Field: "bucket", Value: fmt.Sprintf("%q", o.Bucket), Err: err}
	}
	if strings.HasPrefix(o.Prefix, "/") || strings.HasSuffix(o.Prefix, "/") {
		return nil, skep.Invalidf(op, "prefix", o.Prefix, "without / at its ends")
	}
	if (o.AccessKey == "") != (o.SecretKey == "") {
		return nil, skep.Invalidf(op, "access key and secret key", "one of them", "both or none")
	}
	c := credentials.NewChainCredentials([]credentials.Provider{&credentials.EnvAWS{}, &credentials.IAM{}})
	if o.AccessKey != "" {
		c = credentials.NewStaticV4(o.AccessKey, o.SecretKey, "")
	}
	core, err := minio.NewCore(u.Host, &minio.Options{Creds: c, Secure: u.Scheme == "https", Region: o.Region,
		Transport: o.Transport, MaxRetries: 1}) // who calls pays for each call, and makes it again
	if err != nil {
		return nil, &skep.Error{Op: op, Kind: skep.Invalid, Field: "endpoint", Value: o.Endpoint, Err: err}
	}
	s := &store{core: core, bucket: o.Bucket, most: bucket.MaxObjectBytes}
	if o.Prefix != "" {
		s.prefix = o.Prefix + "/"
	}
	return s, nil
}

// kindOf says what kind of error an answer is.
func kindOf(err error) error {
	if err == nil {
		return nil
	}
	kind := skep.Unavailable
	switch r := minio.ToErrorResponse(err); {
	case r.Code == minio.NoSuchKey || r.StatusCode == http.StatusNotFound && r.Code != minio.NoSuchBucket:
		kind = skep.NotFound
	case r.StatusCode == http.StatusForbidden || r.Code == minio.AccessDenied: // of one of many, without a status
		kind = skep.Denied
	}
	return &skep.Error{Op: op, Kind: kind, Err: err}
}

// Put implements bucket.Bucket.
func (s *store) Put(ctx context.Context, name string, body []byte) error {
	_, err := s.core.Client.PutObject(ctx, s.bucket, s.prefix+name, bytes.NewReader(body), int64(len(body)),
		minio.PutObjectOptions{ContentType: "application/octet-stream", DisableMultipart: true})
	return kindOf(err)
}

// Get implements bucket.Bucket. It always asks for a range: the answer then says which bytes it has, and of how many,
// whatever else it says of its length.
func (s *store) Get(ctx context.Context, name string, off, n int64) ([]byte, error) {
	var o minio.GetObjectOptions
	asked := fmt.Sprintf("bytes=%d-", off)
	if n >= 0 {
		asked += strconv.FormatInt(off+n-1, 10)
	}
	o.Set("Range", asked)
	r, info, h, err := s.core.GetObject(ctx, s.bucket, s.prefix+name, o)
	if n < 0 && minio.ToErrorResponse(err).StatusCode == http.StatusRequestedRangeNotSatisfiable {
		return nil, s.isEmpty(ctx, name)
	}
	if err != nil {
		return nil, kindOf(err)
	}
	defer r.Close()
	by := h.Get("Content-Range")
	size, ok := length(by, info.Size, off, n)
	if !ok {
		return nil, &skep.Error{Op: op, Kind: skep.Unavailable, Field: "range of object " + name,
			Value: fmt.Sprintf("%q", by), Limit: asked}
	}
	if n < 0 && size > s.most {
		return nil, s.tooLarge(name, size)
	}
	b := make([]byte, size)
	got, err := io.ReadFull(r, b)
	if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) {
		return nil, &skep.Error{Op: op, Kind: skep.Unavailable, Field: "bytes of object " + name, Value: got, Limit: size}
	}
	return b, kindOf(err)
}

// sizeOf is an object's size as a list has it; below 0: there is none.
func (s *store) sizeOf(ctx context.Context, name string) (size int64, err error) {
	size = -1
	err = s.List(ctx, name, func(o bucket.Object) error {
		if o.Name == name {
			size = o.Size
		}
		return nil
	})
	return size, err
}

// isEmpty is why an object that has no first byte, as a server says, is not empty.
func (s *store) isEmpty(ctx context.Context, name string) error {
	size, err := s.sizeOf(ctx, name)
	if err == nil && size != 0 {
		err = &skep.Error{Op: op, Kind: skep.Unavailable, Field: "bytes of object " + name, Value: "none", Limit: size}
	}
	return err
}

// length is how many bytes an answer has, by its Content-Range; without one it is all of the object, and its
// Content-Length says how many. false: they are not those that were asked for, or nobody says which they are, or, where
// all is, of how many.
func length(by string, size, off, n int64) (int64, bool) {
	from, to, all := int64(0), size-1, size
	if by != "" {
		all = -1
		if k, _ := fmt.Sscanf(by, "bytes %d-%d/%d", &from, &to, &all); k < 2 || to < from {
			return 0, false
		}
	}
	end := off + n
	if n < 0 {
		end = all
	}
	return to + 1 - from, from == off && from <= end && to+1 == end
}

func (s *store) tooLarge(name string, n int64) error {
	return &skep.Error{Op: op, Kind: skep.Damaged, Field: "bytes of object " + name, Value: n, Limit: s.most}
}

// List implements bucket.Bucket.
func (s *store) List(ctx context.Context, prefix string, each func(bucket.Object) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	all := minio.ListObjectsOptions{Prefix: s.prefix + prefix, Recursive: true}
	for o := range s.core.Client.ListObjects(ctx, s.bucket, all) {
		if o.Err != nil {
			return kindOf(o.Err)
		}
		if err := each(bucket.Object{Name: strings.TrimPrefix(o.Key, s.prefix), Size: o.Size}); err != nil {
			return err
		}
	}
	if err := ctx.Err(); err != nil { // the list may have ended for it
		return kindOf(err)
	}
	return nil
}

// Delete implements bucket.Bucket. What an answer does not name is looked for: a server need not name what was not
// there.
func (s *store) Delete(ctx context.Context, names []string) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	unnamed := map[string]bool{}
	for _, n := range names {
		unnamed[s.prefix+n] = true
	}
	objects := make(chan minio.ObjectInfo)
	go func() {
		defer close(objects)
		for _, n := range names {
			select {
			case objects <- minio.ObjectInfo{Key: s.prefix + n}:
			case <-ctx.Done():
				return
			}
		}
	}()
	var first error
	for x := range s.core.Client.RemoveObjectsWithResult(ctx, s.bucket, objects, minio.RemoveObjectsOptions{}) {
		why := minio.ToErrorResponse(x.Err)
		gone := why.Code == minio.NoSuchKey && why.StatusCode == 0 // one of many, and not the call
		if delete(unnamed, x.ObjectName); first == nil && !gone {
			first = kindOf(x.Err)
		}
	}
	if first == nil {
		first = kindOf(ctx.Err())
	}
	for n := range unnamed {
		if first != nil {
			break
		}
		n = strings.TrimPrefix(n, s.prefix)
		size, err := s.sizeOf(ctx, n)
		if first = err; err == nil && size >= 0 {
			first = &skep.Error{Op: op, Kind: skep.Unavailable, Field: "removed object " + n, Value: "there"}
		}
	}
	if skep.KindOf(first) == skep.NotFound { // the call, not an object
		first = &skep.Error{Op: op, Kind: skep.Unavailable, Err: first}
	}
	return first
}
