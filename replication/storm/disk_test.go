package storm

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/hashicorp/raft"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/replication/clustermap"
	"github.com/skepkv/skep/store/memstore"
)

// disk is what stays of a node when its process ends: what its Store was told, in order, and what it agreed to.
type disk struct {
	mu        sync.Mutex
	log       []entry
	fs        *vfs.MemFS
	snapshots map[string]raft.SnapshotStore
	known     *clustermap.Map // the newest that the node was told
	cluster   string          // that of a node that was added; empty: it knows
	written   *own            // who writes to it; nil: nobody
}

// entry is one change of a Store.
type entry struct {
	at   time.Time
	soft bool // blocks of class cache: a crash may lose them if they came within the last second
	do   func(ctx context.Context, st *memstore.Store)
}

func newDisk(known *clustermap.Map) *disk {
	return &disk{fs: vfs.NewCrashableMem(), snapshots: map[string]raft.SnapshotStore{}, known: known}
}

func (d *disk) snapshotsIn(base string) (raft.SnapshotStore, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.snapshots[base] == nil {
		d.snapshots[base] = raft.NewInmemSnapshotStore()
	}
	return d.snapshots[base], nil
}

// crash ends the writing to a disk: what was not synced is lost.
func (d *disk) crash(lose func(n int) int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.written = nil
	soft := 0
	for soft < len(d.log) {
		e := &d.log[len(d.log)-1-soft]
		if !e.soft || time.Since(e.at) > time.Second {
			break
		}
		soft++
	}
	d.log = d.log[: len(d.log)-lose(soft+1) : len(d.log)]
	d.fs = d.fs.CrashClone(vfs.CrashCloneCfg{})
}

// wipe is the loss of the drives with the blocks.
func (d *disk) wipe() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.log = nil
}

// open makes a Store with what the disk has. From here on it writes to it, and nobody else.
func (d *disk) open(ctx context.Context) *own {
	d.mu.Lock()
	defer d.mu.Unlock()
	st := memstore.New(memstore.Options{})
	for i := range d.log {
		d.log[i].do(ctx, st)
	}
	d.written = &own{Store: st, d: d}
	return d.written
}

// own is a node's own Store, whose changes are on its disk once they are answered.
type own struct {
	*memstore.Store
	d *disk
}

// act changes a Store.
type act[T any] func(ctx context.Context, st *memstore.Store) (T, error)

// change does something that changes the Store, and notes how it is done again.
func change[T any](ctx context.Context, o *own, soft bool, do, again act[T]) (out T, err error) {
	o.d.mu.Lock()
	defer o.d.mu.Unlock()
	if o.d.written != o { // its machine has no power
		return out, &skep.Error{Op: "write", Kind: skep.Unavailable}
	}
	if out, err = do(ctx, o.Store); err == nil {
		redo := func(ctx context.Context, st *memstore.Store) { _, _ = again(ctx, st) }
		o.d.log = append(o.d.log, entry{time.Now(), soft, redo})
	}
	return out, err
}

// changes is change of what gives nothing but an error.
func changes(ctx context.Context, o *own, do func(ctx context.Context, st *memstore.Store) error) error {
	f := func(ctx context.Context, st *memstore.Store) (struct{}, error) { return struct{}{}, do(ctx, st) }
	_, err := change(ctx, o, false, f, f)
	return err
}

// Put implements skep.Putter.
func (o *own) Put(ctx context.Context, r *skep.PutRequest) ([]skep.PutResult, error) {
	info, err := o.FindNamespace(ctx, r.Namespace)
	if err != nil {
		return nil, err
	}
	q := *r
	q.Released, q.Ancestors, q.Blocks = nil, nil, slices.Clone(r.Blocks)
	if r.Parent != nil {
		parent := *r.Parent
		q.Parent = &parent
	}
	for i := range q.Blocks {
		b := &q.Blocks[i]
		b.Parts = slices.Clone(b.Parts)
		for k := range b.Parts {
			b.Parts[k].Bytes = slices.Clone(b.Parts[k].Bytes)
		}
	}
	put := func(r *skep.PutRequest) act[[]skep.PutResult] {
		return func(ctx context.Context, st *memstore.Store) ([]skep.PutResult, error) { return st.Put(ctx, r) }
	}
	return change(ctx, o, info.Class == skep.Cache, put(r), put(&q))
}

// Begin implements skep.Putter: nothing here begins blocks piece by piece.
func (o *own) Begin(ctx context.Context, r *skep.BeginRequest) (skep.BlockWriter, error) {
	return skep.UnsupportedStore{}.Begin(ctx, r)
}

// Delete implements skep.Deleter.
func (o *own) Delete(ctx context.Context, sc skep.Scope, keys []skep.Key) (int, error) {
	keys = slices.Clone(keys)
	f := func(ctx context.Context, st *memstore.Store) (int, error) { return st.Delete(ctx, sc, keys) }
	return change(ctx, o, false, f, f)
}

// Purge implements skep.Deleter.
func (o *own) Purge(ctx context.Context, p skep.Purge) error {
	return changes(ctx, o, func(ctx context.Context, st *memstore.Store) error { return st.Purge(ctx, p) })
}

// OpenNamespace implements skep.Namespacer.
func (o *own) OpenNamespace(ctx context.Context, s skep.NamespaceSpec) (skep.NamespaceInfo, error) {
	f := func(ctx context.Context, st *memstore.Store) (skep.NamespaceInfo, error) {
		return st.OpenNamespace(ctx, s)
	}
	return change(ctx, o, false, f, f)
}

// DeleteNamespace implements skep.Namespacer.
func (o *own) DeleteNamespace(ctx context.Context, id skep.NamespaceID) error {
	return changes(ctx, o, func(ctx context.Context, st *memstore.Store) error { return st.DeleteNamespace(ctx, id) })
}
