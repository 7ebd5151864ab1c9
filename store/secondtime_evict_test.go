package store

import (
	"context"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/catalog"
	"github.com/skepkv/skep/store/internal/space"
)

// sealRecorded ends the filling of the group that puts go to, and gives it once its row says so.
func sealRecorded(t *testing.T, s *Store) *space.Group {
	t.Helper()
	s.space.Inside().Lock()
	g := s.space.Inside().Open[space.User]
	s.space.Inside().SealFull(g)
	s.space.Inside().Unlock()
	eventually(t, "its row says that it is sealed", func() bool {
		rows, err := s.catalog.Groups(testContext(t))
		require.NoError(t, err)
		for _, r := range rows {
			if r.Group == g.Num {
				return r.State == catalog.GroupSealed && s.space.IsIdle(g)
			}
		}
		return false
	})
	return g
}

// rebuilt is the store that the devices alone make.
func rebuilt(t *testing.T, o Options) *Store {
	t.Helper()
	o.CatalogFS = vfs.NewMem()
	_, err := Rebuild(testContext(t), o, false, nil)
	require.NoError(t, err)
	s, err := Open(context.Background(), o)
	require.NoError(t, err)
	return s
}

// A key has two values, in two groups. The newer is evicted, and the catalog refuses to delete its row, which the next
// put's commit does. When its group is freed a tombstone takes its place: the older does not come back with a rebuild.
func TestSecondTimeTheNewerIsEvicted(t *testing.T) {
	t.Parallel()
	r := &refuser{}
	s, _, o := openRig(t, func(o *Options) { o.refuseCommits = r.refuse })
	dropped := func() bool { return s.count.Evicted.Load() > 0 }
	r.only.Store(&dropped)
	sc := openSpace(t, s, "n", skep.Cache, 1, false)
	others := chainKeys(1, 6)
	k := keyOf(7)
	requireOutcome(t, skep.Committed, putRun(t, s, sc, others[:3], faultBlock))
	putVersion(t, s, sc, k, 1)
	sealRecorded(t, s)
	putVersion(t, s, sc, k, 2)
	newer := sealRecorded(t, s)

	r.on.Store(true)
	require.True(t, dropFrom(t, s, newer.Num))
	require.Positive(t, s.rows.Owed())
	r.on.Store(false)
	requireOutcome(t, skep.Committed, putRun(t, s, sc, others[3:], faultBlock))
	require.Zero(t, s.rows.Owed())
	require.NoError(t, s.cleaner.Clean(testContext(t), newer, true))
	eventually(t, "its group is freed", func() bool { return isFreed(newer) })
	require.NoError(t, s.Close())

	s = rebuilt(t, o)
	require.Empty(t, present(t, s, sc, []skep.Key{k}), "the older value is back")
	requireChain(t, s, sc, others, faultBlock)
	require.NoError(t, s.Close())
}

// Blocks are to be evicted from a sealed group, and the catalog refuses. The second time they are, and the process is
// killed. The next one knows that the group's log still tells of them: who deletes them has a tombstone written, and a
// rebuild does not find them.
func TestSecondTimeEvictedKilledAndDeleted(t *testing.T) {
	t.Parallel()
	for _, policy := range []string{"cost", "lru"} {
		t.Run(policy, func(t *testing.T) {
			ctx := testContext(t)
			r := &refuser{}
			s, _, crash := crashRig(t, func(o *Options) { o.Policy, o.refuseCommits = policy, r.refuse })
			sc, durable := openSpace(t, s, "n", skep.Cache, 1, false), openSpace(t, s, "d", skep.Durable, 1, false)
			keys, kept := chainKeys(1, 8), chainKeys(2, 2)
			requireOutcome(t, skep.Committed, putRun(t, s, sc, keys, faultBlock))
			g := sealRecorded(t, s)
			evict := func() {
				if policy == "lru" {
					require.NoError(t, s.index.SetCapacity(1<<20, int64(s.index.Stats().Pages)/2))
					s.rows.Trim()
					return
				}
				dropFrom(t, s, g.Num)
			}

			r.on.Store(true)
			evict()
			r.on.Store(false)
			requireOutcome(t, skep.Committed, putRun(t, s, durable, kept, faultBlock)) // synced
			evict()
			requireOutcome(t, skep.Committed, putRun(t, s, durable, kept, faultBlock))
			var gone []skep.Key
			for _, k := range keys {
				if len(present(t, s, sc, []skep.Key{k})) == 0 {
					gone = append(gone, k)
				}
			}
			require.NotEmpty(t, gone)
			o := crash("evicted")
			require.NoError(t, s.Close())

			s, err := Open(ctx, o)
			require.NoError(t, err)
			eventually(t, "the devices say what the catalog says", func() bool {
				s.logs.ReconcileStale(ctx)
				return !s.space.AnyStale()
			})
			n, err := s.Delete(ctx, sc, gone)
			require.NoError(t, err)
			require.Zero(t, n)
			require.NoError(t, s.Close())

			s = rebuilt(t, o)
			require.Empty(t, present(t, s, sc, gone), "deleted, and back")
			requireChain(t, s, durable, kept, faultBlock)
			require.NoError(t, s.Close())
		})
	}
}

// A group has just been filled, and the row that says so is on its way to the catalog when a block of it is evicted.
// The row that is there in the end is the one that says that its log tells of blocks that are gone.
func TestAGroupIsFilledWhileABlockOfItIsEvicted(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	var s *Store
	var next atomic.Bool
	evicted := make(chan struct{})
	s, _, _ = openRig(t, func(o *Options) {
		o.refuseCommits = func() error {
			if next.CompareAndSwap(true, false) {
				if s.rows.Changes().TryLock() { // who evicts need not wait for this commit
					s.rows.Changes().Unlock()
					<-evicted
				}
			}
			return nil
		}
	})
	sc := openSpace(t, s, "n", skep.Cache, 1, false)
	requireOutcome(t, skep.Committed, putRun(t, s, sc, chainKeys(1, 6), faultBlock))
	require.NoError(t, s.Flush(ctx))
	s.space.Inside().Lock()
	g := s.space.Inside().Open[space.User]
	next.Store(true)
	s.space.Inside().SealFull(g)
	s.space.Inside().Unlock()
	eventually(t, "its row is being committed", func() bool { return !next.Load() })
	require.True(t, dropFrom(t, s, g.Num))
	close(evicted)
	eventually(t, "its row is committed", func() bool { return s.space.IsIdle(g) })

	rows, err := s.catalog.Groups(ctx)
	require.NoError(t, err)
	i := slices.IndexFunc(rows, func(r catalog.GroupState) bool { return r.Group == g.Num })
	require.GreaterOrEqual(t, i, 0)
	require.Equal(t, catalog.GroupCleaning, rows[i].State)
	require.NoError(t, s.Close())
}
