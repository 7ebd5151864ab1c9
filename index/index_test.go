package index

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
)

func TestLookupFindsTheLongestRootedPrefix(t *testing.T) {
	t.Parallel()
	x := open(t, Config{})
	insert(t, x, chain(100, 50)...)
	for _, n := range []int{0, 1, 2, 3, 49, 50} {
		require.Equal(t, n, depthOf(x, 100, n), "a chain of %d is there", n)
	}
	require.Equal(t, 50, depthOf(x, 100, 2000), "keys past the stored ones are not")
	require.Equal(t, 0, depthOf(x, 101, 10), "a chain does not begin in the middle of another")
	require.Equal(t, 0, depthOf(x, 5000, 10))

	s := x.Stats()
	require.EqualValues(t, 50, s.Blocks)
	require.EqualValues(t, 50, s.Rooted)
	var lookups uint64
	for _, n := range s.Probes {
		lookups += n
	}
	require.EqualValues(t, 8, lookups, "a lookup of no keys asks nothing")
}

func TestLookupOfAKeyListThatIsNoChain(t *testing.T) {
	t.Parallel()
	x := open(t, Config{})
	insert(t, x, chain(0, 8)...)
	insert(t, x, chain(100, 8)...)
	// Key 1 is replaced by another chain's block of another depth.
	keys := []uint64{0, 105, 2, 3}
	d, _ := x.Lookup(len(keys), func(i int) Fingerprint { return fpOf(keys[i]) })
	require.LessOrEqual(t, d, 4)
	d, _ = x.Lookup(2, func(i int) Fingerprint { return fpOf(keys[i]) })
	require.Equal(t, 1, d)
}

func TestOrphansShowWhenTheirParentArrives(t *testing.T) {
	t.Parallel()
	x := open(t, Config{})
	c := chain(0, 6)
	insert(t, x, c[5], c[3], c[4]) // tail first
	require.Equal(t, 0, depthOf(x, 0, 6))
	s := x.Stats()
	require.EqualValues(t, 3, s.Orphans)
	require.EqualValues(t, 1, s.Stubs, "one place is held, of block 2")

	insert(t, x, c[0], c[1])
	require.Equal(t, 2, depthOf(x, 0, 6))
	insert(t, x, c[2])
	require.Equal(t, 6, depthOf(x, 0, 6))
	require.Zero(t, x.Stats().Stubs)
	require.Zero(t, x.Stats().Orphans)
}

func TestRemoveHidesTheSubtreeAndBringsItBack(t *testing.T) {
	t.Parallel()
	x := open(t, Config{})
	c := chain(0, 10)
	insert(t, x, c...)
	branch := chain(1000, 10)[4:]
	branch[0].Parent = c[3].FP
	insert(t, x, branch...)

	old, ok := x.Remove(c[3].FP, c[3].Location)
	require.True(t, ok)
	require.Equal(t, c[3].Location, old.Location)
	require.Equal(t, 3, depthOf(x, 0, 10))
	s := x.Stats()
	require.EqualValues(t, 12, s.Orphans, "6 below on the chain and 6 on the branch")
	require.EqualValues(t, 1, s.Stubs)
	require.NoError(t, x.Check())

	insert(t, x, c[3])
	require.Equal(t, 10, depthOf(x, 0, 10))
	require.Zero(t, x.Stats().Orphans)

	for _, e := range append(c, branch...) {
		_, ok := x.Remove(e.FP, AnyLocation)
		require.True(t, ok)
		require.NoError(t, x.Check())
	}
	require.Equal(t, counts{}, x.counts)
}

func TestFirstWriterWinsInChains(t *testing.T) {
	t.Parallel()
	x := open(t, Config{})
	c := chain(0, 1)
	id, existed, err := x.Insert(c[0])
	require.NoError(t, err)
	require.False(t, existed)
	second := c[0]
	second.Location = at(9, 9)
	again, existed, err := x.Insert(second)
	require.NoError(t, err)
	require.True(t, existed)
	require.Equal(t, id, again)
	e, _ := x.Resolve(c[0].FP)
	require.Equal(t, c[0].Location, e.Location)
}

