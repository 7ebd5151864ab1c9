package naming

import (
	"context"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/catalog"
	"github.com/skepkv/skep/store/internal/namespaces"
	"github.com/skepkv/skep/store/segment"
)

// Delete deletes a namespace, and those of its clustered contexts. Like a purge it goes by the number that every
// block carries, the namespace's instance: no namespace has it afterwards, and no other ever gets it.
// So rows and log entries of its blocks mean nothing from the catalog's commit on, whenever they
// are met. For a rebuild, which has no catalog, the devices' logs say both that the instance is
// purged and that the namespace is deleted.
//
// What the logs say of the deletion may go when every group is gone that was opened before it
// was said: so it is said with a number that is taken when nobody writes the namespace's own
// entry again any more. See package devlog.
func (m *Namer) Delete(ctx context.Context, id skep.NamespaceID) error {
	gone, todo, err := m.end(ctx, "delete namespace", id)
	if err != nil {
		return err
	}
	if m.Logs.Entering.Wait(ctx) == nil {
		m.Logs.CarryOut(ctx, todo...)
	} else {
		m.Logs.Intents.Begin()
		m.Background.Go(func() {
			defer m.Logs.Intents.Tried()
			if m.Logs.Entering.Wait(m.Context) == nil {
				m.Logs.Intents.Add(todo...)
			}
		})
	}
	for _, ns := range gone {
		m.Events.Emit(skep.Event{Kind: skep.EventPurged, Namespace: ns.Info.ID})
	}
	m.Background.Go(m.Sweep)
	return nil
}

// end takes a namespace, and those of its clustered contexts, out of the catalog and out of
// memory. What the devices are to know of it is for the caller to carry out, once those have ended who were entering.
func (m *Namer) end(ctx context.Context, op string, id skep.NamespaceID) (
	gone []*namespaces.Namespace, todo []catalog.Intent, err error,
) {
	if err := m.take(ctx, op); err != nil {
		return nil, nil, err
	}
	defer m.turn.Give()
	n := m.Names
	ns := n.Get(id)
	if ns == nil {
		return nil, nil, &skep.Error{Op: op, Kind: skep.NotFound, Field: "namespace", Value: id}
	}
	b := m.Catalog.NewBatch()
	seq := m.Root.Next()
	gone = n.WithClusters(ns)
	for _, ns := range gone {
		b.DeleteNamespace(ns.Info.ID)
		b.DeletePurgesOf(ns.Instance) // of its salts: what has no namespace needs none
		m.Keys.Drop(b, ns.Instance)
		b.DeleteSidesOf(ns.Instance, nil)
		end := ns.Entry(seq)
		end.Deleted = true
		var w segment.LogWriter
		if err := w.Purge(&segment.Purge{Seq: seq, Covers: seq, Instance: ns.Instance}); err != nil {
			return nil, nil, err
		}
		if err := w.Namespace(end); err != nil {
			return nil, nil, err
		}
		todo = append(todo, m.Logs.Intents.Put(b, &w))
	}
	if err := m.save(b, m.Root.Numbers()); err != nil {
		return nil, nil, err
	}
	for _, ns := range gone {
		m.Index.SetDead(ns.Instance)
		m.Keys.Dropped(ns.Instance)
		n.Remove(ns)
	}
	return gone, todo, nil
}
