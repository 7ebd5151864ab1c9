package naming

import (
	"context"
	"errors"
	"sync/atomic"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/catalog"
	"github.com/skepkv/skep/store/internal/namespaces"
	"github.com/skepkv/skep/store/segment"
)

// Purge makes what p names unreachable.
func (m *Namer) Purge(ctx context.Context, p skep.Purge) error {
	if err := m.take(ctx, "purge"); err != nil {
		return err
	}
	defer m.turn.Give()
	if p.Salt != nil {
		return m.purgeSalt(ctx, *p.Salt)
	}
	return m.purgeInstances(ctx, p)
}

// purgeInstances gives every namespace that p names a new instance. The order is: the
// catalog, the devices' logs, memory; so that no block is committed under an instance
// the devices do not know. REQUIRES: the turn.
func (m *Namer) purgeInstances(ctx context.Context, p skep.Purge) error {
	n := m.Names
	next := m.Root.Numbers()
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
	b := m.Catalog.NewBatch()
	seq := m.Root.Next()
	fresh := make([]*namespaces.Namespace, len(gone))
	var todo []catalog.Intent
	for i, ns := range gone {
		next.Instance++
		renewed := *ns // readers hold pointers to namespaces: a purged one is left as it is
		renewed.Instance, renewed.Stored = next.Instance, new(atomic.Int64)
		fresh[i] = &renewed
		b.DeletePurgesOf(ns.Instance)
		m.Keys.Drop(b, ns.Instance)
		b.DeleteSidesOf(ns.Instance, nil)
		b.PutNamespace(&catalog.Namespace{NamespaceInfo: ns.Info, Instance: renewed.Instance})
		var w segment.LogWriter
		if err := errors.Join(w.Purge(&segment.Purge{Seq: seq, Covers: seq, Instance: ns.Instance}),
			w.Namespace(renewed.Entry(seq))); err != nil {
			return err
		}
		todo = append(todo, m.Logs.Intents.Put(b, &w))
	}
	if err := m.save(b, next); err != nil {
		return err
	}
	for _, ns := range fresh {
		n.Enter(ns) // its entries in the logs count from now on
	}
	m.Logs.CarryOut(ctx, todo...)
	id := p.Namespace
	if len(gone) == 1 {
		id = gone[0].Info.ID
	}
	// what is told behind it is put behind it
	m.Events.EmitIf(skep.Event{Kind: skep.EventPurged, Namespace: id}, func() bool {
		for i, ns := range gone {
			m.Index.SetDead(ns.Instance)
			m.Keys.Dropped(ns.Instance)
			n.Supersede(ns, fresh[i])
		}
		return true
	})
	m.Background.Go(m.Sweep)
	return nil
}

// purgeSalt gives a salt a new tag. REQUIRES: the turn.
func (m *Namer) purgeSalt(ctx context.Context, sc skep.Scope) error {
	const op = "purge"
	n := m.Names
	ns := m.Names.Get(sc.Namespace)
	if ns == nil {
		return &skep.Error{Op: op, Kind: skep.NotFound, Field: "namespace", Value: sc.Namespace}
	}
	if sc.Salt == "" {
		return skep.Invalidf(op, "salt", "empty", "a salt; purge the namespace instead")
	}
	// A row is keyed by the salt's first tag and holds its present epoch; blocks carry the
	// tag of their epoch.
	seq := m.Root.Next()
	b := m.Catalog.NewBatch()
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
			err = errors.Join(err, w.Purge(&segment.Purge{Covers: seq, Instance: in, Salted: true,
				SaltTag: segment.SaltTag(dead.Tag)}))
		}
		if err != nil {
			return err
		}
	}
	todo := m.Logs.Intents.Put(b, &w)
	if err := m.Rows.Unsure(m.Root.Save(m.Context, m.Catalog, b, true)); err != nil { // as save: memory follows it
		return err
	}
	m.Logs.CarryOut(ctx, todo)
	m.Events.EmitIf(skep.Event{Kind: skep.EventPurged, Namespace: ns.Info.ID, Salted: true}, func() bool {
		for i, first := range firsts {
			n.KillTag(deads[i], 0)
			n.KillTag(first, seq)
		}
		return true
	})
	return nil
}