func TestLastWriterWinsInOpaqueNamespaces(t *testing.T) {
	t.Parallel()
	x := open(t, Config{})
	e := Entry{FP: fpOf(1), Opaque: true, Location: at(1, 1), Pages: 3, Namespace: 4, Tenant: 5}
	_, replaced, err := x.Replace(e)
	require.NoError(t, err)
	require.False(t, replaced)
	next := e
	next.Location, next.Pages = at(2, 7), 1
	old, replaced, err := x.Replace(next)
	require.NoError(t, err)
	require.True(t, replaced)
	require.Equal(t, e.Location, old.Location)
	got, _, ok := x.Probe(e.FP)
	require.True(t, ok)
	require.Equal(t, next.Location, got.Location)
	bytes, _ := x.Usage(5)
	require.EqualValues(t, 4096, bytes)

	chained := chain(7, 1)[0]
	_, _, err = x.Replace(chained)
	require.ErrorIs(t, err, skep.Invalid)
}

func TestMoveIsCompareAndSwap(t *testing.T) {
	t.Parallel()
	x := open(t, Config{})
	e := chain(0, 1)[0]
	e.Location = 0 // accepted
	insert(t, x, e)
	require.EqualValues(t, 1, x.Stats().Accepted)
	require.Equal(t, 1, depthOf(x, 0, 1), "accepted blocks can be restored from DRAM")
	x.Touch(e.FP)
	require.False(t, x.Move(e.FP, at(1, 1), at(2, 2)))
	require.True(t, x.Move(e.FP, 0, at(3, 1)))
	require.Zero(t, x.Stats().Accepted)
	g, ok := x.Group(3)
	require.True(t, ok)
	require.EqualValues(t, 1, g.TouchedPages, "used while it waited to be written")
	require.True(t, x.Move(e.FP, at(3, 1), at(4, 1)))
	_, ok = x.Group(3)
	require.True(t, ok)
	g, _ = x.Group(4)
	require.EqualValues(t, 0, g.TouchedPages, "written anew")
	require.False(t, x.Move(fpOf(99), 0, at(1, 1)))
	_, ok = x.Remove(e.FP, at(3, 1))
	require.False(t, ok, "it is not there any more")
}

func TestResolveChain(t *testing.T) {
	t.Parallel()
	x := open(t, Config{})
	c := chain(0, 20)
	insert(t, x, c...)
	d, deepest := lookup(x, 0, 30)
	require.Equal(t, 20, d)
	fp := func(k int) Fingerprint { return fpOf(uint64(k)) }
	got, err := x.ResolveChain(deepest, fp, 5, 12, nil)
	require.NoError(t, err)
	require.Len(t, got, 7)
	for i, e := range got {
		require.Equal(t, c[5+i].Location, e.Location)
		require.Equal(t, c[5+i].FP, e.FP)
	}
	got, err = x.ResolveChain(deepest, nil, 0, 20, got[:0])
	require.NoError(t, err)
	require.Len(t, got, 20)

	_, err = x.ResolveChain(deepest, fp, 0, 21, nil)
	require.ErrorIs(t, err, skep.NotFound)
	_, err = x.ResolveChain(deepest, func(k int) Fingerprint { return fpOf(uint64(k) * 2) }, 0, 20, nil)
	require.ErrorIs(t, err, skep.NotFound, "another chain's keys")
	_, err = x.ResolveChain(deepest, fp, 3, 2, nil)
	require.ErrorIs(t, err, skep.Invalid)
	x.Remove(c[10].FP, AnyLocation)
	_, err = x.ResolveChain(deepest, fp, 0, 20, nil)
	require.ErrorIs(t, err, skep.NotFound, "a hole was torn since the lookup")
}

