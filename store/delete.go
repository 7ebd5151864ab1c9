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
	"github.com/skepkv/skep/store/internal/commit"
	"github.com/skepkv/skep/store/internal/limits"
	"github.com/skepkv/skep/store/internal/namespaces"
	"github.com/skepkv/skep/store/internal/watermark"
	"github.com/skepkv/skep/store/segment"
)

// Delete implements skep.Deleter.
func (s *Store) Delete(ctx context.Context, sc skep.Scope, keys []skep.Key) (int, error) {
	const op = "delete"
	if err := s.gate.EnterWrite(ctx, op); err != nil {
		return 0, err
	}
	defer s.gate.Leave()
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
		var d commit.Deleted
		if d, err = s.rows.Delete(ctx, ns, t, step); err != nil {
			break
		}
		n += d.Blocks
		s.logs.CarryOut(ctx, d.Intents...)
		for _, fp := range d.Away { // their commits find that they are gone and take their rows back
			if err == nil {
				err = s.puts.Flights.Wait(ctx, fp)
			}
		}
	}
	if err == nil {
		err = s.rows.Settle(ctx)
	}
	return n, err
}

// deleteStep is how many keys are deleted in one commit: others that change rows wait for it.
const deleteStep = 1024

// Purge implements skep.Deleter. What is purged is told by two numbers that every
// block carries: its namespace's instance and its salt's tag. New ones make
// everything under the old unreachable; the cleaner drops it without copying.
func (s *Store) Purge(ctx context.Context, p skep.Purge) error {
	const op = "purge"
	if err := s.gate.EnterWrite(ctx, op); err != nil {
		return err
	}
	defer s.gate.Leave()
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
		s.keys.Drop(b, ns.Instance)
		b.DeleteSidesOf(ns.Instance, nil)
		b.PutNamespace(&catalog.Namespace{NamespaceInfo: ns.Info, Instance: renewed.Instance})
		var w segment.LogWriter
		if err := errors.Join(w.Purge(&segment.Purge{Seq: seq, Covers: seq, Instance: ns.Instance}), w.Namespace(renewed.Entry(seq))); err != nil {
			return err
		}
		todo = append(todo, s.logs.Intents.Put(b, &w))
	}
	if err := s.saveNames(b, next); err != nil {
		return err
	}
	for _, ns := range fresh {
		n.Enter(ns) // its entries in the logs count from now on
	}
	s.logs.CarryOut(ctx, todo...)
	id := p.Namespace
	if len(gone) == 1 {
		id = gone[0].Info.ID
	}
	s.events.EmitIf(skep.Event{Kind: skep.EventPurged, Namespace: id}, func() bool { // what is told behind it is put behind it
		for i, ns := range gone {
			s.index.SetDead(ns.Instance)
			s.keys.Dropped(ns.Instance)
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
	return s.root.SaveNumbers(s.ctx, s.catalog, b, next, s.rows.Unsure)
}

// purgeSalt gives a salt a new tag. REQUIRES: s.naming.
func (s *Store) purgeSalt(ctx context.Context, sc skep.Scope) error {
	const op = "purge"
	n := s.names
	ns := s.names.Get(sc.Namespace)
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
	todo := s.logs.Intents.Put(b, &w)
	if err := s.rows.Unsure(s.root.Save(s.ctx, s.catalog, b, true)); err != nil { // as saveNames: memory follows it
		return err
	}
	s.logs.CarryOut(ctx, todo)
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
				if _, wrapped = s.index.SweepDead(sweepStep); !wrapped && !limits.Pause(s.closing, 3*time.Since(began)) {
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
	if err := s.gate.Enter(ctx); err != nil {
		return 0, err
	}
	defer s.gate.Leave()
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
