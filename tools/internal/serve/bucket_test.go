package serve

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/replication/bucket"
	"github.com/skepkv/skep/replication/bucket/s3/s3test"
	"github.com/skepkv/skep/store/storetest"
	"github.com/skepkv/skep/wire"
)

// A server's blocks outlive its drives: another one with an empty directory and the same bucket gives them back. What
// was deleted it does not.
func TestObjectStorageBehindTheDrives(t *testing.T) {
	t.Parallel()
	at := s3test.New()
	srv := httptest.NewServer(at)
	t.Cleanup(srv.Close)
	key := write(t, "key", strings.Repeat("5e", 32)+"\n")
	creds := write(t, "creds", "id\nsecret\n")
	shape := skep.Shape{Kind: skep.Opaque, BlockTokens: 16, Bytes: 64 << 10}
	keys := make([]skep.Key, 64)
	var blocks [][]byte
	for i := range keys {
		var parent *skep.Key
		if i > 0 {
			parent = &keys[i-1]
		}
		keys[i] = skep.ChainKey(parent, []uint32{uint32(i)})
		blocks = append(blocks, storetest.Payload(keys[i], skep.PartKV, 64<<10))
	}
	begin := func() (*running, skep.Store, *skep.Namespace) {
		c := local(t)
		c.Bucket.Endpoint, c.Bucket.Bucket, c.Bucket.Prefix, c.Bucket.Region = srv.URL, s3test.Bucket, "a", "us-east-1"
		c.Bucket.KeyFile, c.Bucket.CredentialsFile = key, creds
		c.Bucket.BeginAt, c.Bucket.Unfound, c.Bucket.Every = 1e-9, true, Duration(bucket.MinEvery)
		r := start(t, c, Options{})
		st, err := wire.Dial(t.Context(), wire.Options{Addr: r.at("wire")})
		require.NoError(t, err)
		spec := skep.NamespaceSpec{Tenant: "default", Name: "n", Shape: shape, Chained: true}
		ns, err := skep.OpenNamespace(t.Context(), st, spec)
		require.NoError(t, err)
		return r, st, ns
	}
	r, st, ns := begin()
	_, err := ns.Put(t.Context(), keys, 0, blocks...)
	require.NoError(t, err)
	storetest.Eventually(t, "blocks are sent", func() bool {
		_, text := get(t, http.DefaultClient, "http://"+r.at("http")+"/metrics", "")
		return strings.Contains(text, `skep_bucket_moved_blocks_total{direction="sent"} 64`)
	})
	require.NoError(t, st.Close())
	require.NoError(t, r.stop())

	r, st, ns = begin()
	storetest.Eventually(t, "blocks are found", func() bool {
		found, err := ns.Lookup(t.Context(), keys)
		return err == nil && found.Blocks == 64
	})
	n, err := ns.Load(t.Context(), skep.Chain{Keys: keys}, func(c *skep.Chunk) error {
		require.True(t, bytes.Equal(blocks[c.Block], c.AppendTo(nil)))
		return nil
	})
	require.NoError(t, err)
	require.Equal(t, 64, n)
	_, err = ns.Delete(t.Context(), keys[32])
	require.NoError(t, err)
	require.NoError(t, st.Close())
	require.NoError(t, r.stop())

	r, st, ns = begin()
	storetest.Eventually(t, "the rest is found", func() bool {
		found, err := ns.Lookup(t.Context(), keys)
		require.NoError(t, err)
		require.LessOrEqual(t, found.Blocks, 32)
		return found.Blocks == 32
	})
	require.NoError(t, st.Close())
	require.NoError(t, r.stop())
	for _, name := range at.Names() {
		require.True(t, strings.HasPrefix(name, "a/"), name)
	}
}

// Settings of object storage that cannot be are refused, by name.
func TestSettingsOfObjectStorage(t *testing.T) {
	t.Parallel()
	for text, field := range map[string]string{
		"endpoint: http://h\n  bucket: blocks":                                         "bucket.key_file",
		"endpoint: h:9000\n  bucket: blocks\n  key_file: k":                            "endpoint",
		"endpoint: http://h\n  bucket: b\n  key_file: k":                               "bucket",
		"endpoint: http://h\n  bucket: blocks\n  key_file: k\n  begin_at: 2":           "used share",
		"endpoint: http://h\n  bucket: blocks\n  key_file: k\n  namespaces: [x]":       "bucket.namespaces",
		"endpoint: http://h\n  bucket: blocks\n  key_file: k\n  money_a_day: 1":        "prices",
		"endpoint: http://h\n  bucket: blocks\n  key_file: k\n  tokens_per_second: -1": "bucket.tokens_per_second",
	} {
		_, err := Load(write(t, "skep.yaml", "bucket:\n  "+text+"\n"), nil, nil)
		require.ErrorIs(t, err, skep.Invalid, text)
		require.ErrorContains(t, err, field, text)
	}
}
