package store

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/index"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/catalog"
	"github.com/skepkv/skep/store/internal/namespaces"
	"github.com/skepkv/skep/store/internal/watermark"
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
	ns, t, err := s.names.Resolve(op, sc)
	if err != nil {
		return 0, err
	}
	n := 0
	for len(keys) > 0 && err == nil {
		step := keys[:min(len(keys), deleteStep)]
		keys = keys[len(step):]
		var some int
		some, err = s.deleteSome(ctx, ns, t, step)
		n += some
	}
	if err == nil {
		err = s.settleDeletions(ctx)
	}
	return n, err
}

// deleteStep is how many keys are deleted in one commit: others that change rows wait for it.
const deleteStep = 1024

// deletion is a block that is being deleted.
type deletion struct {
	key    skep.Key
	fp     index.Fingerprint
	was    index.Entry
	size   int64
	forget func()
}

// deleteSome deletes keys in one commit, after which the index forgets them. When the catalog
// refuses the commit all are there as before.
func (s *Store) deleteSome(ctx context.Context, ns *namespaces.Namespace, t namespaces.Tag, keys []skep.Key) (n int, err error) {
	var tombs []segment.Tombstone
	var list []deletion
	var away []index.Fingerprint // accepted, and perhaps being committed now
	sided := map[index.Fingerprint]catalog.SideID{}
	b := s.catalog.NewBatch()
	s.changes.Lock()
	if ctx.Err() != nil { // the last moment at which nothing has happened
		s.changes.Unlock()
		return 0, &skep.Error{Op: "delete", Kind: skep.Deadline, Err: ctx.Err()}
	}
	seq := s.root.Next()
	for _, key := range keys {
		fp := s.names.Fingerprint(ns.Instance, t, key)
		if s.sidecars.Has(fp) {
			sided[fp] = catalog.SideID{Instance: ns.Instance, Tag: t, Key: key}
			b.DeleteSide(sided[fp])
		}
		e, ok := s.index.Resolve(fp)
		if !ok || e.Location == 0 { // an earlier delete may have left before it was certain
			away = append(away, fp)
		}
		if !ok {
			if s.space.AnyStale() { // a record of it may lie on a device for all that
				tombs = append(tombs, tombstoneOf(ns, t, key, seq, s.rivals.Before(fp, seq)))
			}
			continue
		}
		d := deletion{key: key, fp: fp, was: e}
		d.size, d.forget = s.forgetter(ns, fp, e)
		list = append(list, d)
		if e.Location == 0 {
			continue
		}
		b.DeleteBlock(unpack(e.Location))
		written, record := s.writtenAt(fp)
		// A put under way may be committed yet, although it has a lower number.
		covers := s.rivals.Before(fp, written)
		tombs = append(tombs, tombstoneOf(ns, t, key, seq, covers))
		if covers < written {
			exact := tombstoneOf(ns, t, key, seq, record)
			exact.Exact = true
			tombs = append(tombs, exact)
		}
	}
	intents, err := s.intendTombstones(b, tombs)
	if err == nil && b.Len() > 0 {
		// Not under ctx: the index must follow the rows. With the root row: no number of a
		// tombstone is ever given to what is put later.
		err = s.commitRows(b, func() error { return s.saveRoot(s.ctx, b, true) })
	}
	if err == nil {
		s.sidecars.Forget(sided)
		n = s.deleted(ns, t, list)
	}
	s.changes.Unlock()
	if err == nil {
		s.carryOut(ctx, intents...)
	}
	for _, fp := range away { // their commits find that they are gone and take their rows back
		if err == nil {
			err = s.flights.Wait(ctx, fp)
		}
	}
	return n, err
}

// deleted has the index forget blocks whose rows are deleted, and says how many were there
// still. REQUIRES: s.changes.
func (s *Store) deleted(ns *namespaces.Namespace, t namespaces.Tag, list []deletion) (n int) {
	for _, d := range list {
		e, ok := s.index.Remove(d.fp, index.AnyLocation)
		if !ok { // named twice, or withdrawn meanwhile
			continue
		}
		n++
		if e.Location != d.was.Location { // accepted, and committed meanwhile
			s.deleteRow(unpack(e.Location))
			if g := s.space.Find(e.Group()); g != nil {
				s.space.Suspect(g) // no tombstone covers its record
			}
		}
		ns.Stored.Add(-d.size)
		d.forget()
		ev := skep.Event{Kind: skep.EventDeleted, Namespace: ns.Info.ID, Key: d.key, Depth: int(e.Depth)}
		s.saltEvent(&ev, ns.Instance, t)
		s.tell(ev, ns.Instance, t)
	}
	return n
}

