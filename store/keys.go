package store

import (
	"cmp"
	"context"
	"slices"

	"github.com/skepkv/skep"
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
	return s.naming.Open(ctx, spec)
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
