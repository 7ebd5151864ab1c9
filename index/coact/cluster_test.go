package coact

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
)

// matrix makes Bits of steps given as lists of entries.
func matrix(t *testing.T, entries int, steps ...[]uint32) *Bits {
	t.Helper()
	b, err := NewBits(entries, len(steps))
	require.NoError(t, err)
	for i, s := range steps {
		b.Add(i, s)
	}
	return b
}

// topics makes steps of a context with hidden topics: a step activates most of one or two
// topics and some noise.
func topics(t *testing.T, seed uint64, entries, steps, size int) *Bits {
	t.Helper()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 1))
	b, err := NewBits(entries, steps)
	require.NoError(t, err)
	n := max(entries/size, 1)
	for s := range steps {
		var on []uint32
		for range 1 + rng.IntN(2) {
			topic := rng.IntN(n)
			for e := topic * size; e < min((topic+1)*size, entries); e++ {
				if rng.IntN(10) < 8 {
					on = append(on, uint32(e))
				}
			}
		}
		for range entries / 50 {
			on = append(on, uint32(rng.IntN(entries)))
		}
		b.Add(s, on)
	}
	return b
}

func TestDistances(t *testing.T) {
	t.Parallel()
	// 0 and 1 always together, 2 with them half of the time, 3 never, 4 not at all.
	b := matrix(t, 5, []uint32{0, 1, 2}, []uint32{0, 1}, []uint32{0, 1, 2}, []uint32{0, 1}, []uint32{3})
	require.Equal(t, 4, b.Count(0))
	require.Equal(t, 2, b.Both(0, 2))
	require.InDelta(t, 0, b.Distance(0, 1), 1e-12)
	require.InDelta(t, 1-2/2.8284271247, b.Distance(0, 2), 1e-9)
	require.InDelta(t, b.Distance(0, 2), b.Distance(2, 0), 1e-15)
	require.Equal(t, 1.0, b.Distance(0, 3))
	require.Equal(t, 1.0, b.Distance(0, 4), "never activated: never near")
	s := b.sums()
	require.InDelta(t, 0.5, b.distance(Jaccard, s, 0, 2), 1e-12)
	require.InDelta(t, 0.5, b.distance(GivenMedoid, s, 0, 2), 1e-12)
	require.InDelta(t, 0, b.distance(GivenMedoid, s, 2, 0), 1e-12, "not symmetric")
	require.InDelta(t, 1-2.0/6, b.distance(RowSum, s, 0, 2), 1e-12, "0 is with 1 four times, with 2 twice")
	require.InDelta(t, 1-2.0/16, b.distance(GlobalSum, s, 0, 2), 1e-12)
	require.Equal(t, 1.0, b.distance(RowSum, s, 4, 0))
}

func TestSinksAreThoseActiveInMoreThanHalfOfTheSteps(t *testing.T) {
	t.Parallel()
	b := matrix(t, 3, []uint32{0, 1}, []uint32{0, 1}, []uint32{0}, []uint32{2})
	require.Equal(t, []uint32{0}, b.Sinks(), "entry 1 is active in exactly half")
	c := b.Without(func(e int) bool { return e == 0 })
	require.Zero(t, c.Count(0))
	require.Equal(t, 3, b.Count(0), "the original is as it was")
	require.Equal(t, []uint32{1}, c.Activated(0))
}

// The paper's example for copies: A is often with B and often with C, B and C never.
func TestAnEntryOfTwoGroupsIsInTwoClusters(t *testing.T) {
	t.Parallel()
	const A, B, C = 0, 1, 2
	b := matrix(t, 3, []uint32{A, B}, []uint32{A, B}, []uint32{A, B}, []uint32{A, C}, []uint32{A, C}, []uint32{A, C})
	cs, err := Exact(b, Options{Tau: 0.4})
	require.NoError(t, err)
	require.Equal(t, Clusters{{A, B}, {C, A}}, cs)
	cs, err = Exact(b, Options{Tau: 0.4, NoCopies: true})
	require.NoError(t, err)
	require.Equal(t, Clusters{{A, B}, {C}}, cs)
	cs, err = Exact(b, Options{Tau: 0.4, MedoidOnly: true})
	require.NoError(t, err)
	require.Equal(t, Clusters{{A, B, C}}, cs, "all are near the medoid, though not near each other")
}

