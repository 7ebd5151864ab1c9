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
	// Within is a block that is not worth writing again, of a tenant that holds no more than its share: drop it only
	// where nobody else's can go.
	Within
)

// ErrProtected is returned by Evict for a block that was leased or pinned after
// Survivors spoke, or is durable: write it again instead.
var ErrProtected = errors.New("index: the block is leased, pinned or durable")

type candidate struct {
	i      int // in refs
	pages  uint32
	tenant uint16
	wanted bool    // by a hint
	worth  bool    // writing again, by the policy or a hint
	shared bool    // its tenant has a share
	lost   bool    // its tenant is over its share
	rank   float64 // lower is worth more; among the wanted the wait, else the age
}

// Survivors appends a verdict for each block of a group of capacityPages and takes
// the pages it keeps from the rewrite budget. What is kept goes, best first: blocks
// with a live hint, the soonest use first; then what the policy keeps, the latest use
// first and, of the same use, in the order of refs. Tenants over their share lose
// their worst blocks until they are within it, and from then on none; dead namespaces lose all.
//
// Lookups go on meanwhile. What changes after a block was judged is found by the
// caller's compare-and-swap (Move) and by Evict.
func (x *Index) Survivors(now time.Time, capacityPages int64, refs []Ref, dst []Verdict) []Verdict {
	x.Tick(now)
	x.mu.RLock()
	guard := x.guard()
	x.mu.RUnlock()
	from := len(dst)
	dst = append(dst, make([]Verdict, len(refs))...)
	j := judging{x: x, now: now.UnixNano(), refs: refs, verdicts: dst[from:], over: map[uint16]int64{}, guard: guard}
	const piece = 512
	for i := 0; i < len(refs); i += piece {
		x.mu.RLock()
		j.c.Horizon = x.horizon()
		if x.counts.blocks > 0 {
			j.c.MeanPages = float64(x.counts.pages) / float64(x.counts.blocks)
		}
		for k := i; k < min(i+piece, len(refs)); k++ {
			j.verdicts[k] = j.judge(k)
		}
		x.mu.RUnlock()
	}
	j.rank()
	x.mu.Lock()
	x.budget.spend(j.must)
	j.choose(capacityPages)
	x.mu.Unlock()
	return dst
}

// judging is one run of Survivors.
type judging struct {
	x        *Index
	now      int64
	c        Context
	refs     []Ref
	verdicts []Verdict
	list     []candidate      // what may be kept
	must     int64            // pages of what must be
	over     map[uint16]int64 // pages a tenant is over its share, less what it loses
	guard    float64          // the part of a share that counts
}

// judge is the verdict on block i as far as it can be said of one block: what is worth
// keeping is a candidate, and to be dropped until it is chosen. REQUIRES: x.mu held.
func (j *judging) judge(i int) Verdict {
	x := j.x
	id := x.live(&j.refs[i].FP)
	if id == 0 || x.slots.at(id).loc != j.refs[i].Location {
		return Gone
	}
	s := x.slots.at(id)
	o := x.owners.at(s.owner)
	if x.dead[o.namespace] {
		return Drop
	}
	if s.has(flagDurable) || x.protected(ID(id)) {
		j.must += int64(s.pages)
		return Must
	}
	if _, seen := j.over[o.tenant]; !seen {
		j.over[o.tenant] = o.usage.over(j.guard, x.cfg.PageBytes)
	}
	cand := candidate{i: i, pages: s.pages, tenant: o.tenant, shared: o.usage.shareBytes > 0, rank: x.age(Tick(s.last))}
	b := BlockStat{Pages: s.pages, Depth: s.depth(), Uses: s.uses(), Touched: s.has(flagTouched), Age: cand.rank}
	says := noHint
	if s.has(flagHinted) {
		says, cand.rank = x.hints[ID(id)].judge(j.now, cand.rank)
	}
	cand.wanted = says == hintKeep
	cand.worth = cand.wanted || says != hintDrop && x.policy.Keep(b, j.c)
	if says == hintDrop || !cand.worth && !cand.shared {
		j.over[o.tenant] -= int64(s.pages)
		return Drop
	}
	j.list = append(j.list, cand)
	return Drop
}

// rank puts the best first and takes off the end what tenants over their share lose.
func (j *judging) rank() {
	slices.SortStableFunc(j.list, func(a, b candidate) int {
		if a.wanted != b.wanted {
			if a.wanted {
				return -1
			}
			return 1
		}
		if a.worth != b.worth {
			if a.worth {
				return -1
			}
			return 1
		}
		return cmp.Compare(a.rank, b.rank)
	})
	for i := len(j.list) - 1; i >= 0; i-- {
		if c := &j.list[i]; j.over[c.tenant] > 0 {
			j.over[c.tenant] -= int64(c.pages)
			c.lost = true
		}
	}
}

// choose spends the budget on the best. REQUIRES: x.mu held for writing.
func (j *judging) choose(capacityPages int64) {
	x := j.x
	_, ordered := x.policy.(Greedy) // has chosen already: all that lives is kept
	room := x.keepMax() * float64(capacityPages)
	for _, c := range j.list {
		if c.lost {
			continue
		}
		floor := float64(c.pages)
		if c.wanted { // hints may overdraw, as far as the burst
			floor -= x.budget.most
		}
		if !c.worth || !ordered && (x.budget.pages < floor || room < float64(c.pages)) {
			if c.shared {
				j.verdicts[c.i] = Within
				x.budget.spend(int64(c.pages))
			}
			continue
		}
		j.verdicts[c.i] = Keep
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

// Withdraw removes a block that was only accepted (its location is 0), of whatever class,
// unless a lease or pin protects it (ErrProtected). NotFound is returned when it is not
// there any more.
func (x *Index) Withdraw(fp Fingerprint) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	id := x.live(&fp)
	if id == 0 || x.slots.at(id).loc != 0 {
		return &skep.Error{Op: "withdraw", Kind: skep.NotFound}
	}
	s := x.slots.at(id)
	if !x.dead[x.owners.at(s.owner).namespace] && x.protected(ID(id)) {
		return ErrProtected
	}
	x.removeLocked(id)
	return nil
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
