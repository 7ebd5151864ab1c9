package store

import (
	"context"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/internal/lookup"
)

// CountBlocks implements skep.Store.
func (s *Store) CountBlocks(ctx context.Context, space skep.NamespaceID) (int64, error) {
	if err := s.gate.Enter(ctx); err != nil {
		return 0, err
	}
	defer s.gate.Leave()
	ns, _, err := s.names.Resolve("count blocks", skep.Scope{Namespace: space})
	if err != nil {
		return 0, err
	}
	return s.index.Count(ns.Instance, ns.Tenant), nil
}

// ListKeys implements skep.Store. A place in the listing is a place in the index of this run: it is told in disguise,
// since it depends on what others store. One of another run begins anew.
func (s *Store) ListKeys(ctx context.Context, space skep.NamespaceID, from uint64, n int) (keys []skep.Key,
	next uint64, err error) {
	if err := lookup.CheckList("list keys", n); err != nil {
		return nil, 0, err
	}
	if err := s.gate.Enter(ctx); err != nil {
		return nil, 0, err
	}
	defer s.gate.Leave()
	return s.lookups.Keys(space, from, n)
}

// ListBlocks is ListKeys with what each block is, for who keeps copies of them elsewhere. Chains are cut into groups
// of so many blocks, and a block names the first of its group; one of which it is not known is left out.
//
// Errors: those of ListKeys.
func (s *Store) ListBlocks(ctx context.Context, space skep.NamespaceID, group int, from uint64, n int) (out []skep.StoredBlock,
	next uint64, err error) {
	const op = "list blocks"
	if group < 1 {
		return nil, 0, skep.Invalidf(op, "blocks of a group", group, "at least 1")
	}
	if err := lookup.CheckList(op, n); err != nil {
		return nil, 0, err
	}
	if err := s.gate.Enter(ctx); err != nil {
		return nil, 0, err
	}
	defer s.gate.Leave()
	return s.lookups.Blocks(space, group, from, n)
}