func TestBuildGivesWhatExactGives(t *testing.T) {
	t.Parallel()
	for seed := range uint64(12) {
		b := topics(t, seed, 120+int(seed)*7, 90, 9)
		for _, o := range []Options{
			{Tau: 0.3}, {Tau: 0.6}, {Tau: 0.9}, {Tau: 0.6, MaxSize: 5}, {Tau: 0.6, NoCopies: true},
			{Tau: 0.5, MedoidOnly: true}, {Tau: 0.7, MaxSize: 4, NoCopies: true, Workers: 3},
		} {
			o.References = b.Entries()
			want, err := Exact(b, o)
			require.NoError(t, err)
			got, err := Build(b, o)
			require.NoError(t, err)
			require.Equal(t, want, got, "options %+v", o)
			require.NoError(t, got.Check(b.Entries(), o.NoCopies))
		}
	}
}

func TestMembersAreWithinTheRadius(t *testing.T) {
	t.Parallel()
	b := topics(t, 5, 300, 200, 10)
	cs, err := Build(b, Options{Tau: 0.5, References: 64, Seed: 3})
	require.NoError(t, err)
	require.NoError(t, cs.Check(b.Entries(), false))
	for _, c := range cs {
		require.Less(t, b.Radius(c), 0.5)
		for i, e := range c[1:] {
			sum := 0.0
			for _, k := range c[:i+1] {
				sum += b.Distance(int(e), int(k))
			}
			require.LessOrEqual(t, sum/float64(i+1), 0.5+1e-6, "mean distance to those before")
		}
	}
}

func TestSameSeedSameClustersOnAnyNumberOfCores(t *testing.T) {
	t.Parallel()
	b := topics(t, 9, 500, 150, 12)
	o := Options{Tau: 0.6, References: 50, Seed: 7}
	first, err := Build(b, o)
	require.NoError(t, err)
	for _, workers := range []int{2, 5} {
		o.Workers = workers
		again, err := Build(b, o)
		require.NoError(t, err)
		require.Equal(t, first, again)
	}
	o.Seed = 8
	other, err := Build(b, o)
	require.NoError(t, err)
	require.NotEqual(t, first, other, "another sample gives another order of medoids")
}

// How good sampled densities are: about as many topics are found whole as with all pairs.
func TestSampledDensitiesFindTheTopics(t *testing.T) {
	t.Parallel()
	b := topics(t, 2, 400, 400, 10)
	found := func(references int) (whole int) {
		cs, err := Build(b, Options{Tau: 0.6, References: references, NoCopies: true})
		require.NoError(t, err)
		for _, c := range cs {
			same := 0
			for _, e := range c {
				if e/10 == c[0]/10 {
					same++
				}
			}
			if same >= 9 {
				whole++
			}
		}
		return whole
	}
	all := found(400)
	require.Greater(t, all, 25, "of 40 topics, under noise")
	require.GreaterOrEqual(t, found(60), all*9/10)
}

func TestCompactCoversOnceAndKeepsItsBudget(t *testing.T) {
	t.Parallel()
	for seed := range uint64(6) {
		b := topics(t, seed, 333, 128, 11)
		b = b.Without(func(e int) bool { return e < 40 }) // never activated
		for _, copies := range []float64{1, 1.3, 2} {
			c, err := Compact(b, CompactOptions{Size: 16, Copies: copies, Workers: 1 + int(seed)})
			require.NoError(t, err)
			require.NoError(t, c.Clusters.Check(b.Entries(), true))
			for _, k := range c.Clusters {
				require.LessOrEqual(t, len(k), 16)
			}
			require.LessOrEqual(t, float64(c.All().Members()), copies*float64(b.Entries()))
			if copies == 1 {
				require.Empty(t, c.Second)
			}
			for _, k := range c.Second {
				require.Positive(t, b.Count(int(k[0])), "copies are for what is read")
			}
		}
		again, err := Compact(b, CompactOptions{Size: 16, Copies: 2, Workers: 4})
		require.NoError(t, err)
		same, err := Compact(b, CompactOptions{Size: 16, Copies: 2})
		require.NoError(t, err)
		require.Equal(t, same, again)
	}
}

func TestCompactPutsNeighboursTogether(t *testing.T) {
	t.Parallel()
	b := topics(t, 4, 400, 400, 10)
	c, err := Compact(b, CompactOptions{})
	require.NoError(t, err)
	var beside, n float64
	for _, k := range c.Clusters {
		for i := 1; i < len(k); i++ {
			beside += b.Distance(int(k[i-1]), int(k[i]))
			n++
		}
	}
	var any, m float64
	for e := 1; e < 400; e++ {
		any += b.Distance(e, (e*37)%400)
		m++
	}
	require.Less(t, beside/n, 0.6*any/m, "chained neighbours are nearer than chance")
}

