package skep

import (
	"context"
	"sync/atomic"
	"time"
)

// unsupported is the error of a call that a Store or Session does not have.
func unsupported(op string) error { return &Error{Op: op, Kind: Unsupported} }

// UnsupportedSession is a Session that can do nothing: each call is Unsupported by its name. A Session embeds it and has methods
// of its own for what it can do.
type UnsupportedSession struct{}

var _ Session = UnsupportedSession{}

func (UnsupportedSession) Next(context.Context, []Chunk) (int, error) { return 0, unsupported("next") }

func (UnsupportedSession) Direction(context.Context, int) (Direction, error) {
	return 0, unsupported("direction")
}

func (UnsupportedSession) Claim(context.Context, int, Subset, EngineLoad) (Claim, error) {
	return Claim{}, unsupported("claim")
}

func (UnsupportedSession) ShareClaimWord(context.Context, int, *atomic.Uint64) error {
	return unsupported("share claim word")
}

func (UnsupportedSession) Computed(context.Context, int, Range, time.Duration, time.Duration) error {
	return unsupported("computed")
}

func (UnsupportedSession) Reprioritise(context.Context, int, int, time.Time) error {
	return unsupported("reprioritise")
}

func (UnsupportedSession) Stop(context.Context, int) error { return unsupported("stop") }

func (UnsupportedSession) Close(context.Context) error { return unsupported("close session") }

// UnsupportedStore is a Store that can do nothing: each call is Unsupported by its name, and Close, which has nothing to close,
// returns nil. A Store embeds it and has methods of its own for what it can do.
type UnsupportedStore struct{}

var _ Store = UnsupportedStore{}

func (UnsupportedStore) OpenNamespace(context.Context, NamespaceSpec) (NamespaceInfo, error) {
	return NamespaceInfo{}, unsupported("open namespace")
}

func (UnsupportedStore) FindNamespace(context.Context, NamespaceID) (NamespaceInfo, error) {
	return NamespaceInfo{}, unsupported("find namespace")
}

func (UnsupportedStore) Namespaces(context.Context) ([]NamespaceInfo, error) {
	return nil, unsupported("namespaces")
}

func (UnsupportedStore) NamespacesOf(context.Context, string) ([]NamespaceInfo, error) {
	return nil, unsupported("namespaces of")
}

func (UnsupportedStore) DeleteNamespace(context.Context, NamespaceID) error {
	return unsupported("delete namespace")
}

func (UnsupportedStore) Lookup(context.Context, *LookupRequest) (LookupResult, error) {
	return LookupResult{}, unsupported("lookup")
}

func (UnsupportedStore) LookupRuns(context.Context, *RunsRequest) (RunsResult, error) {
	return RunsResult{}, unsupported("lookup of runs")
}

func (UnsupportedStore) Renew(context.Context, LeaseID, time.Duration) (Lease, error) {
	return Lease{}, unsupported("renew")
}

func (UnsupportedStore) Release(context.Context, LeaseID) error { return unsupported("release") }

func (UnsupportedStore) Want(context.Context, *WantRequest) ([]Want, error) {
	return nil, unsupported("want")
}

func (UnsupportedStore) Put(context.Context, *PutRequest) ([]PutResult, error) {
	return nil, unsupported("put")
}

func (UnsupportedStore) Begin(context.Context, *BeginRequest) (BlockWriter, error) {
	return nil, unsupported("begin")
}

func (UnsupportedStore) Flush(context.Context) error { return unsupported("flush") }

func (UnsupportedStore) Restore(context.Context, *RestoreRequest) (Session, error) {
	return nil, unsupported("restore")
}

func (UnsupportedStore) Delete(context.Context, Scope, []Key) (int, error) {
	return 0, unsupported("delete")
}

func (UnsupportedStore) Purge(context.Context, Purge) error { return unsupported("purge") }

func (UnsupportedStore) Hint(context.Context, Scope, []Key, Hint) (int, error) {
	return 0, unsupported("hint")
}

func (UnsupportedStore) CountBlocks(context.Context, NamespaceID) (int64, error) {
	return 0, unsupported("count blocks")
}

func (UnsupportedStore) ListKeys(context.Context, NamespaceID, uint64, int) ([]Key, uint64, error) {
	return nil, 0, unsupported("list keys")
}

func (UnsupportedStore) PutSidecar(context.Context, Scope, Key, []SidecarPiece) error {
	return unsupported("put sidecar")
}

func (UnsupportedStore) Sidecar(context.Context, Scope, Key) ([]SidecarPiece, error) {
	return nil, unsupported("sidecar")
}

func (UnsupportedStore) Alloc(context.Context, int64) (Memory, error) {
	return nil, unsupported("alloc")
}

func (UnsupportedStore) Register([]byte) (func(), error) { return nil, unsupported("register memory") }

func (UnsupportedStore) DeviceCount() (int, error) { return 0, unsupported("device count") }

func (UnsupportedStore) DeviceOf(Scope, Key) (int, error) { return 0, unsupported("device of") }

func (UnsupportedStore) Stats(context.Context) (Stats, error) { return Stats{}, unsupported("stats") }

func (UnsupportedStore) Events(context.Context, Cursor, bool) (EventStream, error) {
	return nil, unsupported("events")
}

func (UnsupportedStore) Close() error { return nil }
