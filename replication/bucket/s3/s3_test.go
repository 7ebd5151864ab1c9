package s3

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"testing"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/replication/bucket"
	"github.com/skepkv/skep/replication/bucket/s3/s3test"
	"github.com/skepkv/skep/store/memstore"
	"github.com/skepkv/skep/store/storetest"
)

func newFake(t *testing.T) (*s3test.Server, Options) {
	f := s3test.New()
	srv := httptest.NewServer(f)
	t.Cleanup(srv.Close)
	return f, Options{Endpoint: srv.URL, Bucket: s3test.Bucket, Prefix: "fleet/a", Region: "us-east-1",
		AccessKey: "key", SecretKey: "secret"}
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
	cmd := exec.CommandContext(t.Context(), program, "--access", "key", "--secret", "secretsecret", "--port", addr,
		"posix", t.TempDir())
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
	t.Parallel()
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
	t.Parallel()
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

// A server need not say how long an object is. One that is larger than any may be is not read.
func TestAnObjectOfUnknownLength(t *testing.T) {
	t.Parallel()
	for _, says := range []func(*s3test.Server){func(*s3test.Server) {}, (*s3test.Server).Chunked, (*s3test.Server).Bare} {
		f, o := newFake(t)
		says(f)
		b, err := Open(o)
		require.NoError(t, err)
		b.(*store).most = 100
		body := bytes.Repeat([]byte("0123456789"), 10)
		require.NoError(t, b.Put(t.Context(), "x", body))
		require.NoError(t, b.Put(t.Context(), "y", append(body, '0')))
		got, err := b.Get(t.Context(), "x", 0, -1)
		require.NoError(t, err)
		require.Equal(t, body, got)
		got, err = b.Get(t.Context(), "y", 98, 3)
		require.NoError(t, err)
		require.Equal(t, "890", string(got))
		_, err = b.Get(t.Context(), "y", 0, -1)
		require.ErrorIs(t, err, skep.Damaged)
		require.ErrorContains(t, err, "bytes of object y")
		f.Cut(4)
		_, err = b.Get(t.Context(), "x", 0, -1)
		require.ErrorIs(t, err, skep.Unavailable, "the answer was cut off")
	}
}

// Bytes other than those that were asked for are not taken for them, and none of an answer that does not say which it
// has and may have been cut off. All of an object may come without being asked for by a range, and be nothing.
func TestAServerWithoutRanges(t *testing.T) {
	t.Parallel()
	f, o := newFake(t)
	b, err := Open(o)
	require.NoError(t, err)
	body := []byte("0123456789")
	require.NoError(t, b.Put(t.Context(), "x", body))
	require.NoError(t, b.Put(t.Context(), "empty", nil))
	got, err := b.Get(t.Context(), "empty", 0, -1)
	require.NoError(t, err)
	require.Empty(t, got)
	f.Whole()
	for _, n := range []int64{-1, 10} {
		got, err = b.Get(t.Context(), "x", 0, n)
		require.NoError(t, err)
		require.Equal(t, body, got)
	}
	for _, r := range [][2]int64{{0, 5}, {5, 5}, {0, 11}} {
		_, err = b.Get(t.Context(), "x", r[0], r[1])
		require.ErrorIs(t, err, skep.Unavailable, "%v", r)
		require.ErrorContains(t, err, "range of object x")
	}
	f.Bare()
	for range 2 {
		_, err = b.Get(t.Context(), "x", 0, -1)
		require.ErrorIs(t, err, skep.Unavailable)
		f.Cut(4)
	}
}

// Servers answer that an empty object has no such range. One that says so of another object is not believed.
func TestWhatAnAnswerHas(t *testing.T) {
	t.Parallel()
	f, o := newFake(t)
	b, err := Open(o)
	require.NoError(t, err)
	require.NoError(t, b.Put(t.Context(), "x", nil))
	require.NoError(t, b.Put(t.Context(), "xy", []byte("0")))
	f.Ranges()
	got, err := b.Get(t.Context(), "x", 0, -1)
	require.NoError(t, err)
	require.Empty(t, got)
	_, err = b.Get(t.Context(), "x", 5, 5)
	require.ErrorIs(t, err, skep.Unavailable)
	_, err = b.Get(t.Context(), "xy", 0, -1)
	require.ErrorIs(t, err, skep.Unavailable)

	for _, c := range []struct {
		by           string
		size, off, n int64
		ok           bool
	}{
		{by: "bytes 5-9/20", off: 5, n: 5, ok: true}, {by: "bytes 5-9/*", off: 5, n: 5, ok: true},
		{by: "bytes 0-19/20", n: -1, ok: true}, {by: "bytes 0-19/*", n: -1}, {by: "bytes 0-9/20", n: -1},
		{by: "bytes 0-19/*", size: 20, n: -1}, {by: "bytes 0-19/*", size: 30, n: -1},
		{by: "bytes 1-20/*", size: 20, n: -1}, {by: "bytes 0-19/*", size: -1, n: -1},
		{by: "bytes 4-8/20", off: 5, n: 5}, {by: "bytes 5-8/20", off: 5, n: 5}, {by: "bytes */20", off: 5, n: 5},
		{by: "bytes 0--1/*", n: -1}, {by: "lines 5-9/20", off: 5, n: 5}, {by: "bytes 0-99999999999999999999/20", n: -1},
		{size: -1, n: -1}, {size: -1, n: 5}, {size: 0, n: -1, ok: true}, {size: 20, n: 5},
	} {
		_, ok := length(c.by, c.size, c.off, c.n)
		require.Equal(t, c.ok, ok, "%+v", c)
	}
}

// A server may refuse to remove one object of many, and answer the call.
func TestARemovalThatIsRefused(t *testing.T) {
	t.Parallel()
	f, o := newFake(t)
	b, err := Open(o)
	require.NoError(t, err)
	require.NoError(t, b.Put(t.Context(), "x", nil))
	f.Deny()
	require.ErrorIs(t, b.Delete(t.Context(), []string{"x"}), skep.Denied)
	require.Len(t, f.Names(), 1)
}

// What stays is not removed, whatever the answer says of it or does not say. What is gone is.
func TestARemovalThatIsNone(t *testing.T) {
	t.Parallel()
	f, o := newFake(t)
	b, err := Open(o)
	require.NoError(t, err)
	require.NoError(t, b.Put(t.Context(), "x", nil))
	require.NoError(t, b.Put(t.Context(), "xy", nil))
	remove := func(name string, removes bool, answer string) error {
		f.Removes(func(key string) (bool, string) { return removes, fmt.Sprintf(answer, key) })
		return b.Delete(t.Context(), []string{name})
	}
	for _, answer := range []string{"<!--%s-->", "<Error><Key>%s</Key><Code>InvalidArgument</Code></Error>",
		"<Deleted><Key>%sy</Key></Deleted>"} {
		require.ErrorIs(t, remove("x", false, answer), skep.Unavailable)
		require.NoError(t, remove("none", false, answer))
	}
	require.ErrorIs(t, remove("x", false, "<Error><Key>%s</Key><Code>NoSuchBucket</Code></Error>"), skep.Unavailable)
	require.NoError(t, remove("none", false, "<Error><Key>%s</Key><Code>NoSuchKey</Code></Error>"))
	require.Len(t, f.Names(), 2)
	require.NoError(t, remove("x", true, "<!--%s-->"))
	require.Len(t, f.Names(), 1)

	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusNotFound)
		fmt.Fprint(w, "<Error><Code>NoSuchKey</Code></Error>")
	}))
	t.Cleanup(srv.Close)
	o.Endpoint = srv.URL
	b, err = Open(o)
	require.NoError(t, err)
	require.ErrorIs(t, b.Delete(t.Context(), []string{"xy"}), skep.Unavailable, "no server of this bucket")
}