func TestInsertRefusesWhatIsOutsideItsLimits(t *testing.T) {
	t.Parallel()
	x := open(t, Config{})
	c := chain(0, 3)
	insert(t, x, c[0])
	for name, change := range map[string]func(*Entry){
		"too deep":                   func(e *Entry) { e.Depth = MaxDepth + 1 },
		"parent of an opaque key":    func(e *Entry) { e.Opaque = true },
		"depth without a parent":     func(e *Entry) { e.HasParent = false },
		"parent without depth":       func(e *Entry) { e.Depth = 0 },
		"its own parent":             func(e *Entry) { e.Parent = e.FP },
		"not one below its parent":   func(e *Entry) { e.Depth = 2 },
		"far from its parent though": func(e *Entry) { e.Depth = 7 },
	} {
		t.Run(name, func(t *testing.T) {
			e := c[1]
			change(&e)
			_, _, err := x.Insert(e)
			require.ErrorIs(t, err, skep.Invalid)
			require.EqualValues(t, 1, x.Stats().Blocks)
			y := open(t, Config{})
			if err := y.BulkLoad([]Entry{c[0], e}); err != nil {
				require.ErrorIs(t, err, skep.Invalid)
				require.Zero(t, y.Stats().Blocks)
			} else {
				require.EqualValues(t, 1, y.Stats().Orphans, "an open does not fail over it, and nobody sees it")
			}
		})
	}
}

// Fingerprints are hashes, so no honest caller makes these; none may hang the index.
func TestHostileParents(t *testing.T) {
	t.Parallel()
	x := open(t, Config{})
	a := Entry{FP: fpOf(1), Parent: fpOf(2), HasParent: true, Depth: 1, Location: at(1, 1), Pages: 1}
	b := Entry{FP: fpOf(2), Parent: fpOf(1), HasParent: true, Depth: 2, Location: at(1, 2), Pages: 1}
	insert(t, x, a, b) // a circle
	require.NoError(t, x.Check())
	require.EqualValues(t, 2, x.Stats().Orphans)
	x.Remove(a.FP, AnyLocation)
	require.NoError(t, x.Check())
	x.Remove(b.FP, AnyLocation)
	require.NoError(t, x.Check())
	require.Equal(t, counts{}, x.counts)

	// Children that waited with different depths: only the one that fits shows.
	fits := Entry{FP: fpOf(11), Parent: fpOf(10), HasParent: true, Depth: 1, Location: at(1, 3), Pages: 1}
	lies := Entry{FP: fpOf(12), Parent: fpOf(10), HasParent: true, Depth: 9, Location: at(1, 4), Pages: 1}
	insert(t, x, fits, lies, Entry{FP: fpOf(10), Location: at(1, 5), Pages: 1})
	require.EqualValues(t, 2, x.Stats().Rooted)
}

func TestSlotsAreCapped(t *testing.T) {
	t.Parallel()
	x := open(t, Config{MaxSlots: 10})
	c := chain(0, 20)
	var err error
	for _, e := range c {
		if _, _, err = x.Insert(e); err != nil {
			break
		}
	}
	require.ErrorIs(t, err, skep.Full)
	n := x.Stats().Blocks
	require.LessOrEqual(t, n, uint64(10))
	require.NoError(t, x.Check())
	x.Remove(c[n-1].FP, AnyLocation)
	insert(t, x, c[n-1])
}

func TestClosedIndex(t *testing.T) {
	t.Parallel()
	x := open(t, Config{CapacityPages: 100, Policy: "lru"})
	c := chain(0, 5)
	insert(t, x, c...)
	_, deepest := lookup(x, 0, 5)
	require.NoError(t, x.SetHint(second(0), c[0].FP, Hint{Until: second(1)}))
	x.Close()
	x.Close()
	require.Zero(t, depthOf(x, 0, 5))
	_, _, err := x.Insert(c[0])
	require.ErrorIs(t, err, skep.Closed)
	_, ok := x.Resolve(c[0].FP)
	require.False(t, ok)
	_, err = x.ResolveChain(deepest, nil, 0, 5, nil)
	require.ErrorIs(t, err, skep.NotFound)
	x.TouchChain(deepest, 5)
	x.Touch(c[0].FP)
	x.Tick(second(2))
	_, ok = x.NextEvict()
	require.False(t, ok)
	removed, _ := x.SweepDead(10)
	require.Zero(t, removed)
	x.ForEach(func(ID, Entry) bool { t.Fatal("nothing is there"); return false })
}

