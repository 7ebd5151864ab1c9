package replication

import (
	"context"

	"github.com/skepkv/skep"
)

// to is the Store that carries calls out by a view. Where there is one node it is that node's, and nothing is done to a
// call on its way: no blocks are grouped, and namespaces, leases and events have the node's own numbers.
func (s *Store) to(v *view) skep.Store {
	if one := v.only(); one != nil {
		return one
	}
	return many{s, v}
}

// lacking is st, but for what no step has brought to a cluster of several nodes: see the package's text.
func lacking(st skep.Store) skep.Store {
	if _, several := st.(many); several {
		return skep.UnsupportedStore{}
	}
	return st
}

// Put implements skep.Store.
func (s *Store) Put(ctx context.Context, r *skep.PutRequest) ([]skep.PutResult, error) {
	var first []skep.PutResult // what some nodes stored where another's map was newer
	return by(ctx, s, func(ctx context.Context, st skep.Store) ([]skep.PutResult, error) {
		out, err := st.Put(ctx, r)
		for i := range min(len(first), len(out)) {
			if first[i].Outcome == skep.Committed || first[i].Outcome == skep.Accepted {
				out[i] = first[i]
			}
		}
		first = out
		return out, err
	})
}

// numbering is by of a call that gives numbers of namespaces: a Store without a map gives the server's.
func numbering[T any](ctx context.Context, s *Store, f func(ctx context.Context, st skep.Store) (T, error)) (T, error) {
	return by(ctx, s, func(ctx context.Context, st skep.Store) (T, error) {
		out, err := f(ctx, st)
		if err == nil && st == skep.Store(s.seed) {
			s.numbered.Store(true)
		}
		return out, err
	})
}

// OpenNamespace implements skep.Store.
func (s *Store) OpenNamespace(ctx context.Context, spec skep.NamespaceSpec) (skep.NamespaceInfo, error) {
	return numbering(ctx, s, func(ctx context.Context, st skep.Store) (skep.NamespaceInfo, error) {
		return st.OpenNamespace(ctx, spec)
	})
}

// Namespaces implements skep.Store.
func (s *Store) Namespaces(ctx context.Context) ([]skep.NamespaceInfo, error) {
	return numbering(ctx, s, func(ctx context.Context, st skep.Store) ([]skep.NamespaceInfo, error) {
		return st.Namespaces(ctx)
	})
}

// NamespacesOf implements skep.Store.
func (s *Store) NamespacesOf(ctx context.Context, tenant string) ([]skep.NamespaceInfo, error) {
	return numbering(ctx, s, func(ctx context.Context, st skep.Store) ([]skep.NamespaceInfo, error) {
		return st.NamespacesOf(ctx, tenant)
	})
}

// PutSidecar implements skep.Store.
func (s *Store) PutSidecar(ctx context.Context, sc skep.Scope, key skep.Key, pieces []skep.SidecarPiece) error {
	return act(ctx, s, func(ctx context.Context, st skep.Store) error {
		return lacking(st).PutSidecar(ctx, sc, key, pieces)
	})
}

// Sidecar implements skep.Store.
func (s *Store) Sidecar(ctx context.Context, sc skep.Scope, key skep.Key) ([]skep.SidecarPiece, error) {
	return by(ctx, s, func(ctx context.Context, st skep.Store) ([]skep.SidecarPiece, error) {
		return lacking(st).Sidecar(ctx, sc, key)
	})
}

// Register implements skep.Store.
func (s *Store) Register(mem []byte) (func(), error) {
	return lacking(s.to(s.now.Load())).Register(mem)
}

// DeviceCount implements skep.Store.
func (s *Store) DeviceCount() (int, error) { return lacking(s.to(s.now.Load())).DeviceCount() }

// DeviceOf implements skep.Store.
func (s *Store) DeviceOf(sc skep.Scope, key skep.Key) (int, error) {
	return lacking(s.to(s.now.Load())).DeviceOf(sc, key)
}
