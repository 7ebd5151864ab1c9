package replication

import (
	"context"
	"time"

	"github.com/skepkv/skep"
)

// to is the Store that carries calls out. Where there is one node it is that node's, and nothing is done to a call on its
// way: no blocks are grouped, and namespaces, leases and events have the node's own numbers.
func (s *Store) to() skep.Store {
	if len(s.nodes) == 1 {
		return s.nodes[0].st
	}
	return many{s}
}

// lacked carries out what no step has brought to a cluster of several nodes: see the package's text.
func (s *Store) lacked() skep.Store {
	if len(s.nodes) == 1 {
		return s.nodes[0].st
	}
	return skep.UnsupportedStore{}
}

// Renew implements skep.Store.
func (s *Store) Renew(ctx context.Context, id skep.LeaseID, d time.Duration) (skep.Lease, error) {
	return s.to().Renew(ctx, id, d)
}

// Release implements skep.Store.
func (s *Store) Release(ctx context.Context, id skep.LeaseID) error { return s.to().Release(ctx, id) }

// Lookup implements skep.Store.
func (s *Store) Lookup(ctx context.Context, r *skep.LookupRequest) (skep.LookupResult, error) {
	return s.to().Lookup(ctx, r)
}

// LookupRuns implements skep.Store.
func (s *Store) LookupRuns(ctx context.Context, r *skep.RunsRequest) (skep.RunsResult, error) {
	return s.to().LookupRuns(ctx, r)
}

// Want implements skep.Store.
func (s *Store) Want(ctx context.Context, r *skep.WantRequest) ([]skep.Want, error) {
	return s.to().Want(ctx, r)
}

// Put implements skep.Store.
func (s *Store) Put(ctx context.Context, r *skep.PutRequest) ([]skep.PutResult, error) {
	return s.to().Put(ctx, r)
}

// Begin implements skep.Store.
func (s *Store) Begin(ctx context.Context, r *skep.BeginRequest) (skep.BlockWriter, error) {
	return s.to().Begin(ctx, r)
}

// Delete implements skep.Store.
func (s *Store) Delete(ctx context.Context, sc skep.Scope, keys []skep.Key) (int, error) {
	return s.to().Delete(ctx, sc, keys)
}

// Hint implements skep.Store.
func (s *Store) Hint(ctx context.Context, sc skep.Scope, keys []skep.Key, h skep.Hint) (int, error) {
	return s.to().Hint(ctx, sc, keys, h)
}

// Purge implements skep.Store.
func (s *Store) Purge(ctx context.Context, p skep.Purge) error { return s.to().Purge(ctx, p) }

// Restore implements skep.Store.
func (s *Store) Restore(ctx context.Context, r *skep.RestoreRequest) (skep.Session, error) {
	return s.to().Restore(ctx, r)
}

// OpenNamespace implements skep.Store.
func (s *Store) OpenNamespace(ctx context.Context, spec skep.NamespaceSpec) (skep.NamespaceInfo, error) {
	return s.to().OpenNamespace(ctx, spec)
}

// Namespaces implements skep.Store.
func (s *Store) Namespaces(ctx context.Context) ([]skep.NamespaceInfo, error) {
	return s.to().Namespaces(ctx)
}

// NamespacesOf implements skep.Store.
func (s *Store) NamespacesOf(ctx context.Context, tenant string) ([]skep.NamespaceInfo, error) {
	return s.to().NamespacesOf(ctx, tenant)
}

// FindNamespace implements skep.Store.
func (s *Store) FindNamespace(ctx context.Context, id skep.NamespaceID) (skep.NamespaceInfo, error) {
	return s.to().FindNamespace(ctx, id)
}

// DeleteNamespace implements skep.Store.
func (s *Store) DeleteNamespace(ctx context.Context, id skep.NamespaceID) error {
	return s.to().DeleteNamespace(ctx, id)
}

// Stats implements skep.Store.
func (s *Store) Stats(ctx context.Context) (skep.Stats, error) { return s.to().Stats(ctx) }

// Alloc implements skep.Store.
func (s *Store) Alloc(ctx context.Context, n int64) (skep.Memory, error) { return s.to().Alloc(ctx, n) }

// Flush implements skep.Store.
func (s *Store) Flush(ctx context.Context) error { return s.to().Flush(ctx) }

// Events implements skep.Store.
func (s *Store) Events(ctx context.Context, from skep.Cursor, snapshot bool) (skep.EventStream, error) {
	return s.to().Events(ctx, from, snapshot)
}

// CountBlocks implements skep.Store.
func (s *Store) CountBlocks(ctx context.Context, id skep.NamespaceID) (int64, error) {
	return s.lacked().CountBlocks(ctx, id)
}

// ListKeys implements skep.Store.
func (s *Store) ListKeys(ctx context.Context, id skep.NamespaceID, from uint64, n int) ([]skep.Key, uint64, error) {
	return s.lacked().ListKeys(ctx, id, from, n)
}

// PutSidecar implements skep.Store.
func (s *Store) PutSidecar(ctx context.Context, sc skep.Scope, key skep.Key, pieces []skep.SidecarPiece) error {
	return s.lacked().PutSidecar(ctx, sc, key, pieces)
}

// Sidecar implements skep.Store.
func (s *Store) Sidecar(ctx context.Context, sc skep.Scope, key skep.Key) ([]skep.SidecarPiece, error) {
	return s.lacked().Sidecar(ctx, sc, key)
}

// Register implements skep.Store.
func (s *Store) Register(mem []byte) (func(), error) { return s.lacked().Register(mem) }

// DeviceCount implements skep.Store.
func (s *Store) DeviceCount() (int, error) { return s.lacked().DeviceCount() }

// DeviceOf implements skep.Store.
func (s *Store) DeviceOf(sc skep.Scope, key skep.Key) (int, error) {
	return s.lacked().DeviceOf(sc, key)
}
