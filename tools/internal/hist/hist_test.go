package hist

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep/tools/drawn"
)

// samples returns n durations of one kind of spread.
var samples = map[string]func(r *rand.Rand) time.Duration{
	"log-normal around 200 µs": func(r *rand.Rand) time.Duration { return time.Duration(2e5 * math.Exp(r.NormFloat64())) },
	"uniform to 40 ns":         func(r *rand.Rand) time.Duration { return time.Duration(r.IntN(40)) },
	"every magnitude":          func(r *rand.Rand) time.Duration { return time.Duration(r.Int64() >> r.IntN(63)) },
	"all the same":             func(*rand.Rand) time.Duration { return 1234567 },
	"two far apart":            func(r *rand.Rand) time.Duration { return time.Duration(1 + r.IntN(2)*int(time.Hour)) },
}

func TestQuantilesStayWithinTheStatedError(t *testing.T) {
	t.Parallel()
	for name, draw := range samples {
		t.Run(name, func(t *testing.T) {
			seed := drawn.Seed(t)
			r := rand.New(rand.NewPCG(seed, 0))
			for _, n := range []int{1, 2, 3, 100, 20_000} {
				var h Hist
				exact := make([]time.Duration, n)
				for i := range exact {
					exact[i] = draw(r)
					h.Record(exact[i])
				}
				slices.Sort(exact)
				assert.Equal(t, uint64(n), h.Count())
				assert.Equal(t, exact[0], h.Min())
				assert.Equal(t, exact[n-1], h.Max())
				assert.Equal(t, exact[0], h.Quantile(0))
				assert.Equal(t, exact[n-1], h.Quantile(1))
				for _, q := range []float64{.001, .01, .1, .25, .5, .75, .9, .99, .999, .9999} {
					want := exact[int(math.Ceil(q*float64(n)))-1]
					assert.LessOrEqual(t, math.Abs(float64(h.Quantile(q)-want)), RelativeError*float64(want)+.5, "n %d q %v: %v, exact %v", n, q, h.Quantile(q), want)
				}
			}
		})
	}
}

// Every value has one counter, and counters follow each other without gap.
func TestCountersCoverAllDurations(t *testing.T) {
	t.Parallel()
	next := int64(0)
	for i := range counters {
		lo, hi := bounds(i)
		require.Equal(t, next, lo)
		require.Equal(t, i, index(lo))
		require.Equal(t, i, index(hi))
		require.LessOrEqual(t, float64(hi-lo)/2, RelativeError*float64(lo)+.5)
		next = hi + 1
	}
	_, last := bounds(counters - 1)
	assert.Equal(t, int64(math.MaxInt64), last)
}

func TestMergeEqualsRecordingIntoOne(t *testing.T) {
	t.Parallel()
	seed := drawn.Seed(t)
	r := rand.New(rand.NewPCG(seed, 0))
	var all, merged, empty Hist
	workers := make([]Hist, 4)
	for range 10_000 {
		d := time.Duration(1e6 * math.Exp(2*r.NormFloat64()))
		all.Record(d)
		workers[r.IntN(3)].Record(d) // the fourth has nothing to say
	}
	for i := range workers {
		merged.Merge(&workers[i])
	}
	merged.Merge(&empty)
	assert.InEpsilon(t, float64(all.Sum()), float64(merged.Sum()), 1e-9) // floats add up in another order
	all.sum, merged.sum = 0, 0
	assert.Equal(t, all, merged)
}

func TestEmptyAndEdges(t *testing.T) {
	t.Parallel()
	var h Hist
	assert.Zero(t, h.Quantile(.5))
	assert.Zero(t, h.Mean())
	h.Record(-time.Second)
	assert.Equal(t, []time.Duration{0, 0, 0}, []time.Duration{h.Min(), h.Max(), h.Quantile(.5)})
	h.Record(math.MaxInt64)
	h.Record(math.MaxInt64)
	assert.Equal(t, time.Duration(math.MaxInt64), h.Sum())
	assert.Equal(t, h.Max(), h.Quantile(7))
	h.Reset()
	h.Record(10)
	h.Record(30)
	assert.Equal(t, time.Duration(20), h.Mean())
	var got []Bucket
	for b := range h.Buckets() {
		got = append(got, b)
	}
	assert.Equal(t, []Bucket{{10, 10, 1, 1}, {30, 30, 1, 2}}, got)
}

// Alone: allocations of the whole process are counted.
func TestRecordDoesNotAllocate(t *testing.T) {
	var h Hist
	assert.Zero(t, testing.AllocsPerRun(1000, func() { h.Record(time.Millisecond) }))
}

func BenchmarkRecord(b *testing.B) {
	var h Hist
	for i := range b.N {
		h.Record(time.Duration(i) * 977)
	}
}
