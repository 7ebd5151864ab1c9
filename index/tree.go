package index

// link makes id the first child of parent.
func (x *Index) link(id, parent uint32) {
	s, p := x.slots.at(id), x.slots.at(parent)
	s.parent, s.sibPrev, s.sibNext = parent, 0, p.child
	if p.child != 0 {
		x.slots.at(p.child).sibPrev = id
	}
	p.child = id
}

// unlink takes id from its parent, and a stub away that nobody waits under any more.
func (x *Index) unlink(id uint32) {
	s := x.slots.at(id)
	if s.parent == 0 {
		return
	}
	p := x.slots.at(s.parent)
	if s.sibPrev != 0 {
		x.slots.at(s.sibPrev).sibNext = s.sibNext
	} else {
		p.child = s.sibNext
	}
	if s.sibNext != 0 {
		x.slots.at(s.sibNext).sibPrev = s.sibPrev
	}
	if p.has(flagStub) && p.child == 0 {
		x.release(s.parent)
		x.counts.stubs--
	}
	s.parent, s.sibPrev, s.sibNext = 0, 0, 0
}

// mayRoot says that a live slot has no parent, or one that is rooted and one shallower.
func (x *Index) mayRoot(id uint32) bool {
	s := x.slots.at(id)
	if !s.has(flagHasParent) {
		return true
	}
	p := x.slots.at(s.parent)
	return p.has(flagRooted) && s.follows(p)
}

// root marks id and all that waited for it as rooted.
func (x *Index) root(id uint32) {
	x.walk(id, func(s, parent *slot) bool {
		return s.flags&(flagLive|flagRooted) == flagLive && s.follows(parent)
	}, func(s *slot) {
		s.flags |= flagRooted
		x.counts.rooted++
	})
}

// hide clears the rooted bit of id and of all below.
func (x *Index) hide(id uint32) {
	x.walk(id, func(s, _ *slot) bool {
		return s.has(flagRooted)
	}, func(s *slot) {
		s.flags &^= flagRooted
		x.counts.rooted--
	})
}

// walk visits id and, parents first, the descendants that into admits, without a
// stack: the tree's own links lead back up. into must refuse what visit has seen, and
// must only admit children one deeper than their parent, which rules out cycles.
func (x *Index) walk(id uint32, into func(s, parent *slot) bool, visit func(*slot)) {
	visit(x.slots.at(id))
	for cur, next := id, x.slots.at(id).child; ; {
		parent := x.slots.at(cur)
		for next != 0 {
			s := x.slots.at(next)
			if into(s, parent) {
				break
			}
			next = s.sibNext
		}
		switch {
		case next != 0:
			visit(x.slots.at(next))
			cur, next = next, x.slots.at(next).child
		case cur == id:
			return
		default:
			next, cur = parent.sibNext, parent.parent
		}
	}
}
