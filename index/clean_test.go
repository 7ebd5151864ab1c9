package index

import (
	"cmp"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
)

func refsOf(list []Entry) []Ref {
	refs := make([]Ref, len(list))
	for i, e := range list {
		refs[i] = Ref{e.FP, e.Location}
	}
	return refs
}

// rich is an index whose rewrite budget is full.
func rich(t *testing.T, cfg Config) *Index {
	x := open(t, cfg)
	x.budget.pages = x.budget.most
	return x
}

func singles(group uint32, base uint64, n int) []Entry {
	list := make([]Entry, n)
	for i := range list {
		list[i] = Entry{FP: fpOf(base + uint64(i)), Opaque: true, Location: at(group, uint64(i)+1), Pages: 1, Tenant: 1}
	}
	return list
}

func TestSurvivors(t *testing.T) {
	t.Parallel()
	x := rich(t, Config{CapacityPages: 1000})
	list := singles(1, 0, 7)
	list[4].Durable = true
	list[5].Namespace = 9
	insert(t, x, list...)
	x.Touch(list[0].FP, list[1].FP, list[5].FP)
	x.Move(list[1].FP, list[1].Location, at(2, 1)) // lives elsewhere by now
	x.SetDead(9)
	_, id, _ := x.Probe(list[3].FP)
	_, err := x.Grant(LeaseRequest{Deepest: id, FP: list[3].FP, Until: second(10)})
	require.NoError(t, err)
	x.Remove(list[6].FP, AnyLocation)

	got := x.Survivors(second(1), 1000, refsOf(list), nil)
	require.Equal(t, []Verdict{
		Keep, // touched
		Gone, // moved
		Drop, // never used
		Must, // leased
		Must, // durable
		Drop, // used, but of a dead namespace
		Gone, // removed
	}, got)
	_, err = x.Evict(list[4].FP, list[4].Location)
	require.ErrorIs(t, err, ErrProtected)
	_, err = x.Evict(list[5].FP, list[5].Location)
	require.NoError(t, err)
	_, err = x.Evict(list[0].FP, at(9, 9))
	require.ErrorIs(t, err, skep.NotFound)
}

func TestTheHorizonShrinksWithTheBudget(t *testing.T) {
	t.Parallel()
	x := rich(t, Config{CapacityPages: 1000})
	list := singles(1, 0, 1)
	insert(t, x, list...)
	x.Touch(list[0].FP)
	insert(t, x, singles(2, 100, 500)...) // half a turnover ago
	require.InDelta(t, 1, x.Stats().RewriteHorizon, .01)
	require.Equal(t, []Verdict{Keep}, x.Survivors(second(0), 100, refsOf(list), nil))

	x.budget.pages = 1
	require.InDelta(t, .2, x.Stats().RewriteHorizon, .01)
	require.Equal(t, []Verdict{Drop}, x.Survivors(second(0), 100, refsOf(list), nil))
}

func TestTheBudgetAndTheShareOfAGroupBoundWhatIsKept(t *testing.T) {
	t.Parallel()
	x := rich(t, Config{CapacityPages: 1000}) // budget 100
	list := singles(1, 0, 200)
	insert(t, x, list...)
	for _, e := range list {
		x.Touch(e.FP)
	}
	count := func(v []Verdict) (n int) {
		for _, k := range v {
			if k == Keep {
				n++
			}
		}
		return n
	}
	require.Equal(t, 80, count(x.Survivors(second(0), 100, refsOf(list[:100]), nil)), "KeepMax of a group of 100")
	require.Equal(t, 20, count(x.Survivors(second(0), 100, refsOf(list[100:]), nil)), "what the budget has left")
}

func TestTenantsOverTheirShareGiveFirst(t *testing.T) {
	t.Parallel()
	for _, page := range []int64{0, 512} {
		tenantsOverTheirShare(t, page)
	}
}

