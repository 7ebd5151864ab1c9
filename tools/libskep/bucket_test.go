package main

import (
	"bytes"
	"encoding/json"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/replication/bucket"
	"github.com/skepkv/skep/replication/bucket/s3/s3test"
	"github.com/skepkv/skep/store/storetest"
)

// behind is a document that opens a store in dir with object storage behind its drives.
func behind(t *testing.T, dir, endpoint string, more map[string]any) string {
	files := t.TempDir()
	key, creds := filepath.Join(files, "key"), filepath.Join(files, "creds")
	require.NoError(t, os.WriteFile(key, []byte(strings.Repeat("5e", bucket.KeySize)), 0o600))
	require.NoError(t, os.WriteFile(creds, []byte("id\nsecret\n"), 0o600))
	b := map[string]any{"endpoint": endpoint, "bucket": s3test.Bucket, "prefix": "a", "region": "us-east-1",
		"key_file": key, "credentials_file": creds}
	for name, v := range more {
		b[name] = v
	}
	text, err := json.Marshal(map[string]any{"dir": dir, "devices": 1, "capacity_bytes": 64 << 20, "bucket": b})
	require.NoError(t, err)
	return string(text)
}

// An embedded store's blocks outlive its drives: one in an empty directory, with the same bucket, gives them back.
func TestObjectStorageBehindAnEmbeddedStore(t *testing.T) {
	t.Parallel()
	at := s3test.New()
	srv := httptest.NewServer(at)
	t.Cleanup(srv.Close)
	const n, size, layers = 16, 64 << 10, 4
	keys := make([]skep.Key, n)
	var blocks [][]byte
	for i := range keys {
		var parent *skep.Key
		if i > 0 {
			parent = &keys[i-1]
		}
		keys[i] = skep.ChainKey(parent, []uint32{uint32(i)})
		blocks = append(blocks, storetest.Payload(keys[i], skep.PartKV, size))
	}
	begin := func() (*opened, *skep.Namespace) {
		o, err := open(t.Context(), behind(t, t.TempDir(), srv.URL,
			map[string]any{"begin_at": 1e-9, "unfound": true, "every": bucket.MinEvery.String()}))
		require.NoError(t, err)
		ns, err := skep.OpenNamespace(t.Context(), o, skep.NamespaceSpec{Tenant: "default", Name: "n", Chained: true,
			Shape: skep.Shape{Kind: skep.Attention, Layers: layers, KVHeads: 4, HeadDim: 64, Element: skep.BF16,
				BlockTokens: 16}})
		require.NoError(t, err)
		return o, ns
	}

	o, ns := begin()
	_, err := ns.Put(t.Context(), keys, 0, blocks...)
	require.NoError(t, err)
	storage, ok := skep.As[*bucket.Store](o.Store)
	require.True(t, ok)
	storetest.Eventually(t, "blocks are sent", func() bool { return storage.Usage().SentBlocks == n })
	require.NoError(t, o.close())

	o, ns = begin()
	storetest.Eventually(t, "blocks are found", func() bool {
		found, err := ns.Lookup(t.Context(), keys)
		return err == nil && found.Blocks == n
	})
	// Places that do not touch, and the last ones first: what they continue comes along, and is not loaded. Of some
	// layers the others' places stay as they are.
	ask := func(from int, some skep.Subset) {
		into, said := make([][]byte, n), make([]skep.Kind, n)
		for i := from; i < n; i++ {
			into[i] = make([]byte, size+1)[:size]
		}
		chain := skep.Chain{Scope: ns.Scope(), Keys: keys, Layers: some}
		require.NoError(t, o.load(t.Context(), chain, inOne(into), said))
		l, _ := some.In(layers)
		for i := range keys {
			require.Equal(t, skep.Other, said[i], "block %d", i)
			want := make([]byte, size)
			copy(want[l.From*size/layers:], blocks[i][l.From*size/layers:l.To*size/layers])
			require.True(t, i < from || bytes.Equal(want, into[i]), "block %d", i)
		}
	}
	ask(n-2, skep.Only(1, 3))
	ask(n-3, skep.Only(3, 4))
	ask(0, skep.All)
	require.NoError(t, o.close())
	for _, name := range at.Names() {
		require.True(t, strings.HasPrefix(name, "a/"), name)
	}
}

// Settings of object storage that cannot be are refused by name, before a directory is made.
func TestSettingsOfObjectStorage(t *testing.T) {
	t.Parallel()
	for field, more := range map[string]map[string]any{
		"bucket.endpoint":          {"endpoint": ""},
		"endpoint":                 {"endpoint": "h:9000"},
		"bucket.key_file":          {"key_file": ""},
		"bucket.every":             {"every": "0s"},
		"used share":               {"begin_at": 2},
		"bucket.namespaces":        {"namespaces": []string{"x"}},
		"prices":                   {"money_a_day": 1},
		"bucket.tokens_per_second": {"tokens_per_second": -1},
		"json":                     {"nonesuch": 1},
		"not a size":               {"max_bytes": "much"},
		"not a duration":           {"every": 30},
	} {
		dir := filepath.Join(t.TempDir(), "kv")
		_, err := open(t.Context(), behind(t, dir, "http://h", more))
		require.ErrorIs(t, err, skep.Invalid, field)
		require.ErrorContains(t, err, field)
		require.NoDirExists(t, dir)
	}
	_, err := open(t.Context(), `{"connect": "unix:/nonesuch/s", "lazy": true, "bucket": {}}`)
	require.ErrorContains(t, err, "it is a setting of the server")

	// The files are read when the store is open; it is closed again.
	dir := filepath.Join(t.TempDir(), "kv")
	_, err = open(t.Context(), behind(t, dir, "http://h", map[string]any{"key_file": "/nonesuch"}))
	require.ErrorContains(t, err, "bucket.key_file")
	o, err := open(t.Context(), behind(t, dir, "http://h", nil))
	require.NoError(t, err)
	require.NoError(t, o.close())
}
