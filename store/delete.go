package store

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
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
	sided := map[index.Fingerprint]catalog.SideID{}
	b := s.catalog.NewBatch()
	s.changes.Lock()
	if ctx.Err() != nil { // the last moment at which nothing has happened
		s.changes.Unlock()
		return 0, &skep.Error{Op: op, Kind: skep.Deadline, Err: ctx.Err()}
	}
	seq := s.nextSeq()
	for i := range keys {
		fp := s.names.fingerprint(ns.instance, t, keys[i])
		if s.sides.has(fp) {
			sided[fp] = catalog.SideID{Instance: ns.instance, Tag: t, Key: keys[i]}
			b.DeleteSide(sided[fp])
		}
		written, record := s.writtenAt(fp)
		e, ok := s.remove(ns, fp)
		if !ok { // an earlier delete may have left before it was certain
			away = append(away, fp)
			if s.stale.Load() > 0 { // a record of it may lie on a device for all that
				tombs = append(tombs, tombstoneOf(ns, t, keys[i], seq, s.rivals.before(fp, seq)))
			}
			continue
		}
		n++
		if e.Location == 0 {
			away = append(away, fp)
		} else {
			b.DeleteBlock(locOf(unpack(e.Location)))
			// A put under way may be committed yet, although it has a lower number.
			covers := s.rivals.before(fp, written)
			tombs = append(tombs, tombstoneOf(ns, t, keys[i], seq, covers))
			if covers < written {
				exact := tombstoneOf(ns, t, keys[i], seq, record)
				exact.Exact = true
				tombs = append(tombs, exact)
			}
		}
		ev := skep.Event{Kind: skep.EventDeleted, Namespace: ns.info.ID, Key: keys[i], Depth: int(e.Depth)}
		s.saltEvent(&ev, t)
		s.events.emit(ev)
	}
	intents, err := s.intendTombstones(b, tombs)
	if err == nil && b.Len() > 0 {
		// Not under ctx: the index has forgotten them, so that nobody would delete their rows later.
		// With the root row: no number of a tombstone is ever given to what is put later.
		err = s.unsure(s.saveSeq(s.ctx, b, true))
	}
	if err == nil {
		s.sides.forget(sided)
	}
	s.changes.Unlock()
	if err == nil {
		s.carryOut(ctx, intents...)
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

// tombstoneOf, made at seq, covers every record of a block written up to covers.
func tombstoneOf(ns *namespace, t tag, key skep.Key, seq, covers uint64) segment.Tombstone {
	return segment.Tombstone{Seq: seq, Covers: covers, Instance: ns.instance, SaltTag: segment.SaltTag(t), Key: key}
}

// writtenAt is when the block's bytes were written, and its record's own number; now when
// that cannot be read.
func (s *Store) writtenAt(fp index.Fingerprint) (written, record uint64) {
	e, ok := s.index.Resolve(fp)
	if !ok || e.Location == 0 {
		return s.seq.Load(), 0
	}
	rec, err := s.record(fp, e)
	if err != nil {
		return s.seq.Load(), 0
	}
	return rec.Written(), rec.Seq
}

// remove takes a block out of the index and the DRAM tier. REQUIRES: s.changes.
func (s *Store) remove(ns *namespace, fp index.Fingerprint) (e index.Entry, ok bool) {
	if e, ok = s.index.Resolve(fp); !ok {
		return e, false
	}
	size, forget := s.forgetter(ns, fp, e)
	if e, ok = s.index.Remove(fp, index.AnyLocation); ok {
		ns.stored.Add(-size)
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
			ns.stored.Add(-in.dropBytes)
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
	if err := s.unsure(s.catalog.Commit(s.ctx, b, false)); err != nil {
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
	s.naming.Lock()
	defer s.naming.Unlock()
	if p.Salt != nil {
		return s.purgeSalt(ctx, *p.Salt)
	}
	return s.purgeInstances(ctx, p)
}

// purgeInstances gives every namespace that p names a new instance. The order is: the
// catalog, the devices' logs, memory; so that no block is committed under an instance
// the devices do not know. REQUIRES: s.naming.
func (s *Store) purgeInstances(ctx context.Context, p skep.Purge) error {
	n := s.names
	n.mu.RLock()
	next := n.mu.next
	var gone []*namespace
	named := n.mu.byID[p.Namespace]
	for _, ns := range n.mu.byID {
		if p.Namespace == ns.info.ID || named != nil && named.info.Clusters(ns.info.NamespaceSpec) || p.Tenant != "" && p.Tenant == ns.info.Tenant || p.Model != "" && p.Model == ns.info.Model {
			gone = append(gone, ns)
		}
	}
	n.mu.RUnlock()
	if len(gone) == 0 {
		if p.Namespace != 0 {
			return &skep.Error{Op: "purge", Kind: skep.NotFound, Field: "namespace", Value: p.Namespace}
		}
		return nil // nothing of theirs is here
	}
	b := s.catalog.NewBatch()
	seq := s.nextSeq()
	fresh := make([]*namespace, len(gone))
	var todo []catalog.Intent
	for i, ns := range gone {
		next.NextInstance++
		renewed := *ns // readers hold pointers to namespaces: a purged one is left as it is
		renewed.instance, renewed.stored = next.NextInstance, new(atomic.Int64)
		fresh[i] = &renewed
		b.PutPurge(catalog.Purge{Instance: ns.instance, Whole: true, Seq: seq})
		b.DeleteSidesOf(ns.instance, nil)
		b.PutNamespace(&catalog.Namespace{NamespaceInfo: ns.info, Instance: renewed.instance})
		var w segment.LogWriter
		if err := errors.Join(w.Purge(&segment.Purge{Seq: seq, Covers: seq, Instance: ns.instance}), w.Namespace(renewed.entry(seq))); err != nil {
			return err
		}
		todo = append(todo, s.intend(b, &w))
	}
	if err := s.saveNames(b, next); err != nil {
		return err
	}
	s.carryOut(ctx, todo...)
	n.mu.Lock()
	for i, ns := range gone {
		s.index.SetDead(ns.instance)
		delete(n.mu.byInstance, ns.instance)
		n.mu.byID[ns.info.ID] = fresh[i]
		n.mu.byName[[2]string{ns.info.Tenant, ns.info.Name}] = fresh[i]
		n.mu.byInstance[fresh[i].instance] = fresh[i]
	}
	n.mu.Unlock()
	id := p.Namespace
	if len(gone) == 1 {
		id = gone[0].info.ID
	}
	s.events.emit(skep.Event{Kind: skep.EventPurged, Namespace: id})
	go0(&s.background, s.sweep)
	return nil
}

// saveNames commits b with new high-water marks and keeps them. It waits for the commit
// also when the caller's context ends: a commit that came later would have given out an
// instance that is given out again. REQUIRES: s.naming.
func (s *Store) saveNames(b *catalog.Batch, next catalog.StoreState) error {
	n := s.names
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := s.unsure(s.saveNext(s.ctx, b, next)); err != nil {
		return err
	}
	n.mu.next = next
	return nil
}

// purgeSalt gives a salt a new tag. REQUIRES: s.naming.
func (s *Store) purgeSalt(ctx context.Context, sc skep.Scope) error {
	const op = "purge"
	n := s.names
	ns := s.namespaceOf(sc.Namespace)
	if ns == nil {
		return &skep.Error{Op: op, Kind: skep.NotFound, Field: "namespace", Value: sc.Namespace}
	}
	if sc.Salt == "" {
		return skep.Invalidf(op, "salt", "empty", "a salt; purge the namespace instead")
	}
	// A row is keyed by the salt's first tag and holds its present epoch; blocks carry the
	// tag of their epoch.
	seq := s.nextSeq()
	b := s.catalog.NewBatch()
	var w segment.LogWriter
	var firsts, deads []instanceTag
	for _, in := range n.withContexts(ns) {
		first := instanceTag{in, n.tagAt(in, sc.Salt, 0)}
		dead := instanceTag{in, n.tagAt(in, sc.Salt, n.epochOf(first))}
		firsts, deads = append(firsts, first), append(deads, dead)
		err := w.Purge(&segment.Purge{Seq: seq, Covers: seq, Instance: in, Salted: true, SaltTag: segment.SaltTag(first.tag)})
		b.PutPurge(catalog.Purge{Instance: in, Tag: first.tag, Seq: seq})
		b.DeleteSidesOf(in, (*[16]byte)(&dead.tag))
		if dead != first {
			b.PutPurge(catalog.Purge{Instance: in, Tag: dead.tag, Seq: 0})
			err = errors.Join(err, w.Purge(&segment.Purge{Covers: seq, Instance: in, Salted: true, SaltTag: segment.SaltTag(dead.tag)}))
		}
		if err != nil {
			return err
		}
	}
	todo := s.intend(b, &w)
	if err := s.unsure(s.saveSeq(s.ctx, b, true)); err != nil { // as saveNames: memory follows it
		return err
	}
	s.carryOut(ctx, todo)
	n.mu.Lock()
	for i, first := range firsts {
		n.mu.saltEpoch[first] = seq
		n.mu.deadTags[deads[i]] = true
	}
	n.mu.Unlock()
	s.events.emit(skep.Event{Kind: skep.EventPurged, Namespace: ns.info.ID, Salted: true})
	return nil
}

// withContexts are the instances of a namespace and of those that hold its clustered
// contexts.
func (n *names) withContexts(ns *namespace) []uint32 {
	n.mu.RLock()
	defer n.mu.RUnlock()
	all := []uint32{ns.instance}
	for _, o := range n.mu.byID {
		if ns.info.Clusters(o.info.NamespaceSpec) {
			all = append(all, o.instance)
		}
	}
	return all
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
	n, err := s.applyHint(ns, fps, h)
	if err == nil && n > 0 {
		s.prefetchHint(ns, t, sc, keys, h)
	}
	return n, err
}