func TestCheckpointRoundTrip(t *testing.T) {
	t.Parallel()
	x := open(t, Config{CapacityPages: 1 << 20})
	c := chain(0, 300)
	insert(t, x, c...)
	insert(t, x, Entry{FP: fpOf(1e6), Opaque: true, Location: at(2, 1), Pages: 9, Namespace: 3, Tenant: 2, Durable: true})
	_, deepest := lookup(x, 0, 300)
	x.TouchChain(deepest, 20)
	var saved []Entry
	x.ForEach(func(_ ID, e Entry) bool {
		saved = append(saved, e)
		return true
	})
	require.Len(t, saved, 301)

	y := open(t, Config{CapacityPages: 1 << 20})
	require.NoError(t, y.BulkLoad(saved))
	y.SetClock(x.Clock())
	require.Equal(t, x.Clock(), y.Clock())
	require.Equal(t, x.counts, y.counts)
	for _, g := range []uint32{1, 2} {
		want, _ := x.Group(g)
		got, _ := y.Group(g)
		require.Equal(t, want, got)
	}
}

func TestBulkLoadInAnyOrder(t *testing.T) {
	t.Parallel()
	rng := seeded(t)
	var list []Entry
	for c := range 200 {
		list = append(list, chain(uint64(c)*1000, 1+rng.IntN(60))...)
	}
	rng.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
	x := open(t, Config{})
	require.NoError(t, x.BulkLoad(list))
	require.NoError(t, x.BulkLoad(list[:100]), "again changes nothing")
	s := x.Stats()
	require.EqualValues(t, len(list), s.Rooted)
	require.Zero(t, s.Stubs)

	y := open(t, Config{MaxSlots: uint32(len(list) / 2)})
	require.ErrorIs(t, y.BulkLoad(list), skep.Full)
	require.NoError(t, y.Check())
	require.LessOrEqual(t, y.Stats().Blocks+y.Stats().Stubs, uint64(len(list)/2))

	z := open(t, Config{})
	for i := 0; i < len(list); i += 97 { // piece by piece, orphans between the pieces
		require.NoError(t, z.BulkLoad(list[i:min(i+97, len(list))]))
	}
	require.Equal(t, x.counts, z.counts)
}

func TestDeadNamespaces(t *testing.T) {
	t.Parallel()
	x := open(t, Config{CapacityPages: 1000})
	for i, e := range chain(0, 100) {
		e.Namespace = 1 + uint32(i%2)
		insert(t, x, e)
	}
	x.SetDead(2)
	var removed int
	for {
		n, wrapped := x.SweepDead(7)
		removed += n
		if wrapped {
			break
		}
		require.NoError(t, x.Check())
	}
	require.Equal(t, 50, removed)
	x.ForgetDead(2)
	require.EqualValues(t, 50, x.Stats().Blocks)
	require.Equal(t, 1, depthOf(x, 0, 100))
}

func TestConfigIsValidated(t *testing.T) {
	t.Parallel()
	for _, cfg := range []Config{
		{Policy: "mru"}, {CapacityPages: -1}, {Cost: CostConfig{Rewrite: -1}}, {Cost: CostConfig{KeepMax: 2}},
		{Cost: CostConfig{HorizonMin: 2, HorizonMax: 1}},
	} {
		t.Run(fmt.Sprintf("%+v", cfg), func(t *testing.T) {
			_, err := New(cfg)
			require.ErrorIs(t, err, skep.Invalid)
		})
	}
}
