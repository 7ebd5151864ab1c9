package store

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// The set of groups against a walk over all, in whatever order groups come and go.
func TestGroupSet(t *testing.T) {
	t.Parallel()
	seed := testSeed(t)
	rng := rand.New(rand.NewPCG(seed, 1))
	set, all := newGroupSet(), []*group{}
	opened := func(skip *group) uint64 {
		least := uint64(math.MaxUint64)
		for _, g := range all {
			if g != skip {
				least = min(least, g.state.OpenedSeq)
			}
		}
		return least
	}
	for i := range 5000 {
		if len(all) == 0 || rng.IntN(100) < 52 {
			g := &group{num: uint32(i + 1)}
			g.state.OpenedSeq = uint64(i + 10 - rng.IntN(10)) // a spare is older than its place
			set.add(g)
			all = append(all, g)
		} else {
			at := rng.IntN(min(len(all), 1+rng.IntN(len(all))))
			set.remove(all[at])
			set.remove(all[at]) // it is gone
			all = slices.Delete(all, at, at+1)
		}
		require.Equal(t, len(all), set.len())
		require.LessOrEqual(t, len(set.age), 2*len(all)+17)
		if len(all) == 0 {
			require.Nil(t, set.oldest())
			continue
		}
		g := all[rng.IntN(len(all))]
		require.True(t, set.has(g))
		require.Same(t, g, set.get(g.num))
		require.Equal(t, opened(nil), set.oldest().state.OpenedSeq)
		require.Equal(t, opened(set.oldest()), set.openedBeside(set.oldest()))
		var above []uint32
		for _, o := range all {
			if o.num > g.num {
				above = append(above, o.num)
			}
		}
		slices.Sort(above)
		require.Equal(t, len(above), len(set.above(g.num)))
		require.True(t, slices.Equal(above, set.above(g.num)))
	}
	require.Empty(t, set.above(math.MaxUint32))
}
