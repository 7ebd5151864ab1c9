package store

import (
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/catalog"
	"github.com/skepkv/skep/store/internal/space"
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
	c.s.space.YieldRoom()
	c.s.trim()
	return c.s.count.Evicted.Load() > before // a put may have come first with trim
}

// trimmed is how many blocks one trim drops at most.
const trimmed = 4096

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
	some := false
	for range trimmed {
		e, ok := s.index.NextEvict()
		if !ok {
			break
		}
		if g := s.space.Find(unpack(e.Location).Group); g != nil && s.outlives(g) != nil {
			break
		}
		rec, unread := s.record(e.FP, e) // before it is gone: events tell of it
		if _, err := s.index.Evict(e.FP, e.Location); err != nil {
			continue
		}
		if some = true; unread == nil {
			s.cleaner.evicted(&rec, e.FP, e)
		} else {
			s.count.Evict(e)
			s.unstored(e.Namespace, layout.SlotBytes(uint64(e.Pages)))
			s.forgetCached(e.FP)
		}
		if e.Location != 0 { // else its commit finds that it is gone
			rows = append(rows, unpack(e.Location))
		}
	}
	if !some {
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
func (s *Store) outlives(g *space.Group) error {
	if g.Noted.Load() {
		return nil
	}
	s.space.SetStale(g)
	if state := s.space.Row(g); state.State == catalog.GroupSealed { // saveSealed says it of one that is open
		state.State = catalog.GroupCleaning
		b := s.catalog.NewBatch()
		b.PutGroup(&state)
		if err := s.commitRows(b, func() error { return s.catalog.Commit(s.ctx, b, false) }); err != nil {
			return err
		}
		g.Noted.Store(true)
	}
	return nil
}