func TestChooseTauPrefersTheRadiusOfTheTopics(t *testing.T) {
	t.Parallel()
	all := topics(t, 3, 300, 300, 10)
	var tune [][]uint32
	for s := 200; s < 300; s++ {
		tune = append(tune, all.Activated(s))
	}
	b, err := NewBits(300, 200)
	require.NoError(t, err)
	for s := range 200 {
		b.Add(s, all.Activated(s))
	}
	best, tried, err := ChooseTau(b, tune, Options{NoCopies: true, References: 300}, TauOptions{Medoid: 0.5})
	require.NoError(t, err)
	require.Len(t, tried, 7)
	for _, s := range tried {
		require.LessOrEqual(t, best.Cost, s.Cost)
		require.GreaterOrEqual(t, s.Read, 0.5)
	}
	require.InDelta(t, 0.65, best.Tau, 0.16, "topics are neither split nor joined: %+v", tried)
	_, _, err = ChooseTau(b, nil, Options{}, TauOptions{})
	require.ErrorIs(t, err, skep.Invalid)
}

func TestBadClusterOptions(t *testing.T) {
	t.Parallel()
	b := matrix(t, 2, []uint32{0, 1})
	for name, o := range map[string]Options{
		"no radius": {}, "radius 1": {Tau: 1}, "size": {Tau: .5, MaxSize: -1}, "measure": {Tau: .5, Measure: 99}, "references": {Tau: .5, References: -1},
	} {
		_, err := Build(b, o)
		require.ErrorIs(t, err, skep.Invalid, name)
		_, err = Exact(b, o)
		require.ErrorIs(t, err, skep.Invalid, name)
	}
	_, err := NewBits(0, 1)
	require.ErrorIs(t, err, skep.Invalid)
	_, err = NewBits(1, MaxSteps+1)
	require.ErrorIs(t, err, skep.Invalid)
	_, err = Compact(b, CompactOptions{Copies: 3})
	require.ErrorIs(t, err, skep.Invalid)
}

func TestEveryMeasureClusters(t *testing.T) {
	t.Parallel()
	b := topics(t, 1, 80, 80, 8)
	for _, m := range Measures() {
		cs, err := Build(b, Options{Tau: 0.99, Measure: m})
		require.NoError(t, err)
		require.NoError(t, cs.Check(80, false), m.String())
	}
}

func TestByKeysGroupsWhatIsSimilar(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(1, 2))
	const groups, each, width = 5, 20, 8
	keys := make([]float32, groups*each*width)
	for e := range groups * each {
		keys[e*width+e%groups] = 10
		for i := range width {
			keys[e*width+i] += rng.Float32()
		}
	}
	cs, centroids, err := ByKeys(keys, width, KeyOptions{Clusters: 12, Seed: 1, Workers: 2})
	require.NoError(t, err)
	require.NoError(t, cs.Check(groups*each, true))
	require.Len(t, centroids, len(cs)*width)
	for _, c := range cs {
		for _, e := range c {
			require.Equal(t, c[0]%groups, e%groups, "12 centroids suffice to keep 5 groups apart")
		}
	}
	again, _, err := ByKeys(keys, width, KeyOptions{Clusters: 12, Seed: 1})
	require.NoError(t, err)
	require.Equal(t, cs, again)
	for _, o := range []KeyOptions{{}, {Clusters: 101}} {
		_, _, err := ByKeys(keys, width, o)
		require.ErrorIs(t, err, skep.Invalid)
	}
	_, _, err = ByKeys(keys[:7], width, KeyOptions{Clusters: 1})
	require.ErrorIs(t, err, skep.Invalid)
}

func TestSmallestPutsTheFirstFirst(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(11, 3))
	for range 300 {
		a := make([]int, 1+rng.IntN(200))
		for i := range a {
			a[i] = rng.IntN(1 + len(a)/2)
		}
		want := slices.Sorted(slices.Values(a))
		k := rng.IntN(len(a) + 1)
		smallest(a, k, func(x, y int) int { return x - y })
		slices.Sort(a[:k])
		require.Equal(t, want[:k], a[:k])
	}
}
