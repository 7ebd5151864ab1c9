package store

import "github.com/skepkv/skep/store/catalog"

// The policies lru and s3fifo have an exact order, in which blocks go one by one whatever
// group they lie in; the policy cost drops blocks with their group only.

// yield makes room where the policy has an exact order: its logical cap comes down by
// a part of a group, since what is left over in groups keeps the space from holding as
// many blocks as were reckoned. False: there is no such order, or nothing to drop.
func (c *cleaner) yield() bool {
	s := c.s
	if s.options.Policy == "cost" || s.logicalPages <= 0 {
		return false
	}
	for range 16 {
		s.logicalPages -= s.logicalPages / 512
		if s.index.SetCapacity(s.capacityPages*slotsPerPage, s.logicalPages*slotsPerPage) != nil {
			return false
		}
		if s.trim() {
			return true
		}
	}
	return false
}

// trim drops what the policies lru and s3fifo have over their logical cap.
func (s *Store) trim() bool {
	if s.options.Policy == "cost" {
		return false
	}
	s.changes.Lock()
	defer s.changes.Unlock()
	b := s.catalog.NewBatch()
	for b.Len() < 4096 {
		e, ok := s.index.NextEvict()
		if !ok {
			break
		}
		size, forget := int64(0), func() { s.forgetCached(e.FP, nil) }
		if ns := s.names.of(e.Namespace); ns != nil {
			size, forget = s.forgetter(ns, e.FP, e)
		}
		if _, err := s.index.Evict(e.FP, e.Location); err != nil {
			continue
		}
		forget()
		s.count.evicted.Add(1)
		s.unstored(e.Namespace, size)
		b.DeleteBlock(locOf(unpack(e.Location)))
		s.outlives(b, unpack(e.Location).Group)
	}
	if b.Len() == 0 {
		return false
	}
	if err := s.unsure(s.catalog.Commit(s.ctx, b, false)); err != nil {
		s.log.Warn("evicted rows not deleted", "error", err)
	}
	s.loose.Add(1)
	return true
}

// outlives notes that a group's log goes on telling of a block that was dropped from it.
func (s *Store) outlives(b *catalog.Batch, num uint32) {
	g := s.findGroup(num)
	if g == nil || g.stale.Load() {
		return
	}
	s.setStale(g)
	if state := s.stateOf(g); state.State == catalog.GroupSealed { // saveSealed says it of one that is open
		state.State = catalog.GroupCleaning
		b.PutGroup(&state)
	}
}
