package store

import (
	"context"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/internal/admin"
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

// DeleteNamespace implements skep.Deleter.
func (s *Store) DeleteNamespace(ctx context.Context, id skep.NamespaceID) error {
	if err := s.gate.EnterWrite(ctx, "delete namespace"); err != nil {
		return err
	}
	defer s.gate.Leave()
	return s.naming.Delete(ctx, id)
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
