package coact

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/zeebo/xxh3"

	"github.com/skepkv/skep"
)

func seal(body []byte) []byte {
	return binary.LittleEndian.AppendUint64(slices.Clone(body), xxh3.Hash(body))
}

func randoms(rng *rand.Rand, n int) []float32 {
	v := make([]float32, n)
	for i := range v {
		v[i] = float32(rng.NormFloat64())
	}
	return v
}

// plainScores is Scores in plain Go, in double precision.
func plainScores(h Heads, keys []float32, sizes []int, queries []float32) []float64 {
	out := make([]float64, len(sizes))
	for at := 0; at < len(queries); at += h.QueryWidth() {
		for q := range h.Query {
			e, sum := make([]float64, len(sizes)), 0.0
			for c := range sizes {
				dot := 0.0
				for i := range h.Dim {
					dot += float64(queries[at+q*h.Dim+i]) * float64(keys[c*h.KeyWidth()+q/(h.Query/h.KV)*h.Dim+i])
				}
				e[c] = float64(sizes[c]) * math.Exp(dot/math.Sqrt(float64(h.Dim)))
				sum += e[c]
			}
			for c := range e {
				out[c] += e[c] / sum
			}
		}
	}
	return out
}

func TestScoresAreSoftmaxOverMedoids(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(7, 7))
	for _, h := range []Heads{{1, 1, 4}, {8, 2, 32}, {6, 3, 17}, {4, 4, 64}} {
		sizes := make([]int, 1+rng.IntN(60))
		for i := range sizes {
			sizes[i] = 1 + rng.IntN(20)
		}
		keys, queries := randoms(rng, len(sizes)*h.KeyWidth()), randoms(rng, 3*h.QueryWidth())
		x, err := NewIndex(h, keys, sizes)
		require.NoError(t, err)
		perKV := make([]float32, h.KV*len(sizes))
		got, err := x.Scores(queries, perKV)
		require.NoError(t, err)
		sum := 0.0
		for c, want := range plainScores(h, keys, sizes, queries) {
			require.InDelta(t, want, got[c], 1e-4)
			sum += float64(got[c])
			kv := 0.0
			for v := range h.KV {
				kv += float64(perKV[v*len(sizes)+c])
			}
			require.InDelta(t, want, kv, 1e-4)
		}
		require.InDelta(t, 3*h.Query, sum, 1e-3, "each head of each row gives one")
	}
}

func TestSelectKeepsToTheBudget(t *testing.T) {
	t.Parallel()
	cs := Clusters{{0, 1, 2}, {2, 3}, {4, 5, 6, 7}, {8}}
	scores := []float32{3, 4, 2, 1}
	for name, c := range map[string]struct {
		o       SelectOptions
		skip    func(uint32) bool
		chosen  []int
		entries []uint32
	}{
		"exactly":   {SelectOptions{Budget: 4}, nil, []int{1, 0}, []uint32{0, 1, 2, 3}},
		"stops":     {SelectOptions{Budget: 6}, nil, []int{1, 0}, []uint32{0, 1, 2, 3}},
		"overshoot": {SelectOptions{Budget: 6, Overshoot: true}, nil, []int{1, 0, 2}, []uint32{0, 1, 2, 3, 4, 5, 6, 7}},
		"at hand":   {SelectOptions{Budget: 4}, func(e uint32) bool { return e < 3 }, []int{1, 0}, []uint32{3}},
		"nothing":   {SelectOptions{}, nil, nil, nil},
	} {
		chosen, entries, err := Select(cs, scores, c.o, c.skip)
		require.NoError(t, err, name)
		require.Equal(t, c.chosen, chosen, name)
		require.Equal(t, c.entries, entries, name)
	}
	_, _, err := Select(cs, scores[:1], SelectOptions{}, nil)
	require.ErrorIs(t, err, skep.Invalid)
}

