package store

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/internal/space"
)

// A drain, or a compaction, asks for a group to be cleaned, and the catalog refuses it. Asked again the group is
// cleaned: it does not stay taken by the cleaning that failed.
func TestSecondTimeCleaning(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	s, r, again := refusingRig(t, nil)
	sc := openSpace(t, s, "n", skep.Durable, 1, true)
	keys := chainKeys(1, 6)
	requireOutcome(t, skep.Committed, putRun(t, s, sc, keys, faultBlock))
	s.space.SealOpen(space.User)
	g := s.space.Groups()[0]
	eventually(t, "nobody writes to it", func() bool { return s.space.IsIdle(g) })

	r.during(t, func() error { return s.cleaner.Clean(ctx, g, true) })
	requireChain(t, s, sc, keys, faultBlock)

	require.NoError(t, s.cleaner.Clean(ctx, g, true))
	require.Nil(t, s.space.Find(g.Num))
	requireChain(t, s, sc, keys, faultBlock)
	s = again()
	requireChain(t, s, sc, keys, faultBlock)
	require.NoError(t, s.Close())
}

// What a cleaning moves is written, and the catalog refuses the commit. The second time the cleaning drops all of it:
// the log of the group it was to go to still tells of it. Who deletes it has a tombstone written, and a rebuild does
// not find it.
func TestSecondTimeMovedDroppedAndDeleted(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	var g *space.Group
	r := &refuser{}
	s, _, o := openRig(t, func(o *Options) { o.refuseCommits = r.refuse })
	moved := func() bool { // the commit of it: the group that is cleaned is noted as such, and one is open for what is moved
		s.space.Inside().Lock()
		defer s.space.Inside().Unlock()
		return g.Noted.Load() && s.space.Inside().Open[space.Kept] != nil
	}
	sc := openSpace(t, s, "n", skep.Cache, 1, true)
	keys := chainKeys(1, 6)
	requireOutcome(t, skep.Committed, putRun(t, s, sc, keys, faultBlock))
	g = sealRecorded(t, s)
	r.only.Store(&moved)

	r.during(t, func() error { return s.cleaner.Clean(ctx, g, true) })
	requireChain(t, s, sc, keys, faultBlock)
	require.True(t, dropFrom(t, s, g.Num))
	require.NoError(t, s.cleaner.Clean(ctx, g, false))
	eventually(t, "its group is freed", func() bool { return isFreed(g) })
	n, err := s.Delete(ctx, sc, keys)
	require.NoError(t, err)
	require.Zero(t, n)
	require.NoError(t, s.Close())

	s = rebuilt(t, o)
	require.Empty(t, present(t, s, sc, keys[:1]), "deleted, and back")
	require.NoError(t, s.Close())
}
