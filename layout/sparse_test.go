package layout

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
)

func deal(t *testing.T, entries int, clusters [][]uint32, o PlaceOptions) *Placement {
	t.Helper()
	p, err := PlaceClusters(entries, clusters, o)
	require.NoError(t, err)
	return p
}

// The picture in sparse.go: clusters of 5 and 4 on 4 devices.
func TestClustersAreDealtAroundTheDevices(t *testing.T) {
	t.Parallel()
	clusters := [][]uint32{{0, 1, 2, 3, 4}, {5, 6, 7, 8}}
	p := deal(t, 9, clusters, PlaceOptions{Devices: 4})
	require.Equal(t, [][]uint32{{0, 4}, {1, 5}, {2, 6}, {3, 7}}, [][]uint32{p.Slots(0)[:2], p.Slots(1)[:2], p.Slots(2)[:2], p.Slots(3)[:2]})
	require.Equal(t, []uint32{0, 4, 8}, p.Slots(0))

	p = deal(t, 9, clusters, PlaceOptions{Devices: 4, Strip: 2})
	require.Equal(t, []uint32{0, 1, 7, 8}, p.Slots(0), "the second cluster begins on device 3 and goes on around")
	require.Equal(t, []uint32{5, 6}, p.Slots(3))

	p = deal(t, 9, clusters, PlaceOptions{Devices: 4, Whole: true})
	require.Equal(t, []uint32{0, 1, 2, 3, 4}, p.Slots(0))
	require.Equal(t, []uint32{5, 6, 7, 8}, p.Slots(1))
}

func TestEveryEntryHasAPlaceAndEverySlotItsEntry(t *testing.T) {
	t.Parallel()
	for seed := range uint64(50) {
		rng := rand.New(rand.NewPCG(seed, 2))
		entries := 1 + rng.IntN(300)
		var clusters [][]uint32
		for range rng.IntN(40) {
			var c []uint32
			for _, e := range rng.Perm(entries)[:1+rng.IntN(min(entries, 30))] {
				c = append(c, uint32(e))
			}
			clusters = append(clusters, c)
		}
		o := PlaceOptions{Devices: 1 + rng.IntN(9), Strip: rng.IntN(5), Whole: rng.IntN(4) == 0}
		if rng.IntN(2) == 0 {
			o.MaxRecords = entries + rng.IntN(entries)
		}
		p := deal(t, entries, clusters, o)
		records := 0
		for e := range uint32(entries) {
			require.NotEmpty(t, p.Spots(e), "seed %d", seed)
			for _, s := range p.Spots(e) {
				require.Equal(t, e, p.Slots(int(s.Device))[s.Slot])
				records++
			}
		}
		require.Equal(t, records, p.Records())
		if o.MaxRecords > 0 {
			require.LessOrEqual(t, records, o.MaxRecords)
		}
		at := make([][]uint32, p.Devices())
		for d := range at {
			at[d] = p.Slots(d)
		}
		again, err := PlacementOf(entries, at)
		require.NoError(t, err)
		require.Equal(t, p.Records(), again.Records())
		for e := range uint32(entries) {
			require.ElementsMatch(t, p.Spots(e), again.Spots(e))
		}
	}
}

func TestAClusterIsSpreadEvenly(t *testing.T) {
	t.Parallel()
	c := make([]uint32, 64)
	for i := range c {
		c[i] = uint32(i)
	}
	for _, n := range []int{1, 4, 8} {
		p := deal(t, 64, [][]uint32{c}, PlaceOptions{Devices: n})
		require.Equal(t, n, p.RunsOf(c), "one run a device")
		for d := range n {
			require.Len(t, p.Slots(d), 64/n)
		}
	}
}

