package replication

import (
	"context"
	"slices"
	"sync/atomic"

	"github.com/skepkv/skep"
)

// CountBlocks implements skep.Lister: what all nodes have, so a block counts as often as there are copies of it.
func (s many) CountBlocks(ctx context.Context, id skep.NamespaceID) (int64, error) {
	const op = "count blocks"
	sp, err := s.enter(ctx, op, id)
	if err != nil {
		return 0, err
	}
	var sum atomic.Int64
	var there atomic.Bool
	err = s.all(ctx, op, func(n *node) error {
		return s.on(ctx, op, n, sp, false, func(ctx context.Context, id skep.NamespaceID) error {
			there.Store(true)
			k, err := n.st.CountBlocks(ctx, id)
			sum.Add(k)
			return err
		})
	})
	if err == nil && !there.Load() {
		err = s.nowhere(op, sp)
	}
	return sum.Load(), err
}

// ListKeys implements skep.Lister: one node after another. A place is a node's own with the node's number here before it,
// above the bits that places have. A key comes once for each copy.
func (s many) ListKeys(ctx context.Context, id skep.NamespaceID, from uint64, count int) (keys []skep.Key, next uint64, err error) {
	const op = "list keys"
	if count < 1 {
		return nil, 0, skep.Invalidf(op, "keys", count, "at least 1")
	}
	sp, err := s.enter(ctx, op, id)
	if err != nil {
		return nil, 0, err
	}
	i := from >> skep.ListPlaceBits
	for ; i < uint64(len(s.nodes)) && !slices.Contains(s.live, s.nodes[i]); i++ {
		from = 0
	}
	if i >= uint64(len(s.nodes)) {
		return nil, 0, nil
	}
	n := s.nodes[i]
	err = s.on(ctx, op, n, sp, false, func(ctx context.Context, id skep.NamespaceID) (err error) {
		keys, next, err = n.st.ListKeys(ctx, id, from&(1<<skep.ListPlaceBits-1), count)
		return err
	})
	switch {
	case err != nil && ctx.Err() != nil:
		return nil, 0, ended(ctx, op)
	case err != nil && s.away(err):
		return nil, 0, n.missing(op, err)
	case err != nil:
		return nil, 0, err
	case next != 0:
		next |= i << skep.ListPlaceBits
	case i+1 < uint64(len(s.nodes)):
		next = (i + 1) << skep.ListPlaceBits
	}
	return keys, next, nil
}
