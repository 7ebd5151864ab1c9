package store

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/index"
)

// A pinned block is deleted: its pin is over, the tenant has what it counted back, and when the block is put again it
// can be pinned again.
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

// A hint that is refused for want of room for hints pins nothing either.
func TestAHintThatIsRefusedPinsNothing(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	s, _, _ := openRig(t, func(o *Options) { o.IndexBytes = 64 << 20 })
	defer func() { require.NoError(t, s.Close()) }()
	sc := openSpace(t, s, "n", skep.Durable, 1, false)
	keys := chainKeys(1, 9)
	requireOutcome(t, skep.Committed, putRun(t, s, sc, keys, 4<<10))
	ns := s.names.Get(sc.Namespace)
	for n := range 70000 { // the tenant has hints for as many blocks as it may
		var fp index.Fingerprint
		for i := range fp {
			fp[i] = byte(uint64(n+1) * 0x9e3779b97f4a7c15 >> (5 * i))
		}
		_, _, err := s.index.Insert(index.Entry{FP: fp, Pages: 1, Namespace: ns.Instance, Tenant: ns.Tenant,
			Opaque: true})
		require.NoError(t, err)
		if err := s.index.SetHint(s.options.Clock(), fp, index.Hint{Drop: true}); err != nil {
			requireKind(t, skep.Quota, err)
			break
		}
	}
	_, err := s.Hint(ctx, sc, keys, skep.Hint{Pin: time.Hour, TTL: time.Hour})
	requireKind(t, skep.Quota, err)
	_, pinned := s.index.Held(ns.Tenant)
	require.Zero(t, pinned)
}