func TestAppendedEntriesMakeOverflowRuns(t *testing.T) {
	t.Parallel()
	c := []uint32{0, 1, 2, 3}
	p := deal(t, 4, [][]uint32{c}, PlaceOptions{Devices: 2})
	require.Equal(t, 2, p.RunsOf(c))
	for i := range 4 {
		s, err := p.Append(uint32(4+i), 0)
		require.NoError(t, err)
		require.Equal(t, Spot{0, uint32(2 + i)}, s)
		_, err = p.Append(0, 1) // something else between
		require.NoError(t, err)
	}
	require.Equal(t, 8, p.Entries())
	require.Equal(t, 6, RewriteRuns(2))
	_, err := p.Append(9, 0)
	require.ErrorIs(t, err, skep.Invalid)
	_, err = p.Append(8, 2)
	require.ErrorIs(t, err, skep.Invalid)
}

func TestBadPlacements(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		entries  int
		clusters [][]uint32
		o        PlaceOptions
	}{
		{0, nil, PlaceOptions{Devices: 1}}, {1, nil, PlaceOptions{}}, {1, nil, PlaceOptions{Devices: 65}},
		{2, [][]uint32{{2}}, PlaceOptions{Devices: 1}}, {2, nil, PlaceOptions{Devices: 1, Strip: -1}},
	} {
		_, err := PlaceClusters(c.entries, c.clusters, c.o)
		require.ErrorIs(t, err, skep.Invalid)
	}
	_, err := PlacementOf(1, [][]uint32{{1}})
	require.ErrorIs(t, err, skep.Invalid)
}

var unit = ReadCost{Page: 1} // a page a second, no operations to save

func TestPlansReadEveryEntryOnce(t *testing.T) {
	t.Parallel()
	for seed := range uint64(60) {
		rng := rand.New(rand.NewPCG(seed, 3))
		entries, n := 200, 1+rng.IntN(8)
		p := randomPlacement(t, rng, entries, n, 3)
		cost := []ReadCost{unit, {Page: 0.6, Least: 1}, {Base: 2, Page: 1}}[rng.IntN(3)]
		rule := AssignRule(rng.IntN(3))
		a := NewAssigner(p, cost, 1+rng.IntN(2), 64, rule)
		for range 3 { // an assigner is used again and again
			wanted := pick(rng, entries, rng.IntN(90))
			plan := a.Plan(wanted)
			require.Len(t, plan.From, len(wanted))
			in := func(s Spot) (n int) {
				for _, r := range plan.Runs {
					if r.Device == s.Device && s.Slot >= r.Slot && s.Slot < r.Slot+r.Slots {
						n++
					}
				}
				return n
			}
			for i, e := range wanted {
				require.Contains(t, p.Spots(e), plan.From[i])
				require.Equal(t, 1, in(plan.From[i]), "seed %d: each is in exactly one run", seed)
			}
			loads := make([]float64, n)
			for _, r := range plan.Runs {
				require.LessOrEqual(t, int(r.Slots)*a.pages, 64)
				loads[r.Device] += cost.Of(int(r.Slots) * a.pages)
			}
			require.InDeltaSlice(t, loads, plan.Loads, 1e-9)
			if len(wanted) > 0 {
				require.Positive(t, plan.Balance())
			}
		}
	}
}

func randomPlacement(t *testing.T, rng *rand.Rand, entries, n, copies int) *Placement {
	at := make([][]uint32, n)
	for e := range entries {
		for range 1 + rng.IntN(copies) {
			d := rng.IntN(n)
			at[d] = append(at[d], uint32(e))
		}
	}
	p, err := PlacementOf(entries, at)
	require.NoError(t, err)
	return p
}

func pick(rng *rand.Rand, n, k int) []uint32 {
	var out []uint32
	for _, e := range rng.Perm(n)[:k] {
		out = append(out, uint32(e))
	}
	return out
}

func TestGapsAreReadOverWhenCheaper(t *testing.T) {
	t.Parallel()
	c := []uint32{0, 1, 2, 3, 4, 5, 6, 7}
	p := deal(t, 8, [][]uint32{c}, PlaceOptions{Devices: 1})
	wanted := []uint32{0, 2, 7}
	plan := NewAssigner(p, ReadCost{Base: 2, Page: 1}, 1, 64, Balanced).Plan(wanted)
	require.Equal(t, []SparseRun{{0, 0, 3}, {0, 7, 1}}, plan.Runs, "a gap of one page is cheaper than a read, one of four is not")
	plan = NewAssigner(p, unit, 1, 64, Balanced).Plan(wanted)
	require.Len(t, plan.Runs, 3)
}

