// Package calls is a Store whose calls are made at a Store that is chosen for each of them.
package calls

import (
	"context"
	"time"

	"github.com/skepkv/skep"
)

// Calls are those of a skep.Store that have a context, but for Close.
type Calls struct {
	on func(ctx context.Context, call func(ctx context.Context, st skep.Store) error) error
}

// New makes calls by on, which makes one at a Store, or more than once, or says why not.
func New(on func(ctx context.Context, call func(ctx context.Context, st skep.Store) error) error) Calls {
	return Calls{on}
}

func by[T any](ctx context.Context, c Calls, f func(ctx context.Context, st skep.Store) (T, error)) (out T, err error) {
	err = c.on(ctx, func(ctx context.Context, st skep.Store) (err error) {
		out, err = f(ctx, st)
		return err
	})
	return out, err
}

// Renew implements skep.Store.
func (c Calls) Renew(ctx context.Context, id skep.LeaseID, d time.Duration) (skep.Lease, error) {
	return by(ctx, c, func(ctx context.Context, st skep.Store) (skep.Lease, error) { return st.Renew(ctx, id, d) })
}

// Release implements skep.Store.
func (c Calls) Release(ctx context.Context, id skep.LeaseID) error {
	return c.on(ctx, func(ctx context.Context, st skep.Store) error { return st.Release(ctx, id) })
}

// Lookup implements skep.Store.
func (c Calls) Lookup(ctx context.Context, r *skep.LookupRequest) (skep.LookupResult, error) {
	return by(ctx, c, func(ctx context.Context, st skep.Store) (skep.LookupResult, error) { return st.Lookup(ctx, r) })
}

// LookupRuns implements skep.Store.
func (c Calls) LookupRuns(ctx context.Context, r *skep.RunsRequest) (skep.RunsResult, error) {
	return by(ctx, c, func(ctx context.Context, st skep.Store) (skep.RunsResult, error) { return st.LookupRuns(ctx, r) })
}

// Want implements skep.Store.
func (c Calls) Want(ctx context.Context, r *skep.WantRequest) ([]skep.Want, error) {
	return by(ctx, c, func(ctx context.Context, st skep.Store) ([]skep.Want, error) { return st.Want(ctx, r) })
}

// Begin implements skep.Store.
func (c Calls) Begin(ctx context.Context, r *skep.BeginRequest) (skep.BlockWriter, error) {
	return by(ctx, c, func(ctx context.Context, st skep.Store) (skep.BlockWriter, error) { return st.Begin(ctx, r) })
}

// Delete implements skep.Store.
func (c Calls) Delete(ctx context.Context, sc skep.Scope, keys []skep.Key) (int, error) {
	return by(ctx, c, func(ctx context.Context, st skep.Store) (int, error) { return st.Delete(ctx, sc, keys) })
}

// Hint implements skep.Store.
func (c Calls) Hint(ctx context.Context, sc skep.Scope, keys []skep.Key, h skep.Hint) (int, error) {
	return by(ctx, c, func(ctx context.Context, st skep.Store) (int, error) { return st.Hint(ctx, sc, keys, h) })
}

// Purge implements skep.Store.
func (c Calls) Purge(ctx context.Context, p skep.Purge) error {
	return c.on(ctx, func(ctx context.Context, st skep.Store) error { return st.Purge(ctx, p) })
}

// Restore implements skep.Store.
func (c Calls) Restore(ctx context.Context, r *skep.RestoreRequest) (skep.Session, error) {
	return by(ctx, c, func(ctx context.Context, st skep.Store) (skep.Session, error) { return st.Restore(ctx, r) })
}

// FindNamespace implements skep.Store.
func (c Calls) FindNamespace(ctx context.Context, id skep.NamespaceID) (skep.NamespaceInfo, error) {
	return by(ctx, c, func(ctx context.Context, st skep.Store) (skep.NamespaceInfo, error) {
		return st.FindNamespace(ctx, id)
	})
}

