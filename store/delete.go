package store

import (
	"context"
	"fmt"
	"time"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/index"
	"github.com/skepkv/skep/store/catalog"
	"github.com/skepkv/skep/store/segment"
)

// Delete implements skep.Deleter.
func (s *Store) Delete(ctx context.Context, sc skep.Scope, keys []skep.Key) (int, error) {
	const op = "delete"
	if err := s.enterWrite(ctx, op); err != nil {
		return 0, err
	}
	defer s.leave()
	if len(keys) > skep.MaxChainKeys {
		return 0, skep.Invalidf(op, "keys", len(keys), fmt.Sprintf("at most %d", skep.MaxChainKeys))
	}
	ns, t, err := s.names.resolve(op, sc)
	if err != nil {
		return 0, err
	}
	n := 0
	var tombs []segment.Tombstone
	var away []index.Fingerprint // accepted, and perhaps being committed now
	b := s.catalog.NewBatch()
	s.changes.Lock()
	seq := s.nextSeq()
	for i := range keys {
		fp := s.names.fingerprint(ns.instance, t, keys[i])
		e, ok := s.remove(ns, fp)
		if !ok {
			continue
		}
		n++
		if e.Location == 0 {
			away = append(away, fp)
		} else {
			b.DeleteBlock(locOf(unpack(e.Location)))
			tombs = append(tombs, segment.Tombstone{Seq: seq, Covers: seq, Instance: ns.instance, SaltTag: segment.SaltTag(t), Key: keys[i]})
		}
		ev := skep.Event{Kind: skep.EventDeleted, Namespace: ns.info.ID, Key: keys[i], Depth: int(e.Depth)}
		s.saltEvent(&ev, t)
		s.events.emit(ev)
	}
	if b.Len() > 0 {
		err = s.catalog.Commit(ctx, b, true)
	}
	s.changes.Unlock()
	if err == nil && len(tombs) > 0 {
		err = s.logTombstones(ctx, tombs)
	}
	for _, fp := range away { // their commits find that they are gone and take their rows back
		if err == nil {
			err = s.flights.wait(ctx, fp)
		}
	}
	if err == nil {
		err = s.settleDeletions(ctx)
	}
	return n, err
}

// remove takes a block out of the index and the DRAM tier. REQUIRES: s.changes.
func (s *Store) remove(ns *namespace, fp index.Fingerprint) (e index.Entry, ok bool) {
	if e, ok = s.index.Resolve(fp); !ok {
		return e, false
	}
	size, forget := s.forgetter(ns, fp, e)
	if e, ok = s.index.Remove(fp, index.AnyLocation); ok {
		s.count.blockBytes.Add(-size)
		forget()
	}
	return e, ok
}

// awaitChanges returns when the change of rows under way, if one is, has reached the
// index. The caller must not be making one.
func (s *Store) awaitChanges() {
	s.changes.Lock()
	//lint:ignore SA2001 to wait is all
	s.changes.Unlock()
}

// settleDeletions syncs what deleteRow and the cleaner deleted without: what is not
// there now must not be found again after a crash by who was told so.
func (s *Store) settleDeletions(ctx context.Context) error {
	n := s.loose.Load()
	if s.firm.Load() >= n {
		return nil
	}
	if err := s.saveSeq(ctx, s.catalog.NewBatch(), true); err != nil {
		return err
	}
	for {
		have := s.firm.Load()
		if have >= n || s.firm.CompareAndSwap(have, n) {
			return nil
		}
	}
}

// drop removes a block that another has made superfluous. REQUIRES: s.changes.
func (s *Store) drop(ns *namespace, in *incoming) {
	var e index.Entry
	var ok bool
	if in.dropForget != nil { // its row is deleted
		if e, ok = s.index.Remove(*in.replaces, index.AnyLocation); ok {
			s.count.blockBytes.Add(-in.dropBytes)
			in.dropForget()
		}
	} else if e, ok = s.remove(ns, *in.replaces); ok && e.Location != 0 {
		s.deleteRow(locOf(unpack(e.Location)))
	}
	if !ok {
		return
	}
	ev := skep.Event{Kind: skep.EventDeleted, Namespace: ns.info.ID, Key: *in.rec.Replaces, Depth: int(e.Depth)}
	s.saltEvent(&ev, tag(in.rec.SaltTag))
	s.events.emit(ev)
}

// deleteRow deletes a block's row behind the caller's back; at worst an open finds
// the row again, and with it a block whose bytes are right.
func (s *Store) deleteRow(l catalog.Loc) {
	b := s.catalog.NewBatch()
	b.DeleteBlock(l)
	if err := s.catalog.Commit(s.ctx, b, false); err != nil {
		s.log.Warn("row not deleted", "location", l, "error", err)
	}
	s.loose.Add(1)
}

// Purge implements skep.Deleter. What is purged is told by two numbers that every
// block carries: its namespace's instance and its salt's tag. New ones make
// everything under the old unreachable; the cleaner drops it without copying.
func (s *Store) Purge(ctx context.Context, p skep.Purge) error {
	const op = "purge"
	if err := s.enterWrite(ctx, op); err != nil {
		return err
	}
	defer s.leave()
	if err := p.Validate(); err != nil {
		return err
	}
	entries, err := s.purgeNames(ctx, p)
	if err != nil || len(entries) == 0 {
		return err
	}
	return s.logPurges(ctx, entries)
}