// What a server answers says whether to try again.
func TestErrors(t *testing.T) {
	t.Parallel()
	f, o := newFake(t)
	b, err := Open(o)
	require.NoError(t, err)
	require.NoError(t, b.Put(t.Context(), "x", []byte("0123456789")))
	f.Cut(4)
	_, err = b.Get(t.Context(), "x", 0, -1)
	require.ErrorIs(t, err, skep.Unavailable, "the answer was cut off")
	f.Refuse(http.StatusForbidden)
	_, err = b.Get(t.Context(), "x", 0, 1)
	require.ErrorIs(t, err, skep.Denied)
	f.Refuse(http.StatusServiceUnavailable)
	before := f.Calls()
	_, err = b.Get(t.Context(), "x", 0, 1)
	require.ErrorIs(t, err, skep.Unavailable)
	require.ErrorIs(t, b.Put(t.Context(), "y", []byte("0")), skep.Unavailable)
	require.Error(t, b.List(t.Context(), "", func(bucket.Object) error { return nil }))
	require.Error(t, b.Delete(t.Context(), []string{"x"}))
	require.Equal(t, 4, f.Calls()-before, "who calls makes a call again, and pays for it")
	for name, bad := range map[string]Options{
		"no host": {Bucket: "b", Endpoint: "http://"}, "no scheme": {Bucket: "b", Endpoint: "host:9000"},
		"no bucket": {Endpoint: "http://h"},
		"short":     {Endpoint: "http://h", Bucket: "b"}, "prefix": {Endpoint: "http://h", Bucket: "blocks", Prefix: "/x"},
		"one key": {Endpoint: "http://h", Bucket: "blocks", AccessKey: "x"},
	} {
		_, err := Open(bad)
		require.ErrorIs(t, err, skep.Invalid, name)
	}
}
