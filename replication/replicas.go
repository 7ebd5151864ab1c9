package replication

import (
	"context"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/replication/placement"
)

// copies is how many nodes have each block of a namespace. Keys that stand alone are written over and have no versions
// yet, by which two nodes could agree on the last: they have one.
func (s many) copies(sp *space) int {
	if !sp.Chained {
		return 1
	}
	return s.table.Copies()
}

// acks is how many nodes have to have a block that is acknowledged.
func (s many) acks(sp *space) int {
	switch {
	case !sp.Chained:
		return 1
	case s.of.Acks > 0:
		return s.of.Acks
	case sp.Class == skep.Durable:
		return max(1, s.of.Replicas)
	}
	return 1
}

// nodeOf is the node of a group.
func (s many) nodeOf(sp *space, salt skep.Salt, anchor skep.Key) *node {
	return s.owner[s.table.Node(s.table.Slot(sp.place, placement.Stored(salt, anchor)))]
}

// NodeOf is the name of the node that a key which stands alone goes to, without salt; "": that is not known.
func (s *Store) NodeOf(ns skep.NamespaceID, k skep.Key) string {
	v := s.now.Load()
	sp, err := s.spaces.get("find node", ns)
	if err != nil || !v.mapped() {
		return ""
	}
	var none skep.Salt
	return many{s, v}.nodeOf(sp, none, k).Name
}

// holders is the places in the map of the nodes that have a group, the first one first.
func (s many) holders(sp *space, salt skep.Salt, anchor skep.Key) []uint16 {
	at := s.table.Nodes(s.table.Slot(sp.place, placement.Stored(salt, anchor)))
	return at[:min(len(at), s.copies(sp))]
}

// holding is the nodes at these places.
func (s many) holding(sp *space, salt skep.Salt, anchor skep.Key) (out []*node) {
	for _, at := range s.holders(sp, salt, anchor) {
		out = append(out, s.owner[at])
	}
	return out
}

// other is the nth of a group's nodes but for one that was asked; nil where there are no more.
func (s many) other(sp *space, salt skep.Salt, anchor skep.Key, not *node, n int) *node {
	for _, at := range s.holders(sp, salt, anchor) {
		x := s.owner[at]
		if x == not {
			continue
		}
		if n == 0 {
			return x
		}
		n--
	}
	return nil
}

// whoHas asks every node what a put of keys would be there, by node; nil of those that are away.
func (s many) whoHas(ctx context.Context, op string, sp *space, salt skep.Salt, keys []skep.Key) ([][]skep.Want, error) {
	lists := make([][]skep.Want, len(s.nodes))
	for _, err := range s.each(func(n *node) (err error) {
		lists[n.i], err = s.hasOf(ctx, op, n, sp, salt, keys)
		return err
	}) {
		if err != nil && !s.away(err) {
			return nil, err
		}
	}
	return lists, nil
}

// hasOf asks a node what a put of keys would be there.
func (s many) hasOf(ctx context.Context, op string, n *node, sp *space, salt skep.Salt, keys []skep.Key) (list []skep.Want, err error) {
	err = s.on(ctx, op, n, sp, false, func(ctx context.Context, id skep.NamespaceID) (err error) {
		list, err = n.st.Want(ctx, &skep.WantRequest{Scope: skep.Scope{Namespace: id, Salt: salt}, Keys: keys})
		return err
	})
	return list, err
}

// Holders is a lookup without a lease, and how many of the blocks found each node gives, by its name: of copies the one
// that answered counts.
//
// Errors: those of Lookup.
func (s *Store) Holders(ctx context.Context, r *skep.LookupRequest) (skep.LookupResult, map[string]int, error) {
	of := map[string]int{}
	if err := r.Validate(); err != nil {
		return skep.LookupResult{}, nil, err
	}
	out, err := by(ctx, s, func(ctx context.Context, st skep.Store) (skep.LookupResult, error) {
		clear(of)
		m, ok := st.(many)
		if !ok { // one node is the cluster
			out, err := st.Lookup(ctx, &skep.LookupRequest{Scope: r.Scope, Keys: r.Keys, Lease: skep.NoLease, Cost: r.Cost})
			of[s.now.Load().owner[0].Name] += out.Blocks
			return out, err
		}
		found, _, _, err := m.look(ctx, "lookup", r.Scope, [][]skep.Key{r.Keys}, ask{lease: skep.NoLease, cost: r.Cost})
		if err != nil {
			return skep.LookupResult{}, err
		}
		for _, x := range found[0].spans {
			of[x.node.Name] += x.to - x.from
		}
		return found[0].LookupResult, nil
	})
	return out, of, err
}
