package s3

import (
	"bytes"
	"context"
	"encoding/xml"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/replication/bucket"
	"github.com/skepkv/skep/store/memstore"
	"github.com/skepkv/skep/store/storetest"
)

// fake answers the calls of S3 that are made, without a look at who asks.
type fake struct {
	mu      sync.Mutex
	objects map[string][]byte
	refuse  int // status of all answers; 0: none
	cut     int // bytes after which a body ends; 0: whole
}

func (f *fake) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.refuse != 0 {
		http.Error(w, "no", f.refuse)
		return
	}
	name := strings.TrimPrefix(strings.TrimPrefix(r.URL.Path, "/blocks"), "/")
	q := r.URL.Query()
	switch {
	case r.Method == http.MethodPut:
		b, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		f.objects[name] = plain(r, b)
		w.Header().Set("ETag", `"x"`)
	case r.Method == http.MethodPost && q.Has("delete"):
		var list struct{ Object []struct{ Key string } }
		if err := xml.NewDecoder(r.Body).Decode(&list); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		for _, o := range list.Object {
			delete(f.objects, o.Key)
		}
		fmt.Fprint(w, "<DeleteResult></DeleteResult>")
	case q.Get("list-type") == "2":
		f.list(w, q.Get("prefix"), q.Get("continuation-token"))
	case r.Method == http.MethodGet:
		f.get(w, r, name)
	default:
		http.Error(w, r.Method, http.StatusMethodNotAllowed)
	}
}

// plain takes a body out of the frames that signed bodies come in.
func plain(r *http.Request, b []byte) []byte {
	if !strings.HasPrefix(r.Header.Get("X-Amz-Content-Sha256"), "STREAMING") {
		return b
	}
	var out []byte
	for {
		head, rest, _ := bytes.Cut(b, []byte("\r\n"))
		size, _, _ := bytes.Cut(head, []byte(";"))
		n, err := strconv.ParseInt(string(size), 16, 64)
		if err != nil || n == 0 {
			return out
		}
		out = append(out, rest[:n]...)
		b = rest[n+2:]
	}
}

func (f *fake) list(w http.ResponseWriter, prefix, after string) {
	type entry struct {
		Key  string
		Size int
	}
	var out struct {
		XMLName               xml.Name `xml:"ListBucketResult"`
		IsTruncated           bool
		NextContinuationToken string
		Contents              []entry
	}
	for _, name := range slices.Sorted(maps.Keys(f.objects)) {
		if !strings.HasPrefix(name, prefix) || name <= after {
			continue
		}
		if len(out.Contents) == 1000 {
			out.IsTruncated, out.NextContinuationToken = true, out.Contents[999].Key
			break
		}
		out.Contents = append(out.Contents, entry{name, len(f.objects[name])})
	}
	_ = xml.NewEncoder(w).Encode(out)
}

func (f *fake) get(w http.ResponseWriter, r *http.Request, name string) {
	b, ok := f.objects[name]
	if !ok {
		w.WriteHeader(http.StatusNotFound)
		fmt.Fprint(w, "<Error><Code>NoSuchKey</Code></Error>")
		return
	}
	w.Header().Set("ETag", `"x"`)
	w.Header().Set("Last-Modified", time.Unix(0, 0).UTC().Format(http.TimeFormat))
	if f.cut == 0 {
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(b))
		return
	}
	w.Header().Set("Content-Length", strconv.Itoa(len(b)))
	_, _ = w.Write(b[:f.cut])
}

func newFake(t *testing.T) (*fake, Options) {
	f := &fake{objects: map[string][]byte{}}
	srv := httptest.NewServer(f)
	t.Cleanup(srv.Close)
	return f, Options{Endpoint: srv.URL, Bucket: "blocks", Prefix: "fleet/a", Region: "us-east-1", AccessKey: "key", SecretKey: "secret"}
}

// real starts a server of S3 that can be installed; the test is skipped where there is none.
func real(t *testing.T) Options {
	t.Helper()
	program, err := exec.LookPath("versitygw")
	if err != nil {
		t.Skip("versitygw is not installed: go install github.com/versity/versitygw/cmd/versitygw@latest")
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	addr := l.Addr().String()
	require.NoError(t, l.Close())
	cmd := exec.CommandContext(t.Context(), program, "--access", "key", "--secret", "secretsecret", "--port", addr, "posix", t.TempDir())
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	o := Options{Endpoint: "http://" + addr, Bucket: "blocks", Prefix: "fleet/a", Region: "us-east-1", AccessKey: "key",
		SecretKey: "secretsecret"}
	b, err := Open(o)
	require.NoError(t, err)
	storetest.Eventually(t, "the server answers", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		return b.(*store).core.MakeBucket(ctx, "blocks", minio.MakeBucketOptions{Region: "us-east-1"}) == nil
	})
	return o
}

// servers runs a test with a small server of its own, and with a real one where there is one.
func servers(t *testing.T, test func(t *testing.T, o Options)) {
	t.Parallel()
	t.Run("fake", func(t *testing.T) {
		t.Parallel()
		_, o := newFake(t)
		test(t, o)
	})
	t.Run("versitygw", func(t *testing.T) {
		t.Parallel()
		test(t, real(t))
	})
}

