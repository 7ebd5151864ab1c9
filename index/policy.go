package index

import (
	"fmt"
	"math"
	"time"

	"github.com/skepkv/skep"
)

// Policy decides what the cleaner takes and what of it survives. It holds no state:
// the same numbers give the same answer.
type Policy interface {
	Name() string
	// Worth is what a group is worth, the lowest is cleaned first; what is spared goes only
	// where there is nothing else.
	Worth(g GroupStat) (spared bool, worth float64)
	// Keep says whether a block of the victim is worth writing again.
	Keep(b BlockStat, c Context) bool
}

// BlockStat is a block as a policy sees it.
type BlockStat struct {
	Pages   uint32
	Depth   uint32
	Uses    uint8   // since it was put
	Touched bool    // used since it was written where it is
	Age     float64 // since the last use, or else the write, in capacities put
}

// Context is what a policy may know beyond one block.
type Context struct {
	Horizon   float64 // how far back a use counts at present, in capacities put
	MeanPages float64 // of a stored block
}

// CostConfig tunes the cost policy. Zero fields take the defaults. On the traces
// (package sim) freshness 1 to 2, sealed share 0.4 to 1 and shortest horizons of 0.2 to
// 0.4 do about as well; the budget is what trades writes for hits.
type CostConfig struct {
	// Base and PerPage are what a read costs: SWARM eq. 6's T_base and T_transfer.
	// Defaults 80 µs and 1 µs.
	Base, PerPage time.Duration
	// Rewrite is how many pages may be written again for each page put: write
	// amplification stays below 1+Rewrite, plus one Burst. Default 0.17.
	Rewrite float64
	// Burst is how much of that may be saved up, as a part of the capacity. Default 0.1.
	Burst float64
	// HorizonMin is how far back a use counts when the budget is empty, HorizonMax when
	// it is full, in capacities put. Defaults 0.2 and 1.
	HorizonMin, HorizonMax float64
	// KeepMax is the largest part of a group that the policy and hints may keep, so
	// that cleaning gains space; promises come on top. Default 0.8.
	KeepMax float64
	// Freshness is the weight of a group's age against what of it is in use, and
	// SealedShare how much of the age is the group's own rather than its blocks' last
	// use. Defaults 1.3 and 0.7.
	Freshness, SealedShare float64
	// Probation is how much is put, in capacities, before a group that was filled may be
	// cleaned while another gains space: so long nothing new is dropped, though nobody has
	// used it yet and all that is older was used. Default 0.1.
	Probation float64
}

func (c *CostConfig) ensureDefaults() {
	def := func(p *float64, v float64) {
		if *p == 0 {
			*p = v
		}
	}
	if c.Base == 0 {
		c.Base = 80 * time.Microsecond
	}
	if c.PerPage == 0 {
		c.PerPage = time.Microsecond
	}
	def(&c.Rewrite, 0.17)
	def(&c.Burst, 0.1)
	def(&c.HorizonMin, 0.2)
	def(&c.HorizonMax, 1)
	def(&c.KeepMax, 0.8)
	def(&c.Freshness, 1.3)
	def(&c.SealedShare, 0.7)
	def(&c.Probation, 0.1)
}

func (c *CostConfig) validate() error {
	for _, f := range []struct {
		name    string
		v, most float64
	}{
		{"base in ns", float64(c.Base), math.MaxInt64}, {"time per page in ns", float64(c.PerPage), math.MaxInt64},
		{"rewrite", c.Rewrite, 100}, {"burst", c.Burst, 1},
		{"shortest horizon", c.HorizonMin, c.HorizonMax}, {"longest horizon", c.HorizonMax, 100},
		{"keep", c.KeepMax, 1}, {"freshness", c.Freshness, 1000}, {"sealed share", c.SealedShare, 1}, {"probation", c.Probation, 1},
	} {
		if !(f.v >= 0 && f.v <= f.most) {
			return skep.Invalidf("index", "cost policy's "+f.name, f.v, fmt.Sprintf("0 to %v", f.most))
		}
	}
	return nil
}

// Cost is the default policy: cost-effectiveness with aging.
//
// SWARM (eq. 6) ranks what is cached by S = f · (T_base + s·T_transfer) / s. Without
// aging that is LFU, which keeps what was popular once. So a use earns a credit of
// time instead, in proportion to S for one use (GreedyDual: the clock of pages put is
// the inflation that rises under every score), and a block survives cleaning while
// its credit lasts. A block that nobody used since it was written has none: f is 0.
type Cost struct{ c CostConfig }