func TestRecallFindsTheSameStepAgain(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(3, 9))
	const entries, width = 500, 64
	r, err := NewRecall(entries, width, 32, 1)
	require.NoError(t, err)
	votes := make([]float32, entries)
	n, err := r.Votes(randoms(rng, width), RecallOptions{}, votes)
	require.NoError(t, err)
	require.Zero(t, n, "nobody to ask")
	var queries [][]float32
	for s := range 40 {
		queries = append(queries, randoms(rng, width))
		require.NoError(t, r.Learn(queries[s], []uint32{uint32(s), uint32(200 + s), 499}, nil, func(e uint32) bool { return e == 499 }))
	}
	for s, q := range queries {
		clear(votes)
		n, err := r.Votes(q, RecallOptions{Nearest: 8}, votes)
		require.NoError(t, err)
		require.Equal(t, 8, n)
		require.Equal(t, []uint32{uint32(s), uint32(200 + s)}, Top(votes, 2, nil), "its own step has most of the vote")
		require.Zero(t, votes[499], "dropped")
	}
	bytes, shared := r.Bytes()
	require.LessOrEqual(t, bytes, int64(40*(32+8+4)))
	require.Equal(t, int64(4*32*width), shared)

	r.forget(10)
	require.Equal(t, 30, r.Steps())
	clear(votes)
	_, err = r.Votes(queries[12], RecallOptions{Nearest: 1}, votes)
	require.NoError(t, err)
	require.Equal(t, []uint32{12, 212}, Top(votes, 9, nil))
}

// Steps learned with weights say how much attention an entry gets, not only that it gets
// some, and forget the many that get next to none.
func TestRecallWeighsAttention(t *testing.T) {
	t.Parallel()
	r, err := NewRecall(100, 4, 8, 1)
	require.NoError(t, err)
	on, weights := make([]uint32, 100), make([]float32, 100)
	for e := range on {
		on[e], weights[e] = uint32(e), 1
	}
	weights[7], weights[8], weights[9] = 400, 200, 100
	q := []float32{1, 2, 3, 4}
	require.NoError(t, r.Learn(q, on, weights, func(e uint32) bool { return e == 9 }))
	votes := make([]float32, 100)
	_, err = r.Votes(q, RecallOptions{}, votes)
	require.NoError(t, err)
	total := float32(97 + 400 + 200 + 100)
	require.Equal(t, []uint32{7, 8}, Top(votes, 100, nil), "0.6 of the attention is in two")
	require.InEpsilon(t, 400/total, votes[7], .01)
	require.InEpsilon(t, 200/total, votes[8], .01)
	popular := make([]float32, 100)
	require.NoError(t, r.Popularity(popular))
	require.Equal(t, votes, popular, "of one step")

	again, err := UnmarshalRecall(r.AppendBinary(nil))
	require.NoError(t, err)
	clear(votes)
	_, err = again.Votes(q, RecallOptions{}, votes)
	require.NoError(t, err)
	require.Equal(t, popular, votes)
	require.ErrorIs(t, r.Learn(q, on, weights[1:], nil), skep.Invalid)
	weights[3] = -1
	require.ErrorIs(t, r.Learn(q, on, weights, nil), skep.Invalid)
	weights[3] = float32(math.NaN())
	require.ErrorIs(t, r.Learn(q, on, weights, nil), skep.Invalid)
	require.ErrorIs(t, r.Popularity(votes[1:]), skep.Invalid)
	clear(weights)
	require.NoError(t, r.Learn(q, on, weights, nil), "a step that attends to nothing")
}

// The radius is the one the caller's cost likes best.
func TestBestRadius(t *testing.T) {
	t.Parallel()
	b, err := NewBits(64, 32)
	require.NoError(t, err)
	rng := rand.New(rand.NewPCG(5, 5))
	for s := range 32 {
		g := uint32(rng.IntN(8))
		on := make([]uint32, 0, 8)
		for e := range uint32(8) {
			if rng.IntN(4) > 0 {
				on = append(on, g*8+e)
			}
		}
		b.Add(s, on)
	}
	byCount := func(sign float64) func(Compacted) (float64, error) {
		return func(c Compacted) (float64, error) { return sign * float64(len(c.Clusters)), nil }
	}
	few, err := BestRadius(b, CompactOptions{}, nil, byCount(1))
	require.NoError(t, err)
	many, err := BestRadius(b, CompactOptions{}, nil, byCount(-1))
	require.NoError(t, err)
	require.Greater(t, few, many)
	same, err := BestRadius(b, CompactOptions{}, []float64{.6, .7}, func(Compacted) (float64, error) { return 1, nil })
	require.NoError(t, err)
	require.Equal(t, .6, same, "the first of equals")
	_, err = BestRadius(b, CompactOptions{Copies: 3}, nil, byCount(1))
	require.ErrorIs(t, err, skep.Invalid)
}

