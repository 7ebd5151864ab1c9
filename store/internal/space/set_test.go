package space

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep/tools/drawn"
)

type group struct {
	num    uint32
	opened uint64
}

func (g *group) Number() uint32    { return g.num }
func (g *group) OpenedSeq() uint64 { return g.opened }

// The set of groups against a walk over all, in whatever order groups come and go.
func TestSet(t *testing.T) {
	t.Parallel()
	seed := drawn.Seed(t)
	rng := rand.New(rand.NewPCG(seed, 1))
	set, all := NewSet[*group](), []*group{}
	opened := func(skip *group) uint64 {
		least := uint64(math.MaxUint64)
		for _, g := range all {
			if g != skip {
				least = min(least, g.opened)
			}
		}
		return least
	}
	for i := range 5000 {
		if len(all) == 0 || rng.IntN(100) < 52 {
			g := &group{num: uint32(i + 1), opened: uint64(i + 10 - rng.IntN(10))} // a spare is older than its place
			set.Add(g)
			all = append(all, g)
		} else {
			at := rng.IntN(min(len(all), 1+rng.IntN(len(all))))
			set.Remove(all[at])
			set.Remove(all[at]) // it is gone
			all = slices.Delete(all, at, at+1)
		}
		require.Equal(t, len(all), set.Len())
		require.LessOrEqual(t, len(set.age), 2*len(all)+17)
		if len(all) == 0 {
			require.Nil(t, set.Oldest())
			continue
		}
		g := all[rng.IntN(len(all))]
		require.True(t, set.Has(g))
		require.Same(t, g, set.Get(g.num))
		require.Equal(t, opened(nil), set.Oldest().opened)
		require.Equal(t, opened(set.Oldest()), set.OpenedBeside(set.Oldest()))
		var above []uint32
		for _, o := range all {
			if o.num > g.num {
				above = append(above, o.num)
			}
		}
		slices.Sort(above)
		require.Equal(t, len(above), len(set.Above(g.num)))
		require.True(t, slices.Equal(above, set.Above(g.num)))
	}
	require.Empty(t, set.Above(math.MaxUint32))
}
