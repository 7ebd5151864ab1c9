package store

import (
	"sync/atomic"

	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/internal/locks"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/catalog"
)

// Rows and the index change in one order: the catalog commits, then the index follows. A
// commit that was refused did not happen, and nothing has changed. Where the index comes
// first, since only it can say whether a lease protects a block (the cleaner) or because the
// bytes are wrong whatever the catalog says (damage), the rows of what it has forgotten are
// owed until a commit has deleted them: every later commit of changed rows takes them along,
// and no delete is acknowledged before they are gone. So what was said to be gone is not
// found by the next open.

// owedRows are rows of blocks that the index has forgotten, and whose deletion was refused.
type owedRows struct {
	n  atomic.Int64 // of m, so that nobody locks for none
	mu locks.Mutex[locks.OwedRows]
	m  map[layout.Location]struct{}
}

func (o *owedRows) add(rows ...layout.Location) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.m == nil {
		o.m = map[layout.Location]struct{}{}
	}
	for _, l := range rows {
		o.m[l] = struct{}{}
	}
	o.n.Store(int64(len(o.m)))
}

// into has b delete them, and gives those it does.
func (o *owedRows) into(b *catalog.Batch) (rows []layout.Location) {
	if o.n.Load() == 0 {
		return nil
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	for l := range o.m {
		b.DeleteBlock(l)
		rows = append(rows, l)
	}
	return rows
}

func (o *owedRows) paid(rows []layout.Location) {
	if len(rows) == 0 {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, l := range rows {
		delete(o.m, l)
	}
	o.n.Store(int64(len(o.m)))
}

// commitRows commits b, and with it what is owed. On an error nothing of it happened, or the
// store has failed: see unsure.
func (s *Store) commitRows(b *catalog.Batch, commit func() error) error {
	rows := s.owed.into(b)
	err := s.unsure(commit())
	if err == nil {
		s.owed.paid(rows)
	}
	return err
}

// payOwed deletes what is owed, unsynced. An error: no more may be dropped now.
func (s *Store) payOwed() error {
	if s.owed.n.Load() == 0 {
		return nil
	}
	b := s.catalog.NewBatch()
	err := s.commitRows(b, func() error { return s.catalog.Commit(s.ctx, b, false) })
	if err == nil {
		s.loose.Add()
	}
	return err
}

// forgotten commits b, which deletes the rows of blocks that the index has forgotten. Those of
// a commit that was refused are owed. Nobody waits for it to be synced but who is told that
// something is gone: settleDeletions. REQUIRES: s.changes.
func (s *Store) forgotten(b *catalog.Batch, rows ...layout.Location) error {
	for _, l := range rows {
		b.DeleteBlock(l)
	}
	err := s.commitRows(b, func() error { return s.catalog.Commit(s.ctx, b, false) }) // not under a caller's context: the index has forgotten them
	if err != nil {
		s.owed.add(rows...)
	}
	s.loose.Add() // not before: who counts it syncs it
	return err
}

// refused says of a block that the index has no room for it. Its row goes next: takeBack.
func (s *Store) refused(in *incoming, err error) {
	if g := s.space.Find(in.loc.Group); g != nil {
		s.space.Suspect(g)
	}
	s.log.Warn("block not indexed", "key", in.rec.Key.Short(), "error", err)
	kind := skep.KindOf(err)
	if kind != skep.NoMemory {
		kind = skep.Full
	}
	*in.result = skep.PutResult{Outcome: skep.Declined, Reason: kind}
	s.count.Declined.Add(kind)
}

// takeBack deletes the rows of refused blocks. Those that were synced are deleted so, too,
// before anybody is told that they were declined: no crash brings them back.
func (s *Store) takeBack(list []*incoming, durable bool) error {
	if len(list) == 0 {
		return nil
	}
	b := s.catalog.NewBatch()
	var rows []layout.Location
	for _, in := range list {
		rows = append(rows, in.loc)
		b.DeleteBlock(in.loc)
	}
	err := s.commitRows(b, func() error { return s.catalog.Commit(s.ctx, b, durable) })
	if err != nil {
		s.owed.add(rows...)
	}
	if err != nil || !durable {
		s.loose.Add()
	}
	return err
}
