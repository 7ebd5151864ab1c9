package store

import (
	"context"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/index"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/catalog"
	"github.com/skepkv/skep/store/internal/appender"
	"github.com/skepkv/skep/store/internal/health"
	"github.com/skepkv/skep/store/internal/namespaces"
	"github.com/skepkv/skep/store/internal/space"
	"github.com/skepkv/skep/store/segment"
)

// Blocks that are never deleted lie in the oldest groups, and for their sake every deletion
// since would be carried on from group to group for ever. They are written again before that
// takes more than a part of the space. What the devices still say of deletions is enough: a
// store made anew from them has what was kept and nothing else.
func TestTombstonesAreBounded(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("thousands of deletions")
	}
	ctx := context.Background()
	s, _, o := openRig(t, func(o *Options) {
		o.CapacityBytes, o.SpaceTimeout, o.rules = 3<<20, hangs, health.DefaultRules
		o.taskEvery = hangs
	})
	sc := openSpace(t, s, "n", skep.Cache, 1, false)
	kept := chainKeys(1, 10)
	requireOutcome(t, skep.Committed, putRun(t, s, sc, kept, faultBlock))
	_, err := s.Hint(ctx, sc, kept, skep.Hint{Pin: hangs})
	require.NoError(t, err)
	const rounds, each = 200, 40
	var gone []skep.Key
	rng := newRand(testSeed(t))
	for i := range rounds {
		keys := chainKeys(100+i, each)
		requireOutcome(t, skep.Committed, putRun(t, s, sc, keys, 600+rng.IntN(8000)))
		n, err := s.Delete(testContext(t), sc, keys)
		require.NoError(t, err)
		require.Equal(t, each, n)
		gone = append(gone, keys[0])
	}
	stones := 0
	for _, g := range s.space.Groups() {
		require.NoError(t, s.space.ScanGroupLogs(ctx, g, func(_ *segment.Append, e segment.Entry) error {
			if e.Kind == segment.KindTombstone {
				stones++
			}
			return nil
		}))
	}
	t.Logf("%d deleted, %d tombstones on both devices, %d groups written again for that", rounds*each, stones, s.cleaner.Tidied.Load())
	require.Positive(t, s.cleaner.Tidied.Load())
	require.Less(t, stones, rounds*each, "half of them, as each is on two drives")
	requireChain(t, s, sc, kept, faultBlock)
	require.NoError(t, s.Close())

	o.CatalogFS = vfs.NewMem()
	_, err = Rebuild(ctx, o, false, nil)
	require.NoError(t, err)
	s, err = Open(ctx, o)
	require.NoError(t, err)
	requireChain(t, s, sc, kept, faultBlock)
	n, _ := requireRight(t, s, sc, gone, 600)
	require.Zero(t, n, "nothing deleted comes back")
	require.NoError(t, s.Close())
}

// A cleaning that stops half-way leaves records of blocks that it has moved. When such a
// block is dropped where it lies now, a tombstone must say so: else a version put and dropped
// after that would leave the old record as the newest there is.
func TestHalfACleaningIsRemembered(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	s, _, _ := openRig(t, quick)
	defer func() { require.NoError(t, s.Close()) }()
	sc := openSpace(t, s, "n", skep.Cache, 1, false)
	keys := chainKeys(1, 4)
	requireOutcome(t, skep.Committed, putRun(t, s, sc, keys, faultBlock))
	s.space.SealOpen(space.User)
	g := s.space.Groups()[0]
	eventually(t, "the group is at rest", func() bool { return s.space.Row(g).State == catalog.GroupSealed })

	rowsOf := func(g *space.Group) (recs []segment.Record, refs []index.Ref, list []*appender.Block) {
		require.NoError(t, s.catalog.ScanGroup(ctx, g.Num, func(loc layout.Location, row []byte) error {
			var rec segment.Record
			if err := segment.DecodeRecord(row, &rec); err != nil {
				return err
			}
			fp := s.names.Fingerprint(rec.Instance, namespaces.Tag(rec.SaltTag), rec.Key)
			recs, refs = append(recs, rec), append(refs, index.Ref{FP: fp, Location: loc.Pack()})
			list = append(list, appender.Again(fp, &rec, loc))
			return nil
		}))
		return recs, refs, list
	}
	recs, refs, list := rowsOf(g)
	require.Len(t, recs, len(keys))
	keepAll := make([]index.Verdict, len(recs))
	for i := range keepAll {
		keepAll[i] = index.Keep
	}
	require.NoError(t, s.rows.Evict(g, recs, refs, keepAll))
	require.NoError(t, s.cleaner.Rewrite(ctx, g, list[:2])) // and no further

	s.space.SealOpen(space.Kept)
	k := s.space.Find(list[0].At.Group)
	require.NotEqual(t, g.Num, k.Num)
	recs, refs, _ = rowsOf(k)
	require.Len(t, recs, 2)
	require.NoError(t, s.rows.Evict(k, recs, refs, []index.Verdict{index.Drop, index.Keep}))
	stones := s.rows.Heirless(k, recs, refs)
	require.Len(t, stones, 1, "the first group still has a record of it")
	require.Equal(t, recs[0].Key, stones[0].Key)
}

// A group whose log is being compared with the catalog is not cleaned meanwhile: Close does
// that beside the cleaner, and the row it writes would come after the one that says that the
// group is gone.
func TestAGroupBeingComparedIsNotCleaned(t *testing.T) {
	t.Parallel()
	s, _, _ := openRig(t, nil)
	sc := openSpace(t, s, "n", skep.Cache, 1, false)
	requireOutcome(t, skep.Committed, putRun(t, s, sc, chainKeys(1, 4), 8<<10))
	g := openedBy(s, space.User)
	s.space.Seal(g)
	eventually(t, "nobody writes to it", func() bool { s.space.Inside().Lock(); defer s.space.Inside().Unlock(); return g.Pending == 0 })
	eventually(t, "it is taken", func() bool { // and not by the cleaner
		s.space.Suspect(g)
		return s.space.NextSuspect() == g
	})
	require.Equal(t, space.ErrBusy, s.cleaner.Clean(testContext(t), g, false))
	s.space.Release(g)
	require.NoError(t, s.Close())
}