// purgeNames makes what p names unreachable, and gives what the devices' logs have to
// say about it.
func (s *Store) purgeNames(ctx context.Context, p skep.Purge) ([]segment.Purge, error) {
	const op = "purge"
	n := s.names
	n.mu.Lock()
	defer n.mu.Unlock()
	seq := s.nextSeq()
	b := s.catalog.NewBatch()
	if p.Salt != nil {
		return s.purgeSaltLocked(ctx, b, *p.Salt, seq)
	}
	var gone []*namespace
	for _, ns := range n.mu.byID {
		if p.Namespace == ns.info.ID || p.Tenant != "" && p.Tenant == ns.info.Tenant || p.Model != "" && p.Model == ns.info.Model {
			gone = append(gone, ns)
		}
	}
	if len(gone) == 0 {
		if p.Namespace != 0 {
			return nil, &skep.Error{Op: op, Kind: skep.NotFound, Field: "namespace", Value: p.Namespace}
		}
		return nil, nil // nothing of theirs is here
	}
	next := n.mu.next
	fresh := make([]uint32, len(gone))
	var entries []segment.Purge
	for i, ns := range gone {
		next.NextInstance++
		fresh[i] = next.NextInstance
		b.PutPurge(catalog.Purge{Instance: ns.instance, Whole: true, Seq: seq})
		b.PutNamespace(&catalog.Namespace{NamespaceInfo: ns.info, Instance: fresh[i]})
		entries = append(entries, segment.Purge{Seq: seq, Covers: seq, Instance: ns.instance})
	}
	if err := s.saveNext(ctx, b, next); err != nil {
		return nil, err
	}
	n.mu.next = next
	for i, ns := range gone {
		s.index.SetDead(ns.instance)
		delete(n.mu.byInstance, ns.instance)
		// Readers hold pointers to namespaces: a purged one is left as it is.
		renewed := *ns
		renewed.instance = fresh[i]
		n.mu.byID[ns.info.ID] = &renewed
		n.mu.byName[[2]string{ns.info.Tenant, ns.info.Name}] = &renewed
		n.mu.byInstance[fresh[i]] = &renewed
	}
	id := skep.NamespaceID(0)
	if len(gone) == 1 {
		id = gone[0].info.ID
	}
	s.events.emit(skep.Event{Kind: skep.EventPurged, Namespace: id})
	go0(&s.background, s.sweep)
	return entries, nil
}

// purgeSaltLocked gives a salt a new tag. REQUIRES: names.mu.
func (s *Store) purgeSaltLocked(ctx context.Context, b *catalog.Batch, sc skep.Scope, seq uint64) ([]segment.Purge, error) {
	const op = "purge"
	n := s.names
	ns := n.mu.byID[sc.Namespace]
	if ns == nil {
		return nil, &skep.Error{Op: op, Kind: skep.NotFound, Field: "namespace", Value: sc.Namespace}
	}
	if sc.Salt == "" {
		return nil, skep.Invalidf(op, "salt", "empty", "a salt; purge the namespace instead")
	}
	// The row is keyed by the salt's first tag and holds its present epoch; blocks
	// carry the tag of their epoch.
	first := instanceTag{ns.instance, n.tagAt(ns.instance, sc.Salt, 0)}
	dead := n.tagAt(ns.instance, sc.Salt, n.mu.saltEpoch[first])
	b.PutPurge(catalog.Purge{Instance: ns.instance, Tag: first.tag, Seq: seq})
	if dead != first.tag {
		b.PutPurge(catalog.Purge{Instance: ns.instance, Tag: dead, Seq: 0})
	}
	if err := s.catalog.Commit(ctx, b, true); err != nil {
		return nil, err
	}
	n.mu.saltEpoch[first] = seq
	n.mu.deadTags[instanceTag{ns.instance, dead}] = true
	s.events.emit(skep.Event{Kind: skep.EventPurged, Namespace: ns.info.ID, Salted: true})
	return []segment.Purge{{Seq: seq, Covers: seq, Instance: ns.instance, Salted: true, SaltTag: segment.SaltTag(dead)}}, nil
}

// sweep takes what a purge made unreachable out of the index.
func (s *Store) sweep() {
	for s.ctx.Err() == nil {
		if _, wrapped := s.index.SweepDead(4096); wrapped {
			return
		}
	}
}

// Hint implements skep.Hinter.
func (s *Store) Hint(ctx context.Context, sc skep.Scope, keys []skep.Key, h skep.Hint) (int, error) {
	const op = "hint"
	if err := s.enter(ctx); err != nil {
		return 0, err
	}
	defer s.leave()
	if len(keys) > skep.MaxChainKeys {
		return 0, skep.Invalidf(op, "keys", len(keys), fmt.Sprintf("at most %d", skep.MaxChainKeys))
	}
	for _, f := range []struct {
		field string
		d     time.Duration
		max   time.Duration
	}{{"pin", h.Pin, skep.MaxPin}, {"next use", h.NextUse, 365 * 24 * time.Hour}, {"ttl", h.TTL, 365 * 24 * time.Hour}} {
		if f.d < 0 || f.d > f.max {
			return 0, skep.Invalidf(op, f.field, f.d, fmt.Sprintf("0 to %v", f.max))
		}
	}
	if h.Steps < 0 || h.Steps > 1<<20 {
		return 0, skep.Invalidf(op, "steps", h.Steps, fmt.Sprintf("0 to %d", 1<<20))
	}
	if len(h.Program) > skep.MaxNameSize {
		return 0, skep.Invalidf(op, "program length in bytes", len(h.Program), skep.MaxNameSize)
	}
	ns, t, err := s.names.resolve(op, sc)
	if err != nil {
		return 0, err
	}
	fps := make([]index.Fingerprint, len(keys))
	for i, k := range keys {
		fps[i] = s.names.fingerprint(ns.instance, t, k)
	}
	return s.applyHint(ns, fps, h)
}
