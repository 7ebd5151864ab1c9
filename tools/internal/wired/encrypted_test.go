package wired

import (
	"bytes"
	"context"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep/store"
	"github.com/skepkv/skep/tools/internal/redistest"
	"github.com/skepkv/skep/wire/auth"
	"github.com/skepkv/skep/wire/resp"
)

// The Redis keys of a tenant whose payload is encrypted are nowhere in the clear: not in the catalog, not on the devices,
// not after they were moved, expired or deleted. Those of a tenant without a key of its own are found, so that the
// test would notice.
func TestKeysOfAnEncryptedTenantAreNowhereInTheClear(t *testing.T) {
	t.Parallel()
	key, err := store.NewEncryptionKey(bytes.Repeat([]byte{1, 0x5a}, 16))
	require.NoError(t, err)
	const text = "customer-4711"
	for tenant, inTheClear := range map[string]bool{"default": false, "another": true} {
		dir := t.TempDir()
		for range 2 { // the second time from what a checkpoint has
			st, err := store.Open(t.Context(), store.Options{Dir: dir, DeviceCount: 1, CapacityBytes: 48 << 20, SegmentBytes: 2 << 20, BlockBytes: 1 << 20, CacheBytes: -1,
				EncryptionKeys: map[string][]store.EncryptionKey{tenant: {key}}})
			require.NoError(t, err)
			useRedisKeys(t, st, text)
			require.NoError(t, st.Close())
		}
		var found []string
		require.NoError(t, filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
			if err != nil || e.IsDir() {
				return err
			}
			b, err := os.ReadFile(path)
			if bytes.Contains(b, []byte(text)) {
				found = append(found, filepath.Base(path))
			}
			return err
		}))
		if inTheClear {
			assert.NotEmpty(t, found)
		} else {
			assert.Empty(t, found)
		}
	}
}

// serveRedis serves a store over RESP, and gives a client and what ends both.
func serveRedis(t *testing.T, st *store.Store) (c *redistest.Client, end func()) {
	d, err := auth.New(nil, nil, nil)
	require.NoError(t, err)
	srv, err := resp.New(st, resp.Options{Auth: d})
	require.NoError(t, err)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	served := make(chan error, 1)
	go func() { served <- srv.Serve(l) }()
	c = redistest.New(redistest.Options{Addr: l.Addr().String(), Retries: 3})
	return c, func() {
		require.NoError(t, c.Close())
		require.NoError(t, srv.Shutdown(context.Background()))
		require.NoError(t, <-served)
	}
}

// useRedisKeys has a RESP server do with keys that contain text what commands do with keys.
func useRedisKeys(t *testing.T, st *store.Store, text string) {
	c, end := serveRedis(t, st)
	defer end()
	ctx := t.Context()
	name := func(s string) string { return text + "/" + s }
	for kind, size := range map[string]int{"tiny": 3, "small": 16 << 10, "large": 2<<20 + 1} {
		for _, again := range []string{"", "/again"} {
			require.NoError(t, c.Set(ctx, name(kind+again), bytes.Repeat([]byte("v"), size), 0))
		}
	}
	require.NoError(t, c.Set(ctx, name("long/"+string(bytes.Repeat([]byte("k"), 4000))), "v", 0))
	number := func(want int64, args ...any) {
		t.Helper()
		n, err := c.Int(ctx, args...)
		require.NoError(t, err)
		require.Equal(t, want, n)
	}
	number(1, "EXPIRE", name("tiny"), 3600)
	ttl, err := c.Int(ctx, "TTL", name("tiny"))
	require.NoError(t, err)
	require.Greater(t, ttl, int64(3000))
	number(1, "DEL", name("small"))
	number(3, "EXISTS", name("tiny"), name("large"), name("large/again"))
	b, err := c.Get(ctx, name("tiny"))
	require.NoError(t, err)
	require.Equal(t, "vvv", string(b))
	found, err := c.Do(ctx, "SCAN", 0, "MATCH", "*", "COUNT", 100)
	require.NoError(t, err)
	require.Contains(t, found.([]any)[1], []byte(name("tiny")), "who may read them is told them")
}