func TestABucket(t *testing.T) {
	servers(t, func(t *testing.T, o Options) {
		b, err := Open(o)
		require.NoError(t, err)
		ctx := t.Context()
		body := bytes.Repeat([]byte("0123456789"), 1<<19)
		require.NoError(t, b.Put(ctx, "s/b/1", body))
		require.NoError(t, b.Put(ctx, "s/b/2", nil))
		got, err := b.Get(ctx, "s/b/1", 0, -1)
		require.NoError(t, err)
		require.True(t, bytes.Equal(body, got))
		got, err = b.Get(ctx, "s/b/1", 13, 5)
		require.NoError(t, err)
		require.Equal(t, "34567", string(got))
		_, err = b.Get(ctx, "s/b/none", 0, 5)
		require.ErrorIs(t, err, skep.NotFound)
		_, err = b.Get(ctx, "s/b/1", int64(len(body))-2, 5)
		require.Error(t, err, "there are fewer bytes")

		names := []string{"s/b/1", "s/b/2"}
		for i := range 1005 {
			name := fmt.Sprintf("s/d/%04d", i)
			names = append(names, name)
			require.NoError(t, b.Put(ctx, name, []byte("x")))
		}
		require.NoError(t, b.Put(ctx, "t/spec", []byte("yz")))
		var list []string
		each := func(o bucket.Object) error { list = append(list, o.Name); return nil }
		require.NoError(t, b.List(ctx, "s/", each))
		require.Equal(t, names, list)
		require.NoError(t, b.Delete(ctx, append(names, "s/b/none")))
		list = nil
		require.NoError(t, b.List(ctx, "", each))
		require.Equal(t, []string{"t/spec"}, list)
		ended, cancel := context.WithCancel(ctx)
		cancel()
		require.Error(t, b.List(ended, "", each))
		require.Error(t, b.Delete(ended, []string{"t/spec"}))
	})
}

// Blocks go through a server and come back, at a node that never had them.
func TestBlocksGoThroughAServer(t *testing.T) {
	servers(t, func(t *testing.T, o Options) {
		shape := skep.Shape{Kind: skep.Opaque, BlockTokens: 16, Bytes: 64 << 10}
		node := func() (*bucket.Store, *skep.Namespace) {
			b, err := Open(o)
			require.NoError(t, err)
			s, err := bucket.New(memstore.New(memstore.Options{}), bucket.Options{Bucket: b, Key: make([]byte, bucket.KeySize),
				Unfound: true, BeginAt: 1e-9, Every: bucket.MinEvery, ObjectBytes: 1 << 20})
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, s.Close()) })
			ns, err := skep.OpenNamespace(t.Context(), s, skep.NamespaceSpec{Tenant: "t", Name: "n", Shape: shape, Chained: true})
			require.NoError(t, err)
			return s, ns
		}
		a, ns := node()
		keys := make([]skep.Key, 40)
		var blocks [][]byte
		for i := range keys {
			var parent *skep.Key
			if i > 0 {
				parent = &keys[i-1]
			}
			keys[i] = skep.ChainKey(parent, []uint32{uint32(i)})
			blocks = append(blocks, storetest.Payload(keys[i], skep.PartKV, 64<<10))
		}
		_, err := ns.Put(t.Context(), keys, 0, blocks...)
		require.NoError(t, err)
		storetest.Eventually(t, "all are sent", func() bool { return a.Usage().SentBlocks == 40 })
		b, there := node()
		storetest.Eventually(t, "all are found", func() bool {
			r, err := there.Lookup(t.Context(), keys)
			return err == nil && r.Blocks == 40
		})
		n, err := there.Load(t.Context(), skep.Chain{Keys: keys}, func(c *skep.Chunk) error {
			require.True(t, bytes.Equal(blocks[c.Block], c.AppendTo(nil)))
			return nil
		})
		require.NoError(t, err)
		require.Equal(t, 40, n)
		require.EqualValues(t, 40, b.Usage().LoadedBlocks)
		_, err = there.Delete(t.Context(), keys[0])
		require.NoError(t, err)
		_, last := node()
		r, err := last.Lookup(t.Context(), keys)
		require.NoError(t, err)
		require.Zero(t, r.Blocks)
	})
}

// What a server answers says whether to try again.
func TestErrors(t *testing.T) {
	t.Parallel()
	f, o := newFake(t)
	b, err := Open(o)
	require.NoError(t, err)
	require.NoError(t, b.Put(t.Context(), "x", []byte("0123456789")))
	set := func(refuse, cut int) {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.refuse, f.cut = refuse, cut
	}
	set(0, 4)
	_, err = b.Get(t.Context(), "x", 0, -1)
	require.ErrorIs(t, err, skep.Unavailable, "the answer was cut off")
	set(http.StatusForbidden, 0)
	_, err = b.Get(t.Context(), "x", 0, 1)
	require.ErrorIs(t, err, skep.Denied)
	for name, bad := range map[string]Options{
		"no host": {Bucket: "b", Endpoint: "http://"}, "no scheme": {Bucket: "b", Endpoint: "host:9000"},
		"no bucket": {Endpoint: "http://h"}, "short": {Endpoint: "http://h", Bucket: "b"}, "prefix": {Endpoint: "http://h", Bucket: "blocks", Prefix: "/x"},
		"one key": {Endpoint: "http://h", Bucket: "blocks", AccessKey: "x"},
	} {
		_, err := Open(bad)
		require.ErrorIs(t, err, skep.Invalid, name)
	}
}