// tenantsOverTheirShare has pages of so many bytes; 0: the default.
func tenantsOverTheirShare(t *testing.T, page int64) {
	x := rich(t, Config{CapacityPages: 1000, PageBytes: page})
	page = cmp.Or(page, 4096)
	list := singles(1, 0, 10)
	list[8].Tenant, list[9].Tenant = 2, 2
	insert(t, x, list...)
	for _, e := range list { // used one after the other, half a percent of a turnover apart
		x.Touch(e.FP)
		insert(t, x, singles(2, 1000+5*uint64(e.Location&0xff), 5)...)
	}
	// Tenant 1 holds 8 + 50 pages and may hold 55: it gives the 3 used longest ago.
	require.NoError(t, x.SetShare(1, 55*page))
	require.ErrorIs(t, x.SetShare(1, -1), skep.Invalid)
	got := x.Survivors(second(0), 1000, refsOf(list), nil)
	require.Equal(t, []Verdict{Drop, Drop, Drop, Keep, Keep, Keep, Keep, Keep, Keep, Keep}, got)
	used, share := x.Usage(1)
	require.Equal(t, [2]int64{58 * page, 55 * page}, [2]int64{used, share})
}

// What nobody used goes, but for that of a tenant within its share, in all that others' blocks leave.
func TestTenantsWithinTheirShareKeepTheirBlocks(t *testing.T) {
	t.Parallel()
	x := rich(t, Config{CapacityPages: 1000})
	a, b := singles(1, 0, 10), singles(1, 100, 40)
	for i := range a {
		a[i].Tenant, a[i].Copies = 2, 2
	}
	insert(t, x, append(a, b...)...)
	require.NoError(t, x.SetShare(2, 10*4096)) // after the fact: they are counted
	require.NoError(t, x.Check())
	verdicts := func() []Verdict { return x.Survivors(second(0), 1000, refsOf(a), nil) }
	require.Equal(t, slices.Repeat([]Verdict{Within}, 10), verdicts())
	g, _ := x.Group(1)
	require.EqualValues(t, 20, g.MustPages, "both copies are written again")

	require.NoError(t, x.SetShare(2, 8*4096))
	require.Equal(t, append([]Verdict{Drop, Drop}, slices.Repeat([]Verdict{Within}, 8)...), verdicts(), "two are too many")
	g, _ = x.Group(1)
	require.EqualValues(t, 16, g.MustPages)
	require.NoError(t, x.SetShare(2, 0))
	require.Equal(t, slices.Repeat([]Verdict{Drop}, 10), verdicts(), "it has no share any more")
	require.NoError(t, x.Check())

	require.NoError(t, x.SetShare(2, 10*4096))
	for _, e := range b {
		_, there := x.Remove(e.FP, AnyLocation)
		require.True(t, there)
	}
	require.Equal(t, append([]Verdict{Drop}, slices.Repeat([]Verdict{Within}, 9)...), verdicts(), "a part of all there is may always go")
}

// A group that gained nothing is looked at last, for a while, or until a block of it is gone.
func TestAFutileGroupIsNoVictimWhileThereIsAnother(t *testing.T) {
	t.Parallel()
	x := rich(t, Config{CapacityPages: 1000})
	list := append(singles(1, 0, 10), singles(2, 100, 10)...)
	insert(t, x, list...)
	require.NoError(t, x.SealGroup(1, 10, 0))
	insert(t, x, singles(3, 1000, 200)...) // no group is on probation
	require.NoError(t, x.SealGroup(2, 10, 0))
	insert(t, x, singles(3, 2000, 200)...)
	victim := func() uint32 {
		g, ok := x.PickVictim(nil)
		require.True(t, ok)
		return g.Group
	}
	require.EqualValues(t, 1, victim(), "the older one")
	x.Futile(1, NoGain)
	require.EqualValues(t, 2, victim())
	x.Futile(2, NoGain)
	require.EqualValues(t, 1, victim(), "there is no other")
	x.Remove(list[15].FP, AnyLocation)
	require.EqualValues(t, 2, victim(), "it has lost a block")
	x.Futile(2, NoGain)
	insert(t, x, singles(3, 3000, 100)...)
	x.Futile(1, NoGain)
	require.EqualValues(t, 2, victim(), "that was long ago")
}

