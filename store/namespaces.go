package store

import (
	"context"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/catalog"
	"github.com/skepkv/skep/store/internal/admin"
	"github.com/skepkv/skep/store/internal/namespaces"
	"github.com/skepkv/skep/store/segment"
)

// FindNamespace implements skep.Store.
func (s *Store) FindNamespace(ctx context.Context, id skep.NamespaceID) (skep.NamespaceInfo, error) {
	if err := s.gate.Enter(ctx); err != nil {
		return skep.NamespaceInfo{}, err
	}
	defer s.gate.Leave()
	ns, _, err := s.names.Resolve("find namespace", skep.Scope{Namespace: id})
	if err != nil {
		return skep.NamespaceInfo{}, err
	}
	return ns.Info, nil
}

// NamespacesOf implements skep.Store. It looks at no other tenant's.
func (s *Store) NamespacesOf(ctx context.Context, tenant string) ([]skep.NamespaceInfo, error) {
	if err := s.gate.Enter(ctx); err != nil {
		return nil, err
	}
	defer s.gate.Leave()
	list := s.names.OfTenant(tenant)
	out := make([]skep.NamespaceInfo, len(list))
	for i, ns := range list {
		out[i] = ns.Info
	}
	return out, nil
}

// DeleteNamespace implements skep.Deleter. Like a purge it goes by the number that every block
// carries, the namespace's instance: no namespace has it afterwards, and no other ever gets it.
// So rows and log entries of its blocks mean nothing from the catalog's commit on, whenever they
// are met. For a rebuild, which has no catalog, the devices' logs say both that the instance is
// purged and that the namespace is deleted.
//
// What the logs say of the deletion may go when every group is gone that was opened before it
// was said: so it is said with a number that is taken when nobody writes the namespace's own
// entry again any more. See endedNow.
func (s *Store) DeleteNamespace(ctx context.Context, id skep.NamespaceID) error {
	const op = "delete namespace"
	if err := s.gate.EnterWrite(ctx, op); err != nil {
		return err
	}
	defer s.gate.Leave()
	gone, todo, err := s.endNamespace(ctx, op, id)
	if err != nil {
		return err
	}
	if s.logs.Entering.Wait(ctx) == nil {
		s.logs.CarryOut(ctx, todo...)
	} else {
		s.logs.Intents.Begin()
		s.background.Go(func() {
			defer s.logs.Intents.Tried()
			if s.logs.Entering.Wait(s.ctx) == nil {
				s.logs.Intents.Add(todo...)
			}
		})
	}
	for _, ns := range gone {
		s.events.Emit(skep.Event{Kind: skep.EventPurged, Namespace: ns.Info.ID})
	}
	s.background.Go(s.sweep)
	return nil
}

// endNamespace takes a namespace, and those of its clustered contexts, out of the catalog and out of
// memory. What the devices are to know of it is for the caller to carry out, once those have ended who were entering.
func (s *Store) endNamespace(ctx context.Context, op string, id skep.NamespaceID) (gone []*namespaces.Namespace, todo []catalog.Intent, err error) {
	if err := s.naming.Take(ctx, 2*s.options.OpTimeout, s.closing, op, "namespace being made"); err != nil {
		return nil, nil, err
	}
	defer s.naming.Give()
	n := s.names
	ns := n.Get(id)
	if ns == nil {
		return nil, nil, &skep.Error{Op: op, Kind: skep.NotFound, Field: "namespace", Value: id}
	}
	b := s.catalog.NewBatch()
	seq := s.root.Next()
	gone = n.WithClusters(ns)
	for _, ns := range gone {
		b.DeleteNamespace(ns.Info.ID)
		b.DeletePurgesOf(ns.Instance) // of its salts: what has no namespace needs none
		s.keys.Drop(b, ns.Instance)
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
		todo = append(todo, s.logs.Intents.Put(b, &w))
	}
	if err := s.saveNames(b, s.root.Numbers()); err != nil {
		return nil, nil, err
	}
	for _, ns := range gone {
		s.index.SetDead(ns.Instance)
		s.keys.Dropped(ns.Instance)
		n.Remove(ns)
	}
	return gone, todo, nil
}

// NamespaceRequest asks for a namespace to be deleted, by tenant and name.
type NamespaceRequest struct {
	Tenant string `json:"tenant"`
	Name   string `json:"name"`
	DryRun bool   `json:"dry_run,omitempty"`
}

// NamespaceDeletion is what came of it.
type NamespaceDeletion struct {
	ID     skep.NamespaceID `json:"id"`      // the namespace's number
	Tenant string           `json:"tenant"`  // who paid for it
	Name   string           `json:"name"`    // the namespace's name
	Blocks int64            `json:"blocks"`  // it had (blocks)
	Bytes  int64            `json:"bytes"`   // of their payload (bytes)
	DryRun bool             `json:"dry_run"` // nothing was changed
}

// DeleteNamed deletes the namespace that has a tenant's name, or with DryRun says what that would
// take along.
func (s *Store) DeleteNamed(ctx context.Context, r NamespaceRequest) (out NamespaceDeletion, err error) {
	ns := s.names.Named(r.Tenant, r.Name)
	if ns == nil {
		return out, &skep.Error{Op: "delete namespace", Kind: skep.NotFound, Field: "namespace", Value: r.Name, Limit: "one of tenant " + r.Tenant}
	}
	out = NamespaceDeletion{ID: ns.Info.ID, Tenant: r.Tenant, Name: r.Name, Bytes: ns.Stored.Load(), DryRun: r.DryRun}
	if out.Blocks, err = s.CountBlocks(ctx, ns.Info.ID); err != nil || r.DryRun {
		return out, err
	}
	return out, s.DeleteNamespace(ctx, ns.Info.ID)
}

// AskDeleteNamed has the store that is open in dir, in another process or this one, carry out DeleteNamed.
func AskDeleteNamed(ctx context.Context, dir string, r NamespaceRequest) (NamespaceDeletion, error) {
	return admin.Do[NamespaceDeletion](ctx, dir, "namespace", r)
}
