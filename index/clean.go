package index

import (
	"cmp"
	"errors"
	"slices"
	"time"

	"github.com/skepkv/skep"
)

// Ref is a block as the catalog lists it in a group.
type Ref struct {
	FP       Fingerprint
	Location uint64
}

// Verdict says what to do with a block of a group that is cleaned.
type Verdict uint8

const (
	// Gone is a block the index does not have there: nothing lives in that place.
	Gone Verdict = iota
	// Drop is a block that is not worth writing again: Evict it.
	Drop
	// Keep is a block worth writing again; dropping it breaks no promise.
	Keep
	// Must is a leased, pinned or durable block: write it again.
	Must
)

// ErrProtected is returned by Evict for a block that was leased or pinned after
// Survivors spoke, or is durable: write it again instead.
var ErrProtected = errors.New("index: the block is leased, pinned or durable")

type candidate struct {
	i      int // in refs
	pages  uint32
	tenant uint16
	wanted bool    // by a hint
	rank   float64 // lower is worth more; among the wanted the wait, else the age
}

// Survivors appends a verdict for each block of a group of capacityPages and takes
// the pages it keeps from the rewrite budget. What is kept goes, best first: blocks
// with a live hint, the soonest use first; then what the policy keeps, the latest use
// first and, of the same use, in the order of refs. Tenants over their quota lose
// their worst blocks until they are within it; dead namespaces lose all.
func (x *Index) Survivors(now time.Time, capacityPages int64, refs []Ref, dst []Verdict) []Verdict {
	x.Tick(now)
	x.mu.Lock()
	defer x.mu.Unlock()
	from := len(dst)
	dst = append(dst, make([]Verdict, len(refs))...)
	verdicts := dst[from:]
	c := Context{Horizon: x.horizon()}
	if x.counts.blocks > 0 {
		c.MeanPages = float64(x.counts.pages) / float64(x.counts.blocks)
	}
	var list []candidate
	over := map[uint16]int64{} // pages a tenant is over its quota
	for i := range refs {
		id := x.live(&refs[i].FP)
		if id == 0 || x.slots.at(id).loc != refs[i].Location {
			continue // Gone
		}
		s := x.slots.at(id)
		o := x.owners.at(s.owner)
		switch {
		case x.dead[o.namespace]:
			verdicts[i] = Drop
			continue
		case s.has(flagDurable) || x.protected(ID(id)):
			verdicts[i] = Must
			x.budget.spend(int64(s.pages))
			continue
		}
		verdicts[i] = Drop
		cand := candidate{i: i, pages: s.pages, tenant: o.tenant, rank: x.age(Tick(s.last))}
		if _, seen := over[o.tenant]; !seen {
			over[o.tenant] = x.overQuota(o.tenant)
		}
		says := noHint
		if s.has(flagHinted) {
			says, cand.rank = x.hints[ID(id)].judge(now.UnixNano(), cand.rank)
		}
		b := BlockStat{Pages: s.pages, Depth: s.depth(), Uses: s.uses(), Touched: s.has(flagTouched), Age: cand.rank}
		switch {
		case says == hintDrop:
			over[o.tenant] -= int64(s.pages)
			continue
		case says == hintKeep:
			cand.wanted = true
		case !x.policy.Keep(b, c):
			over[o.tenant] -= int64(s.pages)
			continue
		}
		list = append(list, cand)
	}
	x.choose(list, over, capacityPages, verdicts)
	return dst
}

// choose spends the budget on the best of list.
func (x *Index) choose(list []candidate, over map[uint16]int64, capacityPages int64, verdicts []Verdict) {
	slices.SortStableFunc(list, func(a, b candidate) int {
		if a.wanted != b.wanted {
			if a.wanted {
				return -1
			}
			return 1
		}
		return cmp.Compare(a.rank, b.rank)
	})
	n := len(list)
	for i := n - 1; i >= 0; i-- { // worst first
		if c := &list[i]; over[c.tenant] > 0 {
			over[c.tenant] -= int64(c.pages)
			c.pages = 0 // given up
		}
	}
	_, ordered := x.policy.(Greedy) // has chosen already: all that lives is kept
	room := x.keepMax() * float64(capacityPages)
	for _, c := range list {
		if c.pages == 0 {
			continue
		}
		floor := float64(c.pages)
		if c.wanted { // hints may overdraw, as far as the burst
			floor -= x.budget.most
		}
		if !ordered && (x.budget.pages < floor || room < float64(c.pages)) {
			continue
		}
		verdicts[c.i] = Keep
		x.budget.spend(int64(c.pages))
		room -= float64(c.pages)
	}
}

func (x *Index) keepMax() float64 {
	if p, ok := x.policy.(Cost); ok {
		return p.c.KeepMax
	}
	return 1
}

func (x *Index) overQuota(id uint16) int64 {
	t := x.tenants[id]
	if t == nil || t.quotaBytes == 0 {
		return 0
	}
	return t.pages - t.quotaBytes/pageSize
}

// Evict removes a block that lies at loc unless a promise protects it (ErrProtected).
// NotFound is returned when it is not there any more.
func (x *Index) Evict(fp Fingerprint, loc uint64) (old Entry, err error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	id := x.live(&fp)
	if id == 0 || loc != AnyLocation && x.slots.at(id).loc != loc {
		return Entry{}, &skep.Error{Op: "evict", Kind: skep.NotFound}
	}
	s := x.slots.at(id)
	if !x.dead[x.owners.at(s.owner).namespace] && (s.has(flagDurable) || x.protected(ID(id))) {
		return Entry{}, ErrProtected
	}
	old = x.entry(s)
	x.removeLocked(id)
	return old, nil
}

// NextEvict is the block that lru or s3fifo drops next to come below the logical cap;
// Evict it. ok is false when the cap holds, when all that is left is protected, and
// always with the cost policy, whose only cap is the space the cleaner makes.
func (x *Index) NextEvict() (e Entry, ok bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.order == nil || x.closed || int64(x.counts.pages) <= x.cfg.LogicalPages {
		return Entry{}, false
	}
	const tries = 1024 // protected blocks passed over in one call
	for range tries {
		id := x.order.next()
		if id == 0 {
			return Entry{}, false
		}
		s := x.slots.at(uint32(id))
		if !s.has(flagDurable) && !x.protected(id) {
			return x.entry(s), true
		}
		x.order.passOver(id)
	}
	return Entry{}, false
}
