package replication

import (
	"context"
	"time"

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

// Renew implements skep.Store.
func (s *Store) Renew(ctx context.Context, id skep.LeaseID, d time.Duration) (skep.Lease, error) {
	return by(ctx, s, func(ctx context.Context, st skep.Store) (skep.Lease, error) { return st.Renew(ctx, id, d) })
}

// Release implements skep.Store.
func (s *Store) Release(ctx context.Context, id skep.LeaseID) error {
	return act(ctx, s, func(ctx context.Context, st skep.Store) error { return st.Release(ctx, id) })
}

// Lookup implements skep.Store.
func (s *Store) Lookup(ctx context.Context, r *skep.LookupRequest) (skep.LookupResult, error) {
	return by(ctx, s, func(ctx context.Context, st skep.Store) (skep.LookupResult, error) { return st.Lookup(ctx, r) })
}

// LookupRuns implements skep.Store.
func (s *Store) LookupRuns(ctx context.Context, r *skep.RunsRequest) (skep.RunsResult, error) {
	return by(ctx, s, func(ctx context.Context, st skep.Store) (skep.RunsResult, error) { return st.LookupRuns(ctx, r) })
}

// Want implements skep.Store.
func (s *Store) Want(ctx context.Context, r *skep.WantRequest) ([]skep.Want, error) {
	return by(ctx, s, func(ctx context.Context, st skep.Store) ([]skep.Want, error) { return st.Want(ctx, r) })
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

// Begin implements skep.Store.
func (s *Store) Begin(ctx context.Context, r *skep.BeginRequest) (skep.BlockWriter, error) {
	return by(ctx, s, func(ctx context.Context, st skep.Store) (skep.BlockWriter, error) { return st.Begin(ctx, r) })
}

// Delete implements skep.Store.
func (s *Store) Delete(ctx context.Context, sc skep.Scope, keys []skep.Key) (int, error) {
	return by(ctx, s, func(ctx context.Context, st skep.Store) (int, error) { return st.Delete(ctx, sc, keys) })
}

// Hint implements skep.Store.
func (s *Store) Hint(ctx context.Context, sc skep.Scope, keys []skep.Key, h skep.Hint) (int, error) {
	return by(ctx, s, func(ctx context.Context, st skep.Store) (int, error) { return st.Hint(ctx, sc, keys, h) })
}

// Purge implements skep.Store.
func (s *Store) Purge(ctx context.Context, p skep.Purge) error {
	return act(ctx, s, func(ctx context.Context, st skep.Store) error { return st.Purge(ctx, p) })
}

// Restore implements skep.Store.
func (s *Store) Restore(ctx context.Context, r *skep.RestoreRequest) (skep.Session, error) {
	return by(ctx, s, func(ctx context.Context, st skep.Store) (skep.Session, error) { return st.Restore(ctx, r) })
}

// numbers notes that a Store without a map gives its callers the server's numbers of namespaces.
func (s *Store) numbers(st skep.Store, err error) {
	if err == nil && st == skep.Store(s.seed) {
		s.numbered.Store(true)
	}
}

// OpenNamespace implements skep.Store.
func (s *Store) OpenNamespace(ctx context.Context, spec skep.NamespaceSpec) (skep.NamespaceInfo, error) {
	return by(ctx, s, func(ctx context.Context, st skep.Store) (skep.NamespaceInfo, error) {
		out, err := st.OpenNamespace(ctx, spec)
		s.numbers(st, err)
		return out, err
	})
}

// Namespaces implements skep.Store.
func (s *Store) Namespaces(ctx context.Context) ([]skep.NamespaceInfo, error) {
	return by(ctx, s, func(ctx context.Context, st skep.Store) ([]skep.NamespaceInfo, error) {
		out, err := st.Namespaces(ctx)
		s.numbers(st, err)
		return out, err
	})
}

// NamespacesOf implements skep.Store.
func (s *Store) NamespacesOf(ctx context.Context, tenant string) ([]skep.NamespaceInfo, error) {
	return by(ctx, s, func(ctx context.Context, st skep.Store) ([]skep.NamespaceInfo, error) {
		out, err := st.NamespacesOf(ctx, tenant)
		s.numbers(st, err)
		return out, err
	})
}

// FindNamespace implements skep.Store.
func (s *Store) FindNamespace(ctx context.Context, id skep.NamespaceID) (skep.NamespaceInfo, error) {
	return by(ctx, s, func(ctx context.Context, st skep.Store) (skep.NamespaceInfo, error) {
		return st.FindNamespace(ctx, id)
	})
}

// DeleteNamespace implements skep.Store.
func (s *Store) DeleteNamespace(ctx context.Context, id skep.NamespaceID) error {
	return act(ctx, s, func(ctx context.Context, st skep.Store) error { return st.DeleteNamespace(ctx, id) })
}

// Stats implements skep.Store.
func (s *Store) Stats(ctx context.Context) (skep.Stats, error) {
	return by(ctx, s, func(ctx context.Context, st skep.Store) (skep.Stats, error) { return st.Stats(ctx) })
}

// Alloc implements skep.Store.
func (s *Store) Alloc(ctx context.Context, n int64) (skep.Memory, error) {
	return by(ctx, s, func(ctx context.Context, st skep.Store) (skep.Memory, error) { return st.Alloc(ctx, n) })
}

// Flush implements skep.Store.
func (s *Store) Flush(ctx context.Context) error {
	return act(ctx, s, func(ctx context.Context, st skep.Store) error { return st.Flush(ctx) })
}

// Events implements skep.Store.
func (s *Store) Events(ctx context.Context, from skep.Cursor, snapshot bool) (skep.EventStream, error) {
	return by(ctx, s, func(ctx context.Context, st skep.Store) (skep.EventStream, error) {
		return st.Events(ctx, from, snapshot)
	})
}

// CountBlocks implements skep.Store.
func (s *Store) CountBlocks(ctx context.Context, id skep.NamespaceID) (int64, error) {
	return by(ctx, s, func(ctx context.Context, st skep.Store) (int64, error) {
		return st.CountBlocks(ctx, id)
	})
}

// ListKeys implements skep.Store.
func (s *Store) ListKeys(ctx context.Context, id skep.NamespaceID, from uint64, n int) (keys []skep.Key, next uint64, err error) {
	err = act(ctx, s, func(ctx context.Context, st skep.Store) (err error) {
		keys, next, err = st.ListKeys(ctx, id, from, n)
		return err
	})
	return keys, next, err
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