// NewCost makes the policy; zero fields of c take their defaults. Invalid is returned
// for a field outside its limits.
func NewCost(c CostConfig) (Cost, error) {
	c.ensureDefaults()
	return Cost{c}, c.validate()
}

// Name is "cost".
func (p Cost) Name() string { return "cost" }

// perPage is eq. 6 for one use of a block of so many pages.
func (p Cost) perPage(pages float64) float64 {
	return float64(p.c.Base)/max(pages, 1) + float64(p.c.PerPage)
}

// Keep is: used since it was written, and
//
//	age ≤ horizon · min(2, S(pages) / S(mean pages))
func (p Cost) Keep(b BlockStat, c Context) bool {
	if !b.Touched {
		return false
	}
	credit := 1.0
	if c.MeanPages > 0 {
		credit = min(2, p.perPage(float64(b.Pages))/p.perPage(c.MeanPages))
	}
	return b.Age <= c.Horizon*credit
}

// Score is what a group is worth, the lowest is cleaned first:
//
//	(touched pages / capacity + freshness / (0.7·age of the group + 0.3·mean age of its blocks)) / (1 - durable pages / capacity)
//
// What cleaning must write again is no gain: by age alone a group of old durable blocks
// would be the worst, and be written again for ever.
// Young groups are spared, their blocks had no time to be used yet (on the traces a
// block's chance of being used peaks after a few percent of a turnover); of groups
// of an age the one with the least in use goes. A group with nothing alive is free.
func (p Cost) Score(g GroupStat) float64 {
	if g.LivePages == 0 {
		return -1
	}
	age := p.c.SealedShare*g.SealedAge + (1-p.c.SealedShare)*g.MeanAge
	capacity := float64(max(g.CapacityPages, 1))
	gain := max(1-float64(g.MustPages)/capacity, 0.01)
	return (float64(g.TouchedPages)/capacity + p.c.Freshness/(age+0.01)) / gain
}

// probationGain is the part of a group, one in so many, that must be no Durable block for its
// cleaning to spare one on probation.
const probationGain = 8

// OnProbation says whether what a group holds was put so lately that it had no time to be used.
func (p Cost) OnProbation(g GroupStat) bool { return g.LivePages > 0 && g.SealedAge < p.c.Probation }

// Worth is the group's Score; spared are those on probation, and those that gain no space.
func (p Cost) Worth(g GroupStat) (bool, float64) {
	return p.OnProbation(g) || g.MustPages*probationGain > g.CapacityPages*(probationGain-1), p.Score(g)
}

// Greedy cleans for a policy that has chosen already which blocks live (lru, s3fifo):
// the group with the most dead space goes, all that lives in it stays.
type Greedy struct{ name string }

// Name is the order's: "lru" or "s3fifo".
func (p Greedy) Name() string { return p.name }

// Keep is always true.
func (p Greedy) Keep(BlockStat, Context) bool { return true }

// Worth is the part of the group that is alive.
func (p Greedy) Worth(g GroupStat) (bool, float64) {
	return false, float64(g.LivePages) / float64(max(g.CapacityPages, 1))
}

func newPolicy(cfg Config) (Policy, error) {
	switch cfg.Policy {
	case "", "cost":
		return NewCost(cfg.Cost)
	case "lru", "s3fifo":
		return Greedy{cfg.Policy}, nil
	}
	return nil, skep.Invalidf("index", "policy", cfg.Policy, "cost, lru or s3fifo")
}

// budget is the pages that may be written again: each page put earns a part of one.
type budget struct {
	rewrite, most float64
	horizons      [2]float64
	pages         float64 // -most to most
}

func (b *budget) init(cfg Config) {
	c := cfg.Cost
	c.ensureDefaults()
	b.rewrite = c.Rewrite
	b.most = max(1, c.Burst*float64(cfg.CapacityPages))
	b.horizons = [2]float64{c.HorizonMin, c.HorizonMax}
	b.pages = min(b.pages, b.most)
}

func (b *budget) earn(put int64)    { b.pages = min(b.most, b.pages+b.rewrite*float64(put)) }
func (b *budget) spend(pages int64) { b.pages = max(-b.most, b.pages-float64(pages)) }

// horizon is how far back a use counts: far when there is budget to keep what was
// used long ago, near when there is not.
func (x *Index) horizon() float64 {
	b := &x.budget
	return b.horizons[0] + (b.horizons[1]-b.horizons[0])*max(0, b.pages)/b.most
}
