package store

import (
	"context"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/segment"
)

// Blocks that are never deleted lie in the oldest groups, and for their sake every deletion
// since would be carried on from group to group for ever. They are written again before that
// takes more than a part of the space. What the devices still say of deletions is enough: a
// store made anew from them has what was kept and nothing else.
func TestTombstonesAreBounded(t *testing.T) {
	if testing.Short() {
		t.Skip("thousands of deletions")
	}
	ctx := context.Background()
	s, _, o := openRig(t, func(o *Options) {
		o.CapacityBytes, o.SpaceTimeout, o.rules = 3<<20, hangs, defaultRules
		o.rules.taskEvery = hangs
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
	for _, g := range s.groupList() {
		require.NoError(t, s.scanGroupLogs(ctx, g, func(_ *segment.Append, e segment.Entry) error {
			if e.Kind == segment.KindTombstone {
				stones++
			}
			return nil
		}))
	}
	t.Logf("%d deleted, %d tombstones on both devices, %d groups written again for that", rounds*each, stones, s.cleaner.tidied.Load())
	require.Positive(t, s.cleaner.tidied.Load())
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