func TestBadRecalls(t *testing.T) {
	t.Parallel()
	_, err := NewRecall(0, 1, 1, 1)
	require.ErrorIs(t, err, skep.Invalid)
	_, err = NewRecall(1, 0, 1, 1)
	require.ErrorIs(t, err, skep.Invalid)
	r, err := NewRecall(10, 4, 8, 1)
	require.NoError(t, err)
	q := make([]float32, 4)
	require.ErrorIs(t, r.Learn(q[:3], nil, nil, nil), skep.Invalid)
	require.ErrorIs(t, r.Learn(q, []uint32{3, 3}, nil, nil), skep.Invalid)
	require.ErrorIs(t, r.Learn(q, []uint32{10}, nil, nil), skep.Invalid)
	_, err = r.Votes(q, RecallOptions{}, make([]float32, 9))
	require.ErrorIs(t, err, skep.Invalid)
	require.Zero(t, r.Steps(), "bad input changed nothing")
}

func TestHeatKeepsWhatIsWorthMost(t *testing.T) {
	t.Parallel()
	// Equal use: eq. 6 prefers the small, whose addressing costs more a byte.
	h, err := NewHeat([]int{1, 4, 1}, []float64{5, 5, 4}, HeatOptions{Capacity: 4, Base: 1, Transfer: 1})
	require.NoError(t, err)
	require.True(t, h.Has(0))
	require.True(t, h.Has(2))
	require.False(t, h.Has(1))
	// 1 is used again and again, the others never: it takes their place.
	for range 5 {
		h.Step([]int{1})
	}
	require.True(t, h.Has(1))
	require.False(t, h.Has(0))
	require.Zero(t, h.Frequency(0), "never below 0")
	require.Equal(t, []int{1}, h.Step([]int{0, 1}))
	require.Equal(t, 1.0, h.Frequency(0), "what is outside decays and rises too")
}

func TestHeatAgainstPlainCounting(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(4, 4))
	const n, capacity = 50, 60
	for _, decay := range []float64{1, 0.1} {
		sizes, freq := make([]int, n), make([]float64, n)
		for i := range sizes {
			sizes[i] = 1 + rng.IntN(9)
		}
		h, err := NewHeat(sizes, nil, HeatOptions{Capacity: capacity, Base: 3, Transfer: 1, Decay: decay})
		require.NoError(t, err)
		for range 400 {
			var on []int
			for c := range n {
				if rng.IntN(2+c/4) == 0 {
					on = append(on, c)
				}
			}
			had := map[int]bool{}
			for c := range n {
				had[c] = h.Has(c)
			}
			hits := h.Step(on)
			for c := range n {
				if slices.Contains(on, c) {
					freq[c]++
					require.Equal(t, had[c], slices.Contains(hits, c))
				} else {
					freq[c] = max(freq[c]-decay, 0)
				}
				require.InDelta(t, freq[c], h.Frequency(c), 1e-6)
			}
			used := 0
			for c := range n {
				if h.Has(c) {
					used += sizes[c]
				}
			}
			require.Equal(t, used, h.Used())
			require.LessOrEqual(t, used, capacity)
		}
	}
	_, err := NewHeat([]int{0}, nil, HeatOptions{})
	require.ErrorIs(t, err, skep.Invalid)
	_, err = NewHeat([]int{1}, []float64{1, 2}, HeatOptions{})
	require.ErrorIs(t, err, skep.Invalid)
}

func TestLRUKeepsTheLast(t *testing.T) {
	t.Parallel()
	l := NewLRU([]int{1, 1, 2, 9}, 3)
	require.Empty(t, l.Step([]int{0, 1}))
	require.Equal(t, []int{0}, l.Step([]int{0, 2}), "1 goes")
	require.True(t, l.Has(2))
	require.False(t, l.Has(1))
	require.Empty(t, l.Step([]int{3}), "larger than all of it")
}

func TestAppendedEntriesJoinWhatTheyAreActivatedWith(t *testing.T) {
	t.Parallel()
	keys := []float32{1, 0, 0, 1} // of medoids 0 and 1
	for rule, want := range map[JoinRule]int{ByDistance: 1, ByShare: 1, ByKey: 0} {
		j, err := NewJoiner([]uint32{0, 1}, keys, 2, 4, 0.5, rule)
		require.NoError(t, err)
		require.NoError(t, j.Arrive(9, []float32{1, 0.1}))
		for s := range 4 {
			require.Empty(t, j.Ready())
			j.Step([][]uint32{{1, 9}, {0}, {1, 9}, {1}}[s])
		}
		require.Equal(t, []uint32{9}, j.Ready())
		c, ok := j.Place(9)
		require.True(t, ok)
		require.Equal(t, want, c, "rule %d", rule)
		_, ok = j.Place(9)
		require.False(t, ok)
	}
}

