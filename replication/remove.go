package replication

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/replication/checks"
	"github.com/skepkv/skep/replication/copies"
)

// named asks every node for those of keys that it has: of keys that stand alone, the nodes that they go to. It adds
// up what they say, and is at most one a key; there is how many of keys some node has, -1 where nobody was asked that.
// Made has nodes be given the namespace that do not have it.
func (s many) named(ctx context.Context, op string, sp *space, sc skep.Scope, keys []skep.Key, made bool,
	f func(ctx context.Context, n *node, sc skep.Scope, keys []skep.Key) (int, error)) (total, there int, err error) {
	most := len(keys)
	there = -1
	if s.copies(sp) > 1 {
		if lists, err := s.whoHas(ctx, op, sp, sc.Salt, keys); err == nil { // a node does not say which it deleted
			there = copies.Present(keys, lists)
			most = there
		}
	}
	var sum atomic.Int64
	at := s.alonesAt(sp, sc.Salt, keys)
	err = s.all(ctx, op, func(n *node) error {
		mine := keys
		if !sp.Chained {
			mine = copies.KeysOf(keys, at, n, true)
		}
		if len(mine) == 0 {
			return nil
		}
		return s.on(ctx, op, n, sp, made, func(ctx context.Context, id skep.NamespaceID) error {
			k, err := f(ctx, n, skep.Scope{Namespace: id, Salt: sc.Salt}, mine)
			sum.Add(int64(k))
			return err
		})
	})
	return int(min(sum.Load(), int64(most))), there, err
}

// missed says whether there are nodes that are down. The others remember for them what is deleted (package fence):
// those that lack the namespace, too, which are given it.
func (s many) missed() bool { return len(s.live) < len(s.owner) }

// missable refuses a deletion that a node which is down misses, where it is not remembered.
func (s many) missable(op string, remembered bool) error {
	if down := s.of.Down(); len(down) > 0 && !remembered {
		return &skep.Error{Op: op, Kind: skep.Unavailable, Field: "node", Value: down[0].Name, Limit: "one that is not down"}
	}
	return nil
}

// alonesAt is the nodes that keys which stand alone go to; nil of a chain's.
func (s many) alonesAt(sp *space, salt skep.Salt, keys []skep.Key) []*node {
	if sp.Chained {
		return nil
	}
	out := make([]*node, len(keys))
	for i, k := range keys {
		out[i] = s.nodeOf(sp, salt, k)
	}
	return out
}

// Delete implements skep.Deleter. A block of a chain is deleted wherever it is, so every node has to answer; where
// one did not, what the others had is gone and the error is Unavailable. A key that stands alone is deleted where it
// goes to, and at the nodes that answer where an earlier map had it, or a later one would show it again. Nodes that are
// down need not answer where the namespace is of class Cache: the others remember it for them.
func (s many) Delete(ctx context.Context, sc skep.Scope, keys []skep.Key) (int, error) {
	const op = "delete"
	if err := checks.Keys(op, len(keys), sc); err != nil {
		return 0, err
	}
	sp, err := s.enter(ctx, op, sc.Namespace)
	if err != nil {
		return 0, err
	}
	if err := s.missable(op, sp.Class == skep.Cache); err != nil {
		return 0, err
	}
	var beside sync.WaitGroup
	var stray error
	if !sp.Chained && s.of.Epoch > 1 {
		beside.Go(func() { stray = s.deleteStrays(ctx, op, sp, sc, keys) })
	}
	n, there, err := s.named(ctx, op, sp, sc, keys, s.missed(),
		func(ctx context.Context, n *node, sc skep.Scope, keys []skep.Key) (int, error) {
			return n.st.Delete(ctx, sc, keys)
		})
	beside.Wait()
	if err == nil {
		err = stray
	}
	if err == nil && there >= 0 {
		return there, nil // a node may have deleted a copy at another one before that one was asked
	}
	return n, err
}

// deleteStrays deletes keys that stand alone at the nodes that they do not go to and that answer.
func (s many) deleteStrays(ctx context.Context, op string, sp *space, sc skep.Scope, keys []skep.Key) error {
	at := s.alonesAt(sp, sc.Salt, keys)
	for _, err := range s.each(func(n *node) error {
		strays := copies.KeysOf(keys, at, n, false)
		if len(strays) == 0 {
			return nil
		}
		return s.on(ctx, op, n, sp, false, func(ctx context.Context, id skep.NamespaceID) error {
			_, err := n.st.Delete(ctx, skep.Scope{Namespace: id, Salt: sc.Salt}, strays)
			return err
		})
	}) {
		if err != nil && (ctx.Err() != nil || !s.away(err)) {
			return err
		}
	}
	return nil
}

// Hint implements skep.Hinter. A node that is away is hinted nothing. Each node has a budget of pins of its own:
// where one is over it, the others have pinned.
func (s many) Hint(ctx context.Context, sc skep.Scope, keys []skep.Key, h skep.Hint) (int, error) {
	const op = "hint"
	if err := checks.Keys(op, len(keys), sc); err != nil {
		return 0, err
	}
	if err := h.Validate(); err != nil {
		return 0, err
	}
	sp, err := s.enter(ctx, op, sc.Namespace)
	if err != nil {
		return 0, err
	}
	total, _, err := s.named(ctx, op, sp, sc, keys, false, func(
		ctx context.Context, n *node, sc skep.Scope, keys []skep.Key,
	) (int, error) {
		k, err := n.st.Hint(ctx, sc, keys, h)
		if err != nil && ctx.Err() == nil && s.away(err) {
			return 0, nil
		}
		return k, err
	})
	return total, err
}

// Purge implements skep.Deleter. It has to reach every node: what one that did not answer has is to be purged again.
func (s many) Purge(ctx context.Context, p skep.Purge) error {
	const op = "purge"
	if err := p.Validate(); err != nil {
		return err
	}
	if p.Salt != nil && p.Salt.Salt == "" {
		return skep.Invalidf(op, "salt", "empty", "a salt; purge the namespace for the rest")
	}
	if err := s.begin(ctx, op); err != nil {
		return err
	}
	if p.Tenant != "" || p.Model != "" {
		if err := s.missable(op, p.Model == ""); err != nil {
			return err
		}
		return s.all(ctx, op, func(n *node) error { return n.st.Purge(ctx, p) })
	}
	named := p.Namespace
	if p.Salt != nil {
		named = p.Salt.Namespace
	}
	sp, err := s.spaces.get(op, named)
	if err != nil {
		return err
	}
	if err := s.missable(op, p.Salt == nil || sp.Class == skep.Cache); err != nil {
		return err
	}
	return s.all(ctx, op, func(n *node) error {
		return s.on(ctx, op, n, sp, s.missed(), func(ctx context.Context, id skep.NamespaceID) error {
			if p.Salt == nil {
				return n.st.Purge(ctx, skep.Purge{Namespace: id})
			}
			return n.st.Purge(ctx, skep.Purge{Salt: &skep.Scope{Namespace: id, Salt: p.Salt.Salt}})
		})
	})
}