// Of a group that promises hold it is not known what may go once one has ended; of one full of durable blocks it is.
func TestAHeldGroupIsNotStuckOncePromisesEnd(t *testing.T) {
	t.Parallel()
	x := rich(t, Config{CapacityPages: 1000})
	list := chain(0, 10)
	insert(t, x, list...)
	require.NoError(t, x.SealGroup(1, 10, 0))
	for _, full := range []Futility{NoGain, Held, Full} {
		x.Futile(1, full)
		require.Equal(t, full != NoGain, x.Stuck(1))
		id := grant(t, x, 0, 4, 0, second(9))
		x.Tick(second(1))
		require.Equal(t, full != NoGain, x.Stuck(1))
		x.Release(id)
		x.Tick(second(1))
		require.Equal(t, full == Full, x.Stuck(1))
	}
}

func TestHints(t *testing.T) {
	t.Parallel()
	x := rich(t, Config{CapacityPages: 1000, MaxHints: 8})
	list := singles(1, 0, 8)
	insert(t, x, list...)
	now := second(0)
	for i, h := range []Hint{
		{NextUse: now.Add(time.Minute)},
		{Steps: 2, Until: now.Add(time.Hour)},
		{Until: now.Add(5 * time.Minute)},
		{Drop: true},
		{NextUse: now.Add(time.Hour), Until: now.Add(2 * time.Minute)},
	} {
		require.NoError(t, x.SetHint(now, list[i].FP, h))
	}
	x.Touch(list[3].FP)
	v := func(at time.Time) []Verdict { return x.Survivors(at, 1000, refsOf(list[:6]), nil) }
	require.Equal(t, []Verdict{Keep, Keep, Keep, Drop, Keep, Drop}, v(now))
	require.Equal(t, []Verdict{Drop, Keep, Keep, Drop, Drop, Drop}, v(now.Add(2*time.Minute)), "believed for twice the wait, or until")
	require.Equal(t, []Verdict{Drop, Keep, Drop, Drop, Drop, Drop}, v(now.Add(5*time.Minute)))
	require.Equal(t, 2, x.Stats().Hints, "void ones are forgotten")

	require.ErrorIs(t, x.SetHint(now, fpOf(999), Hint{Drop: true}), skep.NotFound)
	require.ErrorIs(t, x.SetHint(now, list[0].FP, Hint{Steps: 1}), skep.Invalid)
	for i := range 6 {
		err := x.SetHint(now, list[2+i].FP, Hint{Drop: true})
		if i < 5 {
			require.NoError(t, err)
		} else {
			require.ErrorIs(t, err, skep.Quota)
		}
	}
	require.NoError(t, x.SetHint(now, list[3].FP, Hint{}), "taken away")
	require.NoError(t, x.SetHint(now, list[7].FP, Hint{Drop: true}))
	x.Remove(list[7].FP, AnyLocation)
}

func TestSoonestHintsAreKeptWhenTheBudgetIsShort(t *testing.T) {
	t.Parallel()
	x := rich(t, Config{CapacityPages: 1000})
	list := singles(1, 0, 4)
	insert(t, x, list...)
	x.Touch(list[3].FP)
	for i, wait := range []time.Duration{30, 10, 20} {
		require.NoError(t, x.SetHint(second(0), list[i].FP, Hint{NextUse: second(0).Add(wait * time.Second)}))
	}
	x.budget.pages = -x.budget.most + 2
	require.Equal(t, []Verdict{Drop, Keep, Keep, Drop}, x.Survivors(second(0), 1000, refsOf(list), nil))
}