// The window may be longer than a word: what lies before the entry's arrival counts for
// nothing, what lies 200 steps back does.
func TestJoiningLooksBackOverTheWholeWindow(t *testing.T) {
	t.Parallel()
	j, err := NewJoiner([]uint32{0, 1}, []float32{1, 0, 0, 1}, 2, 200, 0.9, ByDistance)
	require.NoError(t, err)
	for range 300 {
		j.Step([]uint32{0})
	}
	require.NoError(t, j.Arrive(9, []float32{1, 0}))
	j.Step([]uint32{1, 9})
	for range 199 {
		require.Empty(t, j.Ready())
		j.Step(nil)
	}
	require.Equal(t, []uint32{9}, j.Ready())
	c, ok := j.Place(9)
	require.True(t, ok)
	require.Equal(t, 1, c)
}

func TestAnEntryNothingActivatesJoinsByKey(t *testing.T) {
	t.Parallel()
	j, err := NewJoiner([]uint32{0, 1}, []float32{1, 0, 0, 1}, 2, 2, 0.5, ByDistance)
	require.NoError(t, err)
	require.NoError(t, j.Arrive(7, []float32{0.2, 3}))
	j.Step([]uint32{0})
	j.Step([]uint32{0})
	c, ok := j.Place(7)
	require.True(t, ok)
	require.Equal(t, 1, c)
	_, err = NewJoiner(nil, nil, 2, 2, 0.5, ByKey)
	require.ErrorIs(t, err, skep.Invalid)
	_, err = NewJoiner([]uint32{0}, []float32{1, 2}, 2, 257, 0.5, ByKey)
	require.ErrorIs(t, err, skep.Invalid)
	require.ErrorIs(t, j.Arrive(8, []float32{1}), skep.Invalid)
}

func TestRecallIsWrittenAndRead(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(6, 9))
	r, err := NewRecall(300, 16, 8, 4)
	require.NoError(t, err)
	var queries [][]float32
	for s := range 20 {
		queries = append(queries, randoms(rng, 16))
		require.NoError(t, r.Learn(queries[s], []uint32{uint32(s), uint32(s + 200)}, nil, nil))
	}
	data := r.AppendBinary(nil)
	again, err := UnmarshalRecall(data)
	require.NoError(t, err)
	for _, q := range queries {
		a, b := make([]float32, 300), make([]float32, 300)
		_, err := r.Votes(q, RecallOptions{}, a)
		require.NoError(t, err)
		_, err = again.Votes(q, RecallOptions{}, b)
		require.NoError(t, err)
		require.Equal(t, a, b)
	}
	for n := range data {
		_, err := UnmarshalRecall(data[:n])
		require.ErrorIs(t, err, skep.Damaged)
	}
	// Bytes in the body may be other numbers, but never lead out of the entries.
	for n := range data {
		bad := slices.Clone(data)
		bad[n] ^= 0x41
		if r, err := UnmarshalRecall(bad); err == nil {
			_, err := r.Votes(make([]float32, r.width), RecallOptions{}, make([]float32, r.entries))
			require.NoError(t, err)
		}
	}
	again.Grow(400)
	require.NoError(t, again.Learn(queries[0], []uint32{399}, nil, nil))
}

func TestTopSetIsTopWithoutTheOrder(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(8, 8))
	for range 300 {
		scores := make([]float32, 1+rng.IntN(400))
		for i := range scores {
			// Many equal ones, zeros, tiny and negative ones among them.
			scores[i] = float32(rng.IntN(12)-2) * float32(math.Pow(10, float64(rng.IntN(5)-3)))
		}
		skip := func(e uint32) bool { return e%7 == 3 }
		if rng.IntN(2) == 0 {
			skip = nil
		}
		k := rng.IntN(len(scores) + 5)
		want := Top(scores, k, skip)
		slices.Sort(want)
		got := TopSet(scores, k, skip)
		if len(want) == 0 {
			require.Empty(t, got)
			continue
		}
		require.Equal(t, want, got)
	}
}
