package index

import (
	"slices"

	"github.com/skepkv/skep"
)

// group is what lives in a stripe group, kept up to date block by block.
type group struct {
	blocks       uint32
	livePages    uint64
	touchedPages uint64 // of blocks used since they were written here
	lastPages    uint64 // Σ last · pages of live blocks: their mean age
	mustPages    uint64 // of durable blocks, all copies, which cleaning has to write again

	sharePages map[uint16]uint64 // of other blocks, all copies, by tenant that had a share; nil: none

	futile        Tick // when cleaning would have gained nothing; 0: a block is gone since, or who knows
	full          Futility
	unmarked      uint64 // leases.unmarked then
	sealed        bool
	sealedAt      Tick
	capacityPages uint64
}

func (g *group) add(s *slot, of *ownerRow, sign int64) {
	p := uint64(sign * int64(s.pages))
	g.blocks += uint32(sign)
	g.futile, g.full = 0, NoGain
	g.livePages += p
	g.lastPages += p * uint64(s.last)
	if s.has(flagTouched) {
		g.touchedPages += p
	}
	if s.has(flagDurable) {
		g.mustPages += p * uint64(s.copies())
	}
	if of.usage.counted {
		g.share(s, of, sign)
	}
}

// share counts a block of a tenant that had a share.
func (g *group) share(s *slot, of *ownerRow, sign int64) {
	if s.has(flagDurable) {
		return
	}
	if g.sharePages == nil {
		g.sharePages = map[uint16]uint64{}
	}
	if g.sharePages[of.tenant] += uint64(sign * s.copies() * int64(s.pages)); g.sharePages[of.tenant] == 0 {
		delete(g.sharePages, of.tenant)
	}
}

// within is how many pages of a group cleaning has to write again for shares. Of a tenant that is over its share it is
// the part that it may have. REQUIRES: x.mu held.
func (x *Index) within(g *group, guard float64) uint64 {
	n := 0.
	for id, pages := range g.sharePages {
		t := x.tenants[id]
		n += float64(pages) * min(1, guard*float64(t.shareBytes/x.cfg.PageBytes)/float64(max(t.pages, 1)))
	}
	return uint64(n)
}

// touch moves the block's share of the statistics; s.last and its flag are still old.
func (g *group) touch(s *slot, now uint32) {
	g.lastPages += uint64(s.pages) * uint64(now-s.last)
	if !s.has(flagTouched) {
		g.touchedPages += uint64(s.pages)
	}
}

// group is the statistics of a group, made when they are not there. REQUIRES: x.mu
// held for writing.
func (x *Index) group(id uint32) *group {
	if x.recent.g != nil && x.recent.id == id {
		return x.recent.g
	}
	g := x.groups[id]
	if g == nil {
		g = &group{}
		x.groups[id] = g
	}
	x.recent.id, x.recent.g = id, g
	return g
}

// GroupStat is a sealed group as a policy sees it. Ages are in capacities put: 1 is
// as long ago as it takes to write the devices full once.
type GroupStat struct {
	Group         uint32
	Blocks        uint32
	LivePages     uint64
	TouchedPages  uint64 // live, and used since they were written here
	MustPages     uint64 // live, and durable or within a tenant's share, all copies: cleaning has to write them again
	CapacityPages uint64
	Futile        bool // cleaning it gained nothing lately
	SealedAge     float64
	MeanAge       float64 // of the last use, or else the write, of the live pages
}

// SealGroup makes a full group a candidate for cleaning. capacityPages is what it can
// hold; sealedAt is 0 for now, or what SealedAt said before a restart.
func (x *Index) SealGroup(id uint32, capacityPages int64, sealedAt Tick) error {
	if capacityPages < 1 {
		return skep.Invalidf("seal group", "capacity in pages", capacityPages, "at least 1")
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	g := x.group(id)
	g.sealed, g.capacityPages, g.sealedAt = true, uint64(capacityPages), sealedAt
	if sealedAt == 0 {
		g.sealedAt = x.Clock()
	}
	x.victims.sealed.Add(id)
	x.victims.noteHollow(id, g)
	return nil
}

// futileFor is for how long, in capacities put, a futile group comes behind all others: promises on its blocks end.
const futileFor = 1. / 16

// Futility is what is known of a group whose cleaning gains nothing, as things are.
type Futility uint8

const (
	// NoGain is no more than that.
	NoGain Futility = iota
	// Held is that it gains nothing either once all has gone that may go: the rest is leased, pinned or durable.
	Held
	// Full is that it gains nothing either once the promises have ended as well.
	Full
)

// Futile says that cleaning a group gains nothing, as things are, and what more is known.
func (x *Index) Futile(id uint32, full Futility) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if g := x.groups[id]; g != nil {
		g.futile, g.full, g.unmarked = max(1, x.Clock()), full, x.unmarked()
	}
}

