package index

import (
	"cmp"
	"slices"
	"sync"

	"github.com/RoaringBitmap/roaring/v2"
)

// How many groups are looked at for a victim before the lock is given back, and how many of
// those that were looked at before are looked at again.
const (
	victimStep = 4096
	victimPool = 256
)

// victims is what choosing a victim remembers, so that a choice among 300,000 groups costs
// what one among some thousands does: it goes round the sealed groups, a step at a time, and
// the best it saw are weighed again with each step. Where one step sees all, the choice is
// exact.
type victims struct {
	sealed *roaring.Bitmap // guarded by x.mu
	hollow *roaring.Bitmap // sealed, and no block lives in it; guarded by x.mu

	mu     sync.Mutex // before x.mu
	next   uint32     // the first group of the next step
	pool   []uint32   // the best of those seen
	looked uint64     // by the choice that is made
}

func newVictims() victims { return victims{sealed: roaring.New(), hollow: roaring.New()} }

// noteHollow keeps hollow right. REQUIRES: x.mu held for writing.
func (v *victims) noteHollow(id uint32, g *group) {
	if g.sealed && g.blocks == 0 {
		v.hollow.Add(id)
	} else {
		v.hollow.Remove(id)
	}
}

// Hollow is the first sealed group in which nothing lives, among those the caller admits; of futile ones, which could not
// be cleaned lately, only where all is set and there is no other. It admits groups to which nobody writes any more: what
// was written until then is seen here.
func (x *Index) Hollow(all bool, admit func(group uint32) bool) (uint32, bool) {
	x.mu.RLock()
	var ids, futile []uint32
	for _, id := range x.victims.hollow.ToArray() {
		if x.futile(x.groups[id]) {
			futile = append(futile, id)
		} else {
			ids = append(ids, id)
		}
	}
	x.mu.RUnlock()
	if all {
		ids = append(ids, futile...)
	}
	for _, id := range ids {
		if (admit == nil || admit(id)) && x.lives(id) == 0 {
			return id, true
		}
	}
	return 0, false
}

// lives is how many blocks live in a group.
func (x *Index) lives(id uint32) int {
	x.mu.RLock()
	defer x.mu.RUnlock()
	if g := x.groups[id]; g != nil {
		return int(g.blocks)
	}
	return 0
}

// PickVictim is the sealed group to clean next among those the caller admits (nil: all). A group that gained blocks
// between the look at it and its being admitted is passed over: it was weighed without them.
func (x *Index) PickVictim(admit func(group uint32) bool) (best GroupStat, ok bool) {
	v := &x.victims
	v.mu.Lock()
	defer v.mu.Unlock()
	refused := map[uint32]bool{}
	for all := false; !all; {
		var list []GroupStat
		list, all = x.step()
		list = slices.DeleteFunc(list, func(g GroupStat) bool { return refused[g.Group] })
		rank(x.policy, list)
		for len(list) > 0 && (admit != nil && !admit(list[0].Group) || x.lives(list[0].Group) > int(list[0].Blocks)) {
			refused[list[0].Group] = true
			list = list[1:]
		}
		v.pool = v.pool[:0]
		for _, g := range list[:min(len(list), victimPool)] {
			v.pool = append(v.pool, g.Group)
		}
		if ok = len(list) > 0; ok {
			best = list[0]
			if level, _ := worth(x.policy, best); level == levelOpen {
				break
			} // else another step may see one that need not be spared
		}
	}
	v.looked = 0
	return best, ok
}

// step gives the groups of the next step and of the pool, lowest number first. all: the steps
// of this choice have seen every group.
func (x *Index) step() (list []GroupStat, all bool) {
	v := &x.victims
	x.mu.RLock()
	defer x.mu.RUnlock()
	n, guard := v.sealed.GetCardinality(), x.guard()
	it := v.sealed.Iterator()
	if n <= victimStep {
		v.next, v.pool = 0, nil
	}
	it.AdvanceIfNeeded(v.next)
	for len(list) < victimStep && it.HasNext() {
		id := it.Next()
		list = append(list, x.groupStat(id, x.groups[id], guard))
		v.next = id + 1
	}
	if !it.HasNext() {
		v.next = 0
	}
	v.looked += victimStep
	seen := len(list)
	for _, id := range v.pool {
		_, in := slices.BinarySearchFunc(list[:seen], id, func(g GroupStat, id uint32) int { return cmp.Compare(g.Group, id) })
		if !in && v.sealed.Contains(id) {
			list = append(list, x.groupStat(id, x.groups[id], guard))
		}
	}
	// One step more than they take, since a step ends where the round does.
	return list, n <= victimStep || v.looked >= n+2*victimStep
}

// levels are in what order groups go, whatever they are worth.
const (
	levelOpen   = iota
	levelSpared // by the policy
	levelFutile // gained nothing lately
)

// worth is what a group is worth, the lowest goes first within its level.
func worth(p Policy, g GroupStat) (level int, w float64) {
	is, w := p.Worth(g)
	switch {
	case g.Futile:
		level = levelFutile
	case is:
		level = levelSpared
	}
	return level, w
}

// rank orders groups, the one to clean first in front: what need not be spared, then what gained something, then what
// is worth least, then the lowest number.
func rank(p Policy, list []GroupStat) {
	type ranked struct {
		level int
		worth float64
		at    int32
	}
	all := make([]ranked, len(list))
	for i, g := range list {
		level, w := worth(p, g)
		all[i] = ranked{level, w, int32(i)}
	}
	slices.SortFunc(all, func(a, b ranked) int {
		return cmp.Or(cmp.Compare(a.level, b.level), cmp.Compare(a.worth, b.worth),
			cmp.Compare(list[a.at].Group, list[b.at].Group))
	})
	was := slices.Clone(list)
	for i := range all {
		list[i] = was[all[i].at]
	}
}