func TestCostPolicy(t *testing.T) {
	t.Parallel()
	p, err := NewCost(CostConfig{})
	require.NoError(t, err)
	c := Context{Horizon: .5, MeanPages: 1000}
	for _, k := range []struct {
		name string
		b    BlockStat
		want bool
	}{
		{"never used", BlockStat{Pages: 1000, Age: 0}, false},
		{"used lately", BlockStat{Pages: 1000, Touched: true, Age: .4}, true},
		{"used long ago", BlockStat{Pages: 1000, Touched: true, Age: .6}, false},
		{"small blocks earn more per page", BlockStat{Pages: 10, Touched: true, Age: .9}, true},
		{"but no more than twice", BlockStat{Pages: 1, Touched: true, Age: 1.1}, false},
		{"large ones less", BlockStat{Pages: 100000, Touched: true, Age: .49}, false},
	} {
		require.Equal(t, k.want, p.Keep(k.b, c), k.name)
	}
	groups := []GroupStat{
		{Group: 1, LivePages: 90, TouchedPages: 0, CapacityPages: 100, SealedAge: .05, MeanAge: .05},
		{Group: 2, LivePages: 90, TouchedPages: 50, CapacityPages: 100, SealedAge: .9, MeanAge: .4},
		{Group: 3, LivePages: 90, TouchedPages: 10, CapacityPages: 100, SealedAge: .9, MeanAge: .8},
	}
	require.Equal(t, 2, first(p, groups), "old and little in use")
	require.Equal(t, 1, first(p, groups[:2]), "old before young")
	require.Equal(t, 3, first(p, append(groups, GroupStat{CapacityPages: 100})), "what is dead is free")
	require.Equal(t, "cost", p.Name())
}

// What was put lately is spared while anything else gains space, whatever else speaks for that.
func TestProbation(t *testing.T) {
	t.Parallel()
	p, err := NewCost(CostConfig{Freshness: .01})
	require.NoError(t, err)
	young := GroupStat{LivePages: 100, CapacityPages: 100, SealedAge: .09, MeanAge: .09}
	used := GroupStat{LivePages: 100, TouchedPages: 100, MustPages: 85, CapacityPages: 100, SealedAge: .11, MeanAge: .01}
	durable := GroupStat{LivePages: 100, TouchedPages: 100, MustPages: 95, CapacityPages: 100, SealedAge: 2, MeanAge: 2}
	require.Greater(t, p.Score(used), p.Score(young), "the score alone would take the young one")
	require.Equal(t, 1, first(p, []GroupStat{young, used}))
	require.Equal(t, 0, first(p, []GroupStat{young, durable}), "what must be kept gains nothing")
	require.Equal(t, 2, first(p, []GroupStat{young, used, {CapacityPages: 100}}), "what is dead is free")
	older := young
	older.SealedAge = .11
	require.Equal(t, 1, first(p, []GroupStat{used, older}), "after its probation the score decides")
	_, err = NewCost(CostConfig{Probation: 2})
	require.ErrorIs(t, err, skep.Invalid)
}

func TestGreedyPolicy(t *testing.T) {
	t.Parallel()
	x := open(t, Config{Policy: "lru"})
	require.Equal(t, "lru", x.policy.Name())
	require.Equal(t, 1, first(x.policy, []GroupStat{
		{LivePages: 50, CapacityPages: 100}, {LivePages: 60, CapacityPages: 200}, {LivePages: 90, CapacityPages: 100},
	}))
	require.True(t, x.policy.Keep(BlockStat{}, Context{}))
}

