package index

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep/tools/drawn"
)

// exactStack is the distances of reuses, by the stack itself: distances[d] counts reuses
// with d other keys in between, cold counts first uses.
type exactStack struct {
	stack     []uint64
	distances map[int]int
	cold, n   int
}

func (e *exactStack) use(key uint64) {
	e.n++
	for i, k := range e.stack {
		if k == key {
			e.distances[i]++
			copy(e.stack[1:i+1], e.stack[:i])
			e.stack[0] = key
			return
		}
	}
	e.cold++
	e.stack = append([]uint64{key}, e.stack...)
}

func (e *exactStack) hitRatio(blocks int) float64 {
	hits := 0
	for d, n := range e.distances {
		if d < blocks {
			hits += n
		}
	}
	return float64(hits) / float64(e.n)
}

// With every key sampled the curve is the stack's, but for the width of a bucket.
func TestReuseIsExactWithoutSampling(t *testing.T) {
	t.Parallel()
	seed := drawn.Seed(t)
	rng := rand.New(rand.NewPCG(seed, 1))
	r, err := NewReuse(4096)
	require.NoError(t, err)
	r.threshold.Store(^uint64(0))
	e := exactStack{distances: map[int]int{}}
	zipf := rand.NewZipf(rng, 1.1, 4, 3000)
	for range 40_000 { // several renumberings
		k := zipf.Uint64()
		e.use(k)
		r.Note(ReuseHash(k, 7))
		r.Add(1)
	}
	require.EqualValues(t, e.cold, r.cold)
	for blocks := 1; blocks < 4000; blocks += 1 + blocks/7 {
		low, high := e.hitRatio(int(float64(blocks)*.9)), e.hitRatio(int(float64(blocks)*1.1)+1)
		got := r.HitRatio(float64(blocks))
		require.GreaterOrEqual(t, got, low-.001, "%d blocks", blocks)
		require.LessOrEqual(t, got, high+.001, "%d blocks", blocks)
	}
}

// Each sampled key stands once in the tree, right after its places were renumbered too.
func TestReuseCountsAKeyOnce(t *testing.T) {
	t.Parallel()
	r := NewMust(t)
	r.threshold.Store(^uint64(0))
	for i := range uint64(4 * len(r.at)) {
		r.Note(i % 50)
		require.EqualValues(t, len(r.keys), r.count(r.clock), "after %d references", i+1)
	}
}

// Sampling keeps to its memory and near the truth, whatever the number of keys. Whether a key that is used very often is
// among the sampled is chance: one draw in some hundreds is far off for it, so several are made.
func TestReuseSampled(t *testing.T) {
	t.Parallel()
	seed := drawn.Seed(t)
	var worst []float64
	for i := range uint64(5) {
		worst = append(worst, sampledError(t, seed+i))
	}
	slices.Sort(worst)
	t.Logf("worst errors %.4f", worst)
	require.Less(t, worst[2], .06)
}

// sampledError is the most by which the curve of sampled keys is off.
func sampledError(t *testing.T, seed uint64) (worst float64) {
	rng := rand.New(rand.NewPCG(seed, 1))
	r, err := NewReuse(2048)
	require.NoError(t, err)
	all, err := NewReuse(1 << 19)
	require.NoError(t, err)
	all.threshold.Store(^uint64(0))
	zipf := rand.NewZipf(rng, 1.05, 1000, 300_000)
	for range 600_000 {
		h := ReuseHash(zipf.Uint64(), seed)
		r.Add(1)
		all.Add(1)
		if h < r.Threshold() {
			r.Note(h)
		}
		all.Note(h)
	}
	require.LessOrEqual(t, len(r.keys), 2048)
	require.Less(t, r.Rate(), 1.0/firstRate, "the rate came down")
	for blocks := 500.0; blocks < 300_000; blocks *= 1.5 {
		worst = max(worst, abs(all.HitRatio(blocks)-r.HitRatio(blocks)))
	}
	return worst
}

func abs(x float64) float64 { return max(x, -x) }

// What was referenced long ago counts less and less.
func TestReuseForgets(t *testing.T) {
	t.Parallel()
	r, err := NewReuse(64)
	require.NoError(t, err)
	r.threshold.Store(^uint64(0))
	for range 1000 {
		r.Note(1)
	}
	r.Add(1000)
	require.InDelta(t, .999, r.HitRatio(10), 1e-6)
	for i := range 20 {
		r.Add(ReuseWindow)
		r.Note(uint64(i) + 2) // cold
	}
	require.Less(t, r.sampled, 10.0)
	require.Zero(t, NewMust(t).HitRatio(100), "nothing is known at first")
	_, err = NewReuse(1)
	require.Error(t, err)
}

func NewMust(t *testing.T) *Reuse {
	r, err := NewReuse(64)
	require.NoError(t, err)
	return r
}

// A load says which of its blocks were there already, earlier ones of its own included.
func TestBulkLoadAgain(t *testing.T) {
	t.Parallel()
	x, err := New(Config{})
	require.NoError(t, err)
	defer x.Close()
	e := func(n uint64, loc uint64) Entry { return Entry{FP: ghostly(n), Location: loc << 32, Pages: 1} }
	again, err := x.BulkLoadAgain([]Entry{e(1, 1), e(2, 1), e(1, 2)}, nil)
	require.NoError(t, err)
	require.Equal(t, []int{2}, again)
	again, err = x.BulkLoadAgain([]Entry{e(3, 1), e(2, 5)}, nil)
	require.NoError(t, err)
	require.Equal(t, []int{1}, again)
	require.NoError(t, x.Check())
}
