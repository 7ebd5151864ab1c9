package store

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
)

// A pinned block is deleted: its pin is over, the tenant has what it counted back, and when the block is put again it can
// be pinned again.
func TestPinsEndWithTheirBlocks(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	const blocks = 6
	s, _, _ := openRig(t, func(o *Options) { o.PinnedBytes = blocks * faultBlock })
	defer func() { require.NoError(t, s.Close()) }()
	sc := openSpace(t, s, "n", skep.Cache, 1, false)
	keys := chainKeys(1, blocks)
	put := func() { requireOutcome(t, skep.Committed, putRun(t, s, sc, keys, faultBlock)) }
	pinAll := func() {
		t.Helper()
		n, err := s.Hint(ctx, sc, keys, skep.Hint{Pin: skep.MaxPin})
		require.NoError(t, err)
		require.Equal(t, len(keys), n)
		ns, tg, err := s.names.Resolve("test", sc)
		require.NoError(t, err)
		for _, k := range keys {
			require.True(t, s.index.Protected(s.names.Fingerprint(ns.Instance, tg, k)), "it was said to be pinned")
		}
	}
	ends := map[string]func() error{
		"deleted": func() error { _, err := s.Delete(ctx, sc, keys); return err },
		"purged":  func() error { return s.Purge(ctx, skep.Purge{Namespace: sc.Namespace}) },
		"its namespace deleted": func() error {
			defer func() { sc = openSpace(t, s, "n", skep.Cache, 1, false) }()
			return s.DeleteNamespace(ctx, sc.Namespace)
		},
	}
	for name, end := range ends {
		put()
		pinAll()
		pinAll() // once more counts once
		require.NoError(t, end(), name)
		eventually(t, name+": the tenant has its pins back", func() bool {
			for tenant := range uint16(4) {
				if _, pinned := s.index.Held(tenant); pinned > 0 {
					return false
				}
			}
			return true
		})
		put()
		pinAll()
		_, err := s.Delete(ctx, sc, keys)
		require.NoError(t, err)
	}
}