func TestGroupsAreCandidatesWhileSealed(t *testing.T) {
	t.Parallel()
	x := open(t, Config{CapacityPages: 100})
	_, ok := x.PickVictim(nil)
	require.False(t, ok)
	insert(t, x, singles(1, 0, 50)...)
	insert(t, x, singles(2, 100, 50)...)
	_, ok = x.PickVictim(nil)
	require.False(t, ok, "both are open")
	require.ErrorIs(t, x.SealGroup(1, 0, 0), skep.Invalid)
	require.NoError(t, x.SealGroup(1, 50, 0))
	require.NoError(t, x.SealGroup(2, 50, 40))
	require.EqualValues(t, 40, x.SealedAt(2))
	require.Zero(t, x.SealedAt(3))
	require.Len(t, x.Groups(), 2)
	g, ok := x.PickVictim(func(id uint32) bool { return id == 1 })
	require.True(t, ok)
	require.EqualValues(t, 1, g.Group)
	require.EqualValues(t, 50, g.LivePages)
	x.FreeGroup(1)
	g, _ = x.PickVictim(nil)
	require.EqualValues(t, 2, g.Group)
}

func TestExactLRUOrder(t *testing.T) {
	t.Parallel()
	x := open(t, Config{Policy: "lru", CapacityPages: 10})
	list := singles(1, 0, 12)
	insert(t, x, list[:10]...)
	_, ok := x.NextEvict()
	require.False(t, ok, "within the cap")
	x.Touch(list[0].FP)
	insert(t, x, list[10:]...)
	_, id, _ := x.Probe(list[1].FP)
	_, err := x.Grant(LeaseRequest{Deepest: id, FP: list[1].FP, Until: second(9)})
	require.NoError(t, err)
	for _, want := range []int{2, 3} { // 0 was used, 1 is leased
		e, ok := x.NextEvict()
		require.True(t, ok)
		require.Equal(t, list[want].Location, e.Location)
		_, err := x.Evict(e.FP, e.Location)
		require.NoError(t, err)
	}
	_, ok = x.NextEvict()
	require.False(t, ok)
}

func TestS3FIFOKeepsWhatCameBack(t *testing.T) {
	t.Parallel()
	x := open(t, Config{Policy: "s3fifo", CapacityPages: 100})
	hot := singles(1, 0, 5)
	insert(t, x, hot...)
	var base uint64 = 1000
	for range 30 {
		for _, e := range hot {
			x.Touch(e.FP)
		}
		insert(t, x, singles(2, base, 20)...) // a scan
		base += 20
		for {
			e, ok := x.NextEvict()
			if !ok {
				break
			}
			_, err := x.Evict(e.FP, e.Location)
			require.NoError(t, err)
		}
	}
	for _, e := range hot {
		_, ok := x.Resolve(e.FP)
		require.True(t, ok)
	}
	// A block that was evicted from the small queue and returns is not on probation.
	e, ok := x.NextEvict()
	require.False(t, ok)
	insert(t, x, singles(3, 5000, 1)...)
	e, ok = x.NextEvict()
	require.True(t, ok)
	_, err := x.Evict(e.FP, e.Location)
	require.NoError(t, err)
	_, _, err = x.Insert(e)
	require.NoError(t, err)
	f := cut(&e.FP)
	require.EqualValues(t, main+1, x.order.(*s3fifo).nodes.at(x.find(&f)).queue)
}

func TestCapacityMayChange(t *testing.T) {
	t.Parallel()
	x := rich(t, Config{CapacityPages: 1000})
	list := singles(1, 0, 1)
	insert(t, x, list...)
	x.Touch(list[0].FP)
	insert(t, x, singles(2, 100, 500)...)
	x.budget.pages = 1 // the horizon is a fifth of the capacity
	require.Equal(t, []Verdict{Drop}, x.Survivors(second(0), 100, refsOf(list), nil))
	require.NoError(t, x.SetCapacity(10_000, 0))
	require.Equal(t, []Verdict{Keep}, x.Survivors(second(0), 100, refsOf(list), nil), "half a turnover is a twentieth now")
	require.ErrorIs(t, x.SetCapacity(-1, 0), skep.Invalid)
}

// first is the place in groups of the one that is cleaned first.
func first(p Policy, groups []GroupStat) int {
	list := slices.Clone(groups)
	rank(p, list)
	return slices.Index(groups, list[0])
}
