package fence

import (
	"context"

	"github.com/skepkv/skep"
)

// What follows is refused until the node serves.

// Lookup implements skep.Store.
func (f *Fence) Lookup(ctx context.Context, r *skep.LookupRequest) (skep.LookupResult, error) {
	return f.gated.Lookup(ctx, r)
}

// LookupRuns implements skep.Store.
func (f *Fence) LookupRuns(ctx context.Context, r *skep.RunsRequest) (skep.RunsResult, error) {
	return f.gated.LookupRuns(ctx, r)
}

// Want implements skep.Store.
func (f *Fence) Want(ctx context.Context, r *skep.WantRequest) ([]skep.Want, error) {
	return f.gated.Want(ctx, r)
}

// Put implements skep.Store.
func (f *Fence) Put(ctx context.Context, r *skep.PutRequest) ([]skep.PutResult, error) {
	return f.gated.Put(ctx, r)
}

// Begin implements skep.Store.
func (f *Fence) Begin(ctx context.Context, r *skep.BeginRequest) (skep.BlockWriter, error) {
	return f.gated.Begin(ctx, r)
}

// Hint implements skep.Store.
func (f *Fence) Hint(ctx context.Context, sc skep.Scope, keys []skep.Key, h skep.Hint) (int, error) {
	return f.gated.Hint(ctx, sc, keys, h)
}

// Restore implements skep.Store.
func (f *Fence) Restore(ctx context.Context, r *skep.RestoreRequest) (skep.Session, error) {
	return f.gated.Restore(ctx, r)
}

// OpenNamespace implements skep.Store.
func (f *Fence) OpenNamespace(ctx context.Context, spec skep.NamespaceSpec) (skep.NamespaceInfo, error) {
	return f.gated.OpenNamespace(ctx, spec)
}

// Namespaces implements skep.Store.
func (f *Fence) Namespaces(ctx context.Context) ([]skep.NamespaceInfo, error) {
	return f.gated.Namespaces(ctx)
}

// NamespacesOf implements skep.Store.
func (f *Fence) NamespacesOf(ctx context.Context, tenant string) ([]skep.NamespaceInfo, error) {
	return f.gated.NamespacesOf(ctx, tenant)
}

// FindNamespace implements skep.Store.
func (f *Fence) FindNamespace(ctx context.Context, id skep.NamespaceID) (skep.NamespaceInfo, error) {
	return f.gated.FindNamespace(ctx, id)
}

// CountBlocks implements skep.Store.
func (f *Fence) CountBlocks(ctx context.Context, id skep.NamespaceID) (int64, error) {
	return f.gated.CountBlocks(ctx, id)
}

// ListKeys implements skep.Store.
func (f *Fence) ListKeys(ctx context.Context, id skep.NamespaceID, from uint64, n int) (
	keys []skep.Key, next uint64, err error) {
	return f.gated.ListKeys(ctx, id, from, n)
}

// Events implements skep.Store. A stream that was begun before goes on: it tells what the node loses, too.
func (f *Fence) Events(ctx context.Context, from skep.Cursor, snapshot bool) (skep.EventStream, error) {
	return f.gated.Events(ctx, from, snapshot)
}

// PutSidecar implements skep.Store.
func (f *Fence) PutSidecar(ctx context.Context, sc skep.Scope, key skep.Key, pieces []skep.SidecarPiece) error {
	return f.gated.PutSidecar(ctx, sc, key, pieces)
}

// Sidecar implements skep.Store.
func (f *Fence) Sidecar(ctx context.Context, sc skep.Scope, key skep.Key) ([]skep.SidecarPiece, error) {
	return f.gated.Sidecar(ctx, sc, key)
}