func TestTheCopyBesideAnotherWantedEntryIsTaken(t *testing.T) {
	t.Parallel()
	// Entry 1 is on device 0 alone and on device 1 beside entry 2.
	p, err := PlacementOf(4, [][]uint32{{1, 0}, {1, 2}, {3}})
	require.NoError(t, err)
	plan := NewAssigner(p, ReadCost{Page: 0.6, Least: 1}, 1, 64, Balanced).Plan([]uint32{1, 2})
	require.Equal(t, 1.2, plan.Time()+0, "two neighbours in one read, %v", plan.Loads)
}

// fewest is the least possible greatest number of entries on a device: bipartite flow
// with all device capacities equal, smallest that carries everything.
func fewest(p *Placement, wanted []uint32) int {
	for limit := (len(wanted) + p.devices - 1) / p.devices; ; limit++ {
		on := make([][]int, p.devices) // entries (index into wanted) on each device
		var place func(i int, seen []bool) bool
		place = func(i int, seen []bool) bool {
			for _, s := range p.Spots(wanted[i]) {
				d := int(s.Device)
				if seen[d] {
					continue
				}
				seen[d] = true
				if len(on[d]) < limit {
					on[d] = append(on[d], i)
					return true
				}
				for k, other := range on[d] {
					if place(other, seen) {
						on[d][k] = i
						return true
					}
				}
			}
			return false
		}
		all := true
		for i := range wanted {
			if !place(i, make([]bool, p.devices)) {
				all = false
				break
			}
		}
		if all {
			return limit
		}
	}
}

// The assignment is compared with the best there is, on instances where copies are on few
// devices and the first device is on nearly everybody's list.
func TestAssignmentIsNearMaximumFlow(t *testing.T) {
	t.Parallel()
	worst, sum, n := 0.0, 0.0, 0
	for seed := range uint64(120) {
		rng := rand.New(rand.NewPCG(seed, 8))
		devices := 2 + rng.IntN(7)
		at := make([][]uint32, devices)
		const entries = 600
		for e := range uint32(entries) {
			for range 1 + rng.IntN(3) {
				d := int(math.Pow(rng.Float64(), 1.5+rng.Float64()) * float64(devices)) // skewed
				at[d] = append(at[d], e)
			}
		}
		for d := range at { // neighbours do not matter here
			rng.Shuffle(len(at[d]), func(i, j int) { at[d][i], at[d][j] = at[d][j], at[d][i] })
		}
		p, err := PlacementOf(entries, at)
		require.NoError(t, err)
		wanted := pick(rng, entries, 100+rng.IntN(300))
		var placed []uint32
		for _, e := range wanted {
			if len(p.Spots(e)) > 0 {
				placed = append(placed, e)
			}
		}
		best := float64(fewest(p, placed))
		got := NewAssigner(p, unit, 1, 1, Balanced).Plan(placed).Time()
		require.GreaterOrEqual(t, got, best-1e-9, "seed %d", seed)
		worst, sum, n = max(worst, got/best), sum+got/best, n+1
	}
	t.Logf("over maximum flow: mean %.4f, worst %.4f", sum/float64(n), worst)
	require.LessOrEqual(t, worst, 1.05)
}

func TestStripsAreAsLongAsADriveNeeds(t *testing.T) {
	t.Parallel()
	require.Equal(t, 1, StripFor(unit, 1))
	require.Equal(t, 2, StripFor(ReadCost{Page: 0.6, Least: 1}, 1))
	require.Equal(t, 1, StripFor(ReadCost{Page: 0.6, Least: 1}, 2), "records of two pages")
	require.Equal(t, 16, StripFor(ReadCost{Base: 50, Page: 1}, 1), "a seek is never won back: as long as it gets")
}
