package index

import (
	"fmt"
	"maps"
)

// Check recounts everything and follows every link; it returns the first thing that
// is not as the package's invariants say. It keeps everybody out while it works.
func (x *Index) Check() error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.closed {
		return nil
	}
	if err := x.checkTable(); err != nil {
		return err
	}
	if err := x.checkSlots(); err != nil {
		return err
	}
	if x.order != nil {
		return x.order.check()
	}
	return nil
}

func (x *Index) checkTable() error {
	var hashed uint32
	for b := range x.table.n {
		for id := *x.table.heads.at(b); id != 0; id = x.slots.at(id).next {
			s := x.slots.at(id)
			if x.table.bucket(&s.fp) != b || s.flags&(flagLive|flagStub) == 0 {
				return fmt.Errorf("slot %d is in bucket %d and should not be", id, b)
			}
			if x.find(&s.fp) != id {
				return fmt.Errorf("slot %d has another's fingerprint", id)
			}
			if hashed++; hashed > x.top {
				return fmt.Errorf("bucket %d goes in a circle", b)
			}
		}
	}
	if hashed != x.table.used || uint64(hashed) != x.counts.blocks+x.counts.stubs {
		return fmt.Errorf("%d slots hashed, %d counted, %d blocks and %d stubs", hashed, x.table.used, x.counts.blocks, x.counts.stubs)
	}
	var free uint32
	for id := x.free; id != 0; id = x.slots.at(id).next {
		if free++; free > x.top || x.slots.at(id).flags != 0 {
			return fmt.Errorf("slot %d is on the free list and should not be", id)
		}
	}
	if free+hashed != x.top {
		return fmt.Errorf("%d slots free and %d hashed of %d", free, hashed, x.top)
	}
	return nil
}

func (x *Index) checkSlots() error {
	var c counts
	var hinted int
	groups := map[uint32]*group{}
	tenants := map[uint16]int64{}
	hints := map[uint16]int{}
	owned := map[uint16]uint32{}
	for id := uint32(1); id <= x.top; id++ {
		s := x.slots.at(id)
		if s.flags == 0 {
			continue
		}
		if err := x.checkLinks(id); err != nil {
			return err
		}
		if s.has(flagStub) {
			c.stubs++
			continue
		}
		c.blocks++
		c.pages += uint64(s.pages)
		if s.has(flagRooted) {
			c.rooted++
		}
		if _, ok := x.hints[ID(id)]; ok != s.has(flagHinted) {
			return fmt.Errorf("slot %d: hint %v, flag %v", id, ok, !ok)
		} else if ok {
			hinted++
			hints[x.owners.at(s.owner).tenant]++
		}
		owned[s.owner]++
		tenants[x.owners.at(s.owner).tenant] += int64(s.pages)
		if s.loc == 0 {
			c.accepted++
			continue
		}
		g := groups[groupOf(s.loc)]
		if g == nil {
			g = &group{}
			groups[groupOf(s.loc)] = g
		}
		g.add(s, x.owners.at(s.owner), 1)
	}
	if c != x.counts {
		return fmt.Errorf("counts are %+v, should be %+v", x.counts, c)
	}
	if hinted != len(x.hints) {
		return fmt.Errorf("%d hints for %d blocks", len(x.hints), hinted)
	}
	sealed := uint64(0)
	for id, g := range x.groups {
		if g.sealed {
			sealed++
		}
		if v := &x.victims; v.sealed.Contains(id) != g.sealed || v.hollow.Contains(id) != (g.sealed && g.blocks == 0) {
			return fmt.Errorf("group %d is a candidate: %v, without a block: %v; it is %+v", id, v.sealed.Contains(id), v.hollow.Contains(id), *g)
		}
		want := groups[id]
		if want == nil {
			want = &group{}
		}
		delete(groups, id)
		if g.blocks != want.blocks || g.livePages != want.livePages || g.touchedPages != want.touchedPages || g.lastPages != want.lastPages || g.mustPages != want.mustPages || !maps.Equal(g.sharePages, want.sharePages) {
			return fmt.Errorf("group %d is %+v, should be %+v", id, *g, *want)
		}
	}
	if len(groups) > 0 {
		return fmt.Errorf("%d groups with blocks are unknown", len(groups))
	}
	if n := x.victims.sealed.GetCardinality(); n != sealed {
		return fmt.Errorf("%d groups are candidates, should be %d", n, sealed)
	}
	for id, t := range x.tenants {
		if t.hints != hints[id] {
			return fmt.Errorf("tenant %d has %d hints, should be %d", id, t.hints, hints[id])
		}
		if t.pages != tenants[id] {
			return fmt.Errorf("tenant %d holds %d pages, should be %d", id, t.pages, tenants[id])
		}
	}
	for i, r := range x.owners.rows {
		if r.blocks != owned[uint16(i)] {
			return fmt.Errorf("owner %d has %d blocks, should be %d", i, r.blocks, owned[uint16(i)])
		}
	}
	return nil
}

// checkLinks checks a slot against its parent and its children.
func (x *Index) checkLinks(id uint32) error {
	s := x.slots.at(id)
	if s.has(flagStub) && (s.child == 0 || s.parent != 0 || s.has(flagLive|flagRooted)) {
		return fmt.Errorf("stub %d: child %d, parent %d, flags %b", id, s.child, s.parent, s.flags)
	}
	rooted := s.has(flagLive)
	if s.has(flagHasParent) {
		if s.parent == 0 {
			return fmt.Errorf("slot %d lost its parent", id)
		}
		p := x.slots.at(s.parent)
		rooted = p.has(flagRooted) && s.follows(p)
	} else if s.parent != 0 {
		return fmt.Errorf("slot %d has no parent but slot %d", id, s.parent)
	}
	if rooted != s.has(flagRooted) {
		return fmt.Errorf("slot %d: rooted is %v", id, !rooted)
	}
	prev, n := uint32(0), uint32(0)
	for c := s.child; c != 0; c = x.slots.at(c).sibNext {
		k := x.slots.at(c)
		if n++; k.parent != id || k.sibPrev != prev || n > x.top {
			return fmt.Errorf("slot %d: child %d is linked wrong", id, c)
		}
		prev = c
	}
	return nil
}
