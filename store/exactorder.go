package store

import (
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/catalog"
)

// The policies lru and s3fifo have an exact order, in which blocks go one by one whatever
// group they lie in; the policy cost drops blocks with their group only.

// yield makes room where the policy has an exact order: its logical cap comes down below
// what it holds, and what is over is dropped. False: there is no such order, or nothing to drop.
func (c *cleaner) yield() bool {
	if c.s.options.Policy == "cost" {
		return false
	}
	before := c.s.count.Evicted.Load()
	c.s.yieldRoom()
	c.s.trim()
	return c.s.count.Evicted.Load() > before // a put may have come first with trim
}

// trim drops what the policies lru and s3fifo have over their logical cap.
func (s *Store) trim() bool {
	if s.options.Policy == "cost" {
		return false
	}
	s.changes.Lock()
	defer s.changes.Unlock()
	if s.payOwed() != nil {
		return false
	}
	var rows []layout.Location
	for len(rows) < 4096 {
		e, ok := s.index.NextEvict()
		if !ok {
			break
		}
		if g := s.space.find(unpack(e.Location).Group); g != nil && s.outlives(g) != nil {
			break
		}
		size, forget := int64(0), func() { s.forgetCached(e.FP) }
		if ns := s.names.Of(e.Namespace); ns != nil {
			size, forget = s.forgetter(ns, e.FP, e)
		}
		if _, err := s.index.Evict(e.FP, e.Location); err != nil {
			continue
		}
		forget()
		s.count.Evict(e)
		s.unstored(e.Namespace, size)
		rows = append(rows, unpack(e.Location))
	}
	if len(rows) == 0 {
		return false
	}
	if err := s.forgotten(s.catalog.NewBatch(), rows...); err != nil {
		s.log.Warn("evicted rows not deleted", "error", err)
	}
	return true
}

// outlives notes, before a block is dropped from g, that its log goes on telling of it. An error:
// nothing may be dropped. The row that says so comes first, since that of the block may be deleted
// by any commit: owedRows. REQUIRES: s.changes.
func (s *Store) outlives(g *group) error {
	if g.noted.Load() {
		return nil
	}
	s.setStale(g)
	if state := s.stateOf(g); state.State == catalog.GroupSealed { // saveSealed says it of one that is open
		state.State = catalog.GroupCleaning
		b := s.catalog.NewBatch()
		b.PutGroup(&state)
		if err := s.commitRows(b, func() error { return s.catalog.Commit(s.ctx, b, false) }); err != nil {
			return err
		}
		g.noted.Store(true)
	}
	return nil
}