// Stuck says that nothing that may go makes a group's cleaning gain, as Futile said last, and lately; false: a block is
// gone since, or promises have ended that held the group, or who knows.
func (x *Index) Stuck(id uint32) bool {
	x.mu.RLock()
	defer x.mu.RUnlock()
	g := x.groups[id]
	return g != nil && x.futile(g) && (g.full == Full || g.full == Held && g.unmarked == x.unmarked())
}

// futile says that cleaning g gained nothing lately. REQUIRES: x.mu held.
func (x *Index) futile(g *group) bool { return g.futile > 0 && x.age(g.futile) < futileFor }

// SealedAt is when a group was sealed, 0 when it is not.
func (x *Index) SealedAt(id uint32) Tick {
	x.mu.RLock()
	defer x.mu.RUnlock()
	if g := x.groups[id]; g != nil && g.sealed {
		return g.sealedAt
	}
	return 0
}

// FreeGroup forgets a cleaned group. Blocks that still claim to lie in it keep being
// counted there.
func (x *Index) FreeGroup(id uint32) {
	x.mu.Lock()
	defer x.mu.Unlock()
	g := x.groups[id]
	switch {
	case g == nil:
	case g.blocks == 0:
		delete(x.groups, id)
		x.recent.g = nil
	default:
		g.sealed = false
	}
	x.victims.sealed.Remove(id)
	x.victims.hollow.Remove(id)
}

// SetClock moves the clock forward to t, as a checkpoint recorded it, so that ages
// survive a restart. A clock that is further stays.
func (x *Index) SetClock(t Tick) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if pages := uint64(t) * x.tickPages; pages > x.clockPages.Load() {
		x.clockPages.Store(pages)
	}
}

// SetCapacity says that the devices now have room for so many pages; the logical cap
// of lru and s3fifo becomes logicalPages, or the same when that is 0. The length of a
// Tick stays.
func (x *Index) SetCapacity(pages, logicalPages int64) error {
	if pages < 0 || logicalPages < 0 {
		return skep.Invalidf("set capacity", "pages", min(pages, logicalPages), "at least 0")
	}
	if logicalPages == 0 {
		logicalPages = pages
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.cfg.CapacityPages, x.cfg.LogicalPages = pages, logicalPages
	x.budget.init(x.cfg)
	return nil
}

// Group is the statistics of one group.
func (x *Index) Group(id uint32) (GroupStat, bool) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	g := x.groups[id]
	if g == nil {
		return GroupStat{}, false
	}
	return x.groupStat(id, g, x.guard()), true
}

// Groups lists the sealed groups, lowest number first.
func (x *Index) Groups() []GroupStat {
	x.mu.RLock()
	defer x.mu.RUnlock()
	list, guard := make([]GroupStat, 0, len(x.groups)), x.guard()
	for id, g := range x.groups {
		if g.sealed {
			list = append(list, x.groupStat(id, g, guard))
		}
	}
	slices.SortFunc(list, func(a, b GroupStat) int { return int(int64(a.Group) - int64(b.Group)) })
	return list
}

func (x *Index) groupStat(id uint32, g *group, guard float64) GroupStat {
	s := GroupStat{
		Group: id, Blocks: g.blocks, LivePages: g.livePages, TouchedPages: g.touchedPages, MustPages: g.mustPages + x.within(g, guard),
		CapacityPages: g.capacityPages, Futile: x.futile(g), SealedAge: x.age(g.sealedAt),
	}
	if g.livePages > 0 {
		s.MeanAge = x.age(Tick(g.lastPages / g.livePages))
	}
	return s
}
