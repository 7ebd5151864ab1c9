package store

import (
	"cmp"
	"context"
	"slices"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/catalog"
	"github.com/skepkv/skep/store/internal/namespaces"
	"github.com/skepkv/skep/store/segment"
)

// OpenNamespace implements skep.Namespacer.
func (s *Store) OpenNamespace(ctx context.Context, spec skep.NamespaceSpec) (skep.NamespaceInfo, error) {
	const op = "open namespace"
	var zero skep.NamespaceInfo
	if err := spec.Validate(); err != nil {
		return zero, err
	}
	if spec.Copies == 0 {
		spec.Copies = 1
	}
	if err := s.gate.Enter(ctx); err != nil {
		return zero, err
	}
	defer s.gate.Leave()
	if spec.Copies > s.space.UsableDrives() {
		return zero, skep.Invalidf(op, "copies", spec.Copies, "at most the number of devices, "+itoa(s.space.UsableDrives()))
	}
	if info, err := s.names.Known(spec); info.ID != 0 || err != nil {
		return info, err
	}
	if s.options.ReadOnly {
		return zero, &skep.Error{Op: op, Kind: skep.ReadOnly}
	}
	if err := s.naming.Take(ctx, 2*s.options.OpTimeout, s.closing, op, "namespace being made"); err != nil {
		return zero, err
	}
	defer s.naming.Give()
	if info, err := s.names.Known(spec); info.ID != 0 || err != nil {
		return info, err
	}
	n := s.names
	next, have := s.root.Numbers(), n.Len()
	if have >= namespaces.MaxNamespaces {
		return zero, skep.Invalidf(op, "namespaces", have, namespaces.MaxNamespaces)
	}
	if have, most := n.CountOf(spec.Tenant), s.options.TenantNamespaces; have >= most {
		return zero, &skep.Error{Op: op, Kind: skep.Quota, Field: "namespaces of the tenant", Value: have, Limit: "at most " + itoa(most)}
	}
	next.Namespace++
	next.Instance++
	info := skep.NamespaceInfo{ID: skep.NamespaceID(next.Namespace), NamespaceSpec: spec, Created: s.options.Wall().UTC()}
	// A row that cannot be entered would keep the store from opening.
	ns, err := n.Prepare(info, next.Instance)
	if err != nil {
		return zero, err
	}
	row := &catalog.Namespace{NamespaceInfo: info, Instance: next.Instance}
	b := s.catalog.NewBatch()
	b.PutNamespace(row)
	var w segment.LogWriter
	if err := w.Namespace(&segment.Namespace{Seq: s.root.Next(), Instance: row.Instance, Info: info}); err != nil {
		return zero, err
	}
	todo := s.logs.Intents.Put(b, &w)
	if err := s.saveNames(b, next); err != nil {
		return zero, err
	}
	n.Enter(ns)
	s.logs.CarryOut(ctx, todo) // before anybody can put a block of it
	n.Publish(ns)
	return ns.Info, nil
}

// Namespaces implements skep.Namespacer.
func (s *Store) Namespaces(ctx context.Context) ([]skep.NamespaceInfo, error) {
	if err := s.gate.Enter(ctx); err != nil {
		return nil, err
	}
	defer s.gate.Leave()
	out := make([]skep.NamespaceInfo, 0, s.names.Len())
	for ns := range s.names.All() {
		out = append(out, ns.Info)
	}
	slices.SortFunc(out, func(a, b skep.NamespaceInfo) int { return cmp.Compare(a.ID, b.ID) })
	return out, nil
}