// DeleteNamespace implements skep.Store.
func (c Calls) DeleteNamespace(ctx context.Context, id skep.NamespaceID) error {
	return c.on(ctx, func(ctx context.Context, st skep.Store) error { return st.DeleteNamespace(ctx, id) })
}

// Stats implements skep.Store.
func (c Calls) Stats(ctx context.Context) (skep.Stats, error) {
	return by(ctx, c, func(ctx context.Context, st skep.Store) (skep.Stats, error) { return st.Stats(ctx) })
}

// Alloc implements skep.Store.
func (c Calls) Alloc(ctx context.Context, n int64) (skep.Memory, error) {
	return by(ctx, c, func(ctx context.Context, st skep.Store) (skep.Memory, error) { return st.Alloc(ctx, n) })
}

// Flush implements skep.Store.
func (c Calls) Flush(ctx context.Context) error {
	return c.on(ctx, func(ctx context.Context, st skep.Store) error { return st.Flush(ctx) })
}

// Events implements skep.Store.
func (c Calls) Events(ctx context.Context, from skep.Cursor, snapshot bool) (skep.EventStream, error) {
	return by(ctx, c, func(ctx context.Context, st skep.Store) (skep.EventStream, error) {
		return st.Events(ctx, from, snapshot)
	})
}

// CountBlocks implements skep.Store.
func (c Calls) CountBlocks(ctx context.Context, id skep.NamespaceID) (int64, error) {
	return by(ctx, c, func(ctx context.Context, st skep.Store) (int64, error) {
		return st.CountBlocks(ctx, id)
	})
}

// ListKeys implements skep.Store.
func (c Calls) ListKeys(ctx context.Context, id skep.NamespaceID, from uint64, n int) (
	keys []skep.Key, next uint64, err error) {
	err = c.on(ctx, func(ctx context.Context, st skep.Store) (err error) {
		keys, next, err = st.ListKeys(ctx, id, from, n)
		return err
	})
	return keys, next, err
}

// Put implements skep.Store.
func (c Calls) Put(ctx context.Context, r *skep.PutRequest) ([]skep.PutResult, error) {
	return by(ctx, c, func(ctx context.Context, st skep.Store) ([]skep.PutResult, error) { return st.Put(ctx, r) })
}

// OpenNamespace implements skep.Store.
func (c Calls) OpenNamespace(ctx context.Context, spec skep.NamespaceSpec) (skep.NamespaceInfo, error) {
	return by(ctx, c, func(ctx context.Context, st skep.Store) (skep.NamespaceInfo, error) {
		return st.OpenNamespace(ctx, spec)
	})
}

// Namespaces implements skep.Store.
func (c Calls) Namespaces(ctx context.Context) ([]skep.NamespaceInfo, error) {
	return by(ctx, c, func(ctx context.Context, st skep.Store) ([]skep.NamespaceInfo, error) {
		return st.Namespaces(ctx)
	})
}

// NamespacesOf implements skep.Store.
func (c Calls) NamespacesOf(ctx context.Context, tenant string) ([]skep.NamespaceInfo, error) {
	return by(ctx, c, func(ctx context.Context, st skep.Store) ([]skep.NamespaceInfo, error) {
		return st.NamespacesOf(ctx, tenant)
	})
}

// PutSidecar implements skep.Store.
func (c Calls) PutSidecar(ctx context.Context, sc skep.Scope, key skep.Key, pieces []skep.SidecarPiece) error {
	return c.on(ctx, func(ctx context.Context, st skep.Store) error { return st.PutSidecar(ctx, sc, key, pieces) })
}

// Sidecar implements skep.Store.
func (c Calls) Sidecar(ctx context.Context, sc skep.Scope, key skep.Key) ([]skep.SidecarPiece, error) {
	return by(ctx, c, func(ctx context.Context, st skep.Store) ([]skep.SidecarPiece, error) {
		return st.Sidecar(ctx, sc, key)
	})
}
