package watermark

import (
	"context"
	"sync/atomic"

	"github.com/skepkv/skep/store/catalog"
	"github.com/skepkv/skep/store/internal/locks"
)

// Numbers are the highest that namespaces and their instances have had.
type Numbers struct{ Namespace, Instance uint32 }

// Catalog keeps the root row.
type Catalog interface {
	NewBatch() *catalog.Batch
	Commit(ctx context.Context, b *catalog.Batch, sync bool) error
	Refuses(op string) error
}

// Root gives out the numbers of a store, and keeps them in the catalog's root row.
type Root struct {
	seq     atomic.Uint64 // last sequence number given out
	flushed atomic.Uint64 // everything at or below it is on the drives
	marked  atomic.Uint64 // the same, as the synced catalog has it
	appends appends

	advancing locks.Mutex[locks.Mark]
	row       locks.Mutex[locks.RootRow] // over making and committing the root row
	numbers   struct {
		locks.Mutex[locks.Numbers]
		Numbers
	}
	rest func() catalog.StoreState // what else the root row says
}

// New is for a store of which rest says what the root row has besides numbers.
func New(rest func() catalog.StoreState) *Root {
	return &Root{appends: appends{underway: map[uint64]struct{}{}}, rest: rest}
}

// Load takes the numbers of a root row. Those given out after it was last written are skipped over.
func (r *Root) Load(st catalog.StoreState) {
	r.seq.Store(st.NextSeq)
	r.flushed.Store(st.FlushedSeq)
	r.marked.Store(st.FlushedSeq)
	r.keep(Numbers{st.NextNamespace, st.NextInstance})
}

// Next gives out a sequence number.
func (r *Root) Next() uint64 { return r.seq.Add(1) }

// Last is the sequence number that was given out last.
func (r *Root) Last() uint64 { return r.seq.Load() }

// Pass has n, and all below it, never given out again: somebody who knew of it was here before,
// whatever the root row says.
func (r *Root) Pass(n uint64) {
	for at := r.seq.Load(); at < n && !r.seq.CompareAndSwap(at, n); at = r.seq.Load() {
	}
}

// Reset begins anew, for an open that follows a rebuild.
func (r *Root) Reset() { r.seq.Store(0) }

// Marked is the durable watermark as the synced catalog has it.
func (r *Root) Marked() uint64 { return r.marked.Load() }

// Numbers are the highest of namespaces and instances that were given out.
func (r *Root) Numbers() Numbers {
	r.numbers.Lock()
	defer r.numbers.Unlock()
	return r.numbers.Numbers
}

// PassNumbers is Pass for the numbers of a namespace that is there.
func (r *Root) PassNumbers(n Numbers) {
	r.numbers.Lock()
	defer r.numbers.Unlock()
	have := &r.numbers.Numbers
	have.Namespace, have.Instance = max(have.Namespace, n.Namespace), max(have.Instance, n.Instance)
}

func (r *Root) keep(n Numbers) {
	r.numbers.Lock()
	r.numbers.Numbers = n
	r.numbers.Unlock()
}

// State is the root row as it stands, with the numbers n.
func (r *Root) State(n Numbers, clean bool) catalog.StoreState {
	st := r.rest()
	st.NextNamespace, st.NextInstance, st.Clean = n.Namespace, n.Instance, clean
	st.NextSeq, st.FlushedSeq = r.seq.Load()+1, r.flushed.Load()
	return st
}

// Save commits b together with the root row, and ends it in any case. One that the catalog would refuse waits for no
// other; one that began to wait before does so to its end, whatever becomes of ctx.
func (r *Root) Save(ctx context.Context, c Catalog, b *catalog.Batch, sync bool) error {
	if err := c.Refuses("commit"); err != nil {
		b.End()
		return err
	}
	r.row.Lock()
	defer r.row.Unlock()
	b.PutStore(r.State(r.Numbers(), false))
	return c.Commit(ctx, b, sync)
}

// SaveNumbers commits b together with the root row with the numbers n, synced, and keeps them. Where the commit ends
// in an error the numbers are as before; sure says what is to become of that error. No other root row is made
// meanwhile.
func (r *Root) SaveNumbers(ctx context.Context, c Catalog, b *catalog.Batch, n Numbers, sure func(error) error) error {
	if err := c.Refuses("commit"); err != nil {
		b.End()
		return err
	}
	r.row.Lock()
	defer r.row.Unlock()
	b.PutStore(r.State(n, false))
	if err := sure(c.Commit(ctx, b, true)); err != nil {
		return err
	}
	r.keep(n) // before another root row is made
	return nil
}

// Close is State for an orderly end: everything given out is on the drives.
func (r *Root) Close(clean bool) catalog.StoreState {
	r.flushed.Store(r.seq.Load())
	return r.State(r.Numbers(), clean)
}

// Advance has everything flushed that was written before, and moves the durable watermark.
func (r *Root) Advance(ctx context.Context, c Catalog, flush func(context.Context) error) error {
	r.advancing.Lock()
	defer r.advancing.Unlock()
	top, bytes := r.appends.begun(&r.seq)
	to := max(r.appends.low(top), r.flushed.Load()) // what was said once stays said
	if err := flush(ctx); err != nil {
		return err
	}
	r.flushed.Store(to)
	if err := r.Save(ctx, c, c.NewBatch(), true); err != nil {
		return err
	}
	r.appends.flushed(bytes) // not before: Keep tries again while there are some
	r.marked.Store(to)       // the devices' logs never say more than the catalog
	return nil
}