// tombstoneOf, made at seq, covers every record of a block written up to covers.
func tombstoneOf(ns *namespaces.Namespace, t namespaces.Tag, key skep.Key, seq, covers uint64) segment.Tombstone {
	return segment.Tombstone{Seq: seq, Covers: covers, Instance: ns.Instance, SaltTag: segment.SaltTag(t), Key: key}
}

// writtenAt is when the block's bytes were written, and its record's own number; now when
// that cannot be read.
func (s *Store) writtenAt(fp index.Fingerprint) (written, record uint64) {
	e, ok := s.index.Resolve(fp)
	if !ok || e.Location == 0 {
		return s.root.Last(), 0
	}
	rec, err := s.record(fp, e)
	if err != nil {
		return s.root.Last(), 0
	}
	return rec.Written(), rec.Seq
}

// remove takes a block out of the index and the DRAM tier. REQUIRES: s.changes.
func (s *Store) remove(ns *namespaces.Namespace, fp index.Fingerprint) (e index.Entry, ok bool) {
	if e, ok = s.index.Resolve(fp); !ok {
		return e, false
	}
	size, forget := s.forgetter(ns, fp, e)
	if e, ok = s.index.Remove(fp, index.AnyLocation); ok {
		ns.Stored.Add(-size)
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
	return s.loose.Settle(func() error {
		b := s.catalog.NewBatch()
		rows := s.owed.into(b)
		if err := s.saveRoot(ctx, b, true); err != nil { // who calls again deletes them again: no harm
			return err
		}
		s.owed.paid(rows)
		return nil
	})
}

// drop removes a partial tail that another block has made superfluous. REQUIRES: s.changes.
func (s *Store) drop(ns *namespaces.Namespace, in *incoming) {
	e, ok := s.index.Resolve(*in.replaces)
	if !ok || !e.Partial {
		return
	}
	if in.dropForget != nil { // its row is deleted
		if e, ok = s.index.Remove(*in.replaces, index.AnyLocation); ok {
			ns.Stored.Add(-in.dropBytes)
			in.dropForget()
		}
	} else if e, ok = s.remove(ns, *in.replaces); ok && e.Location != 0 {
		l := unpack(e.Location)
		s.deleteRow(l)
		if g := s.space.Find(l.Group); g != nil && !in.dropLogged {
			s.space.Suspect(g) // its record stays in the log, and no tombstone covers it
		}
	}
	if !ok {
		return
	}
	ev := skep.Event{Kind: skep.EventDeleted, Namespace: ns.Info.ID, Key: *in.rec.Replaces, Depth: int(e.Depth)}
	s.saltEvent(&ev, ns.Instance, namespaces.Tag(in.rec.SaltTag))
	s.tell(ev, ns.Instance, namespaces.Tag(in.rec.SaltTag))
}

// deleteRow deletes the row of a block that the index has forgotten. REQUIRES: s.changes.
func (s *Store) deleteRow(l layout.Location) {
	if err := s.forgotten(s.catalog.NewBatch(), l); err != nil {
		s.log.Warn("row not deleted yet", "location", l, "error", err)
	}
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
	if err := s.naming.Take(ctx, 2*s.options.OpTimeout, s.closing, op, "namespace being made"); err != nil {
		return err
	}
	defer s.naming.Give()
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
	next := s.root.Numbers()
	var gone []*namespaces.Namespace
	switch ns := n.Get(p.Namespace); {
	case ns != nil:
		gone = n.WithClusters(ns)
	case p.Tenant != "":
		gone = n.OfTenant(p.Tenant)
	case p.Model != "":
		for ns := range n.All() {
			if p.Model == ns.Info.Model {
				gone = append(gone, ns)
			}
		}
	}
	if len(gone) == 0 {
		if p.Namespace != 0 {
			return &skep.Error{Op: "purge", Kind: skep.NotFound, Field: "namespace", Value: p.Namespace}
		}
		return nil // nothing of theirs is here
	}
	b := s.catalog.NewBatch()
	seq := s.root.Next()
	fresh := make([]*namespaces.Namespace, len(gone))
	var todo []catalog.Intent
	for i, ns := range gone {
		next.Instance++
		renewed := *ns // readers hold pointers to namespaces: a purged one is left as it is
		renewed.Instance, renewed.Stored = next.Instance, new(atomic.Int64)
		fresh[i] = &renewed
		b.DeletePurgesOf(ns.Instance)
		b.DeleteSidesOf(ns.Instance, nil)
		b.PutNamespace(&catalog.Namespace{NamespaceInfo: ns.Info, Instance: renewed.Instance})
		var w segment.LogWriter
		if err := errors.Join(w.Purge(&segment.Purge{Seq: seq, Covers: seq, Instance: ns.Instance}), w.Namespace(renewed.Entry(seq))); err != nil {
			return err
		}
		todo = append(todo, s.intend(b, &w))
	}
	if err := s.saveNames(b, next); err != nil {
		return err
	}
	for _, ns := range fresh {
		n.Enter(ns) // its entries in the logs count from now on
	}
	s.carryOut(ctx, todo...)
	id := p.Namespace
	if len(gone) == 1 {
		id = gone[0].Info.ID
	}
	s.events.EmitIf(skep.Event{Kind: skep.EventPurged, Namespace: id}, func() bool { // what is told behind it is put behind it
		for i, ns := range gone {
			s.index.SetDead(ns.Instance)
			n.Supersede(ns, fresh[i])
		}
		return true
	})
	s.background.Go(s.sweep)
	return nil
}

// saveNames commits b with new high-water marks and keeps them. It waits for the commit
// also when the caller's context ends: a commit that came later would have given out an
// instance that is given out again. REQUIRES: s.naming.
func (s *Store) saveNames(b *catalog.Batch, next watermark.Numbers) error {
	return s.root.SaveNumbers(s.ctx, s.catalog, b, next, s.unsure)
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
	seq := s.root.Next()
	b := s.catalog.NewBatch()
	var w segment.LogWriter
	var firsts, deads []namespaces.SaltTag
	for _, in := range n.WithContexts(ns) {
		first := namespaces.SaltTag{Instance: in, Tag: n.TagAt(in, sc.Salt, 0)}
		dead := namespaces.SaltTag{Instance: in, Tag: n.TagAt(in, sc.Salt, n.EpochOf(first))}
		firsts, deads = append(firsts, first), append(deads, dead)
		err := w.Purge(&segment.Purge{Seq: seq, Covers: seq, Instance: in, Salted: true, SaltTag: segment.SaltTag(first.Tag)})
		b.PutPurge(catalog.Purge{Instance: in, Tag: first.Tag, Seq: seq})
		b.DeleteSidesOf(in, (*[16]byte)(&dead.Tag))
		if dead != first {
			b.PutPurge(catalog.Purge{Instance: in, Tag: dead.Tag, Seq: 0})
			err = errors.Join(err, w.Purge(&segment.Purge{Covers: seq, Instance: in, Salted: true, SaltTag: segment.SaltTag(dead.Tag)}))
		}
		if err != nil {
			return err
		}
	}
	todo := s.intend(b, &w)
	if err := s.unsure(s.saveRoot(s.ctx, b, true)); err != nil { // as saveNames: memory follows it
		return err
	}
	s.carryOut(ctx, todo)
	s.events.EmitIf(skep.Event{Kind: skep.EventPurged, Namespace: ns.Info.ID, Salted: true}, func() bool {
		for i, first := range firsts {
			n.KillTag(deads[i], 0)
			n.KillTag(first, seq)
		}
		return true
	})
	return nil
}

// sweep takes what purges made unreachable out of the index. One goroutine does, for all that
// were made when it began a round.
func (s *Store) sweep() {
	for s.ctx.Err() == nil && s.sweeping.CompareAndSwap(false, true) {
		for dead := s.index.Dead(); len(dead) > 0 && s.ctx.Err() == nil; dead = s.index.Dead() {
			for wrapped := false; !wrapped && s.ctx.Err() == nil; {
				began := time.Now()
				if _, wrapped = s.index.SweepDead(sweepStep); !wrapped && !s.pause(3*time.Since(began)) {
					return
				}
			}
			// What a put under way adds of them yet, the cleaner finds.
			s.index.ForgetDead(dead...)
			s.names.ForgetSalts()
		}
		s.sweeping.Store(false)
		if len(s.index.Dead()) == 0 {
			return
		}
	}
}

// sweepStep is how many slots are looked at in one go.
const sweepStep = 4096

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
	ns, t, err := s.names.Resolve(op, sc)
	if err != nil {
		return 0, err
	}
	fps := make([]index.Fingerprint, len(keys))
	for i, k := range keys {
		fps[i] = s.names.Fingerprint(ns.Instance, t, k)
	}
	n, err := s.applyHint(ns, fps, h)
	if err == nil && n > 0 {
		s.restores.Hint(ns, t, sc, keys, h)
	}
	return n, err
}
