package ingest

import (
	"cmp"
	"context"
	"strconv"
	"sync"
	"time"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/device"
	"github.com/skepkv/skep/store/internal/appender"
	"github.com/skepkv/skep/store/internal/commit"
	"github.com/skepkv/skep/store/internal/locks"
	"github.com/skepkv/skep/store/internal/namespaces"
	"github.com/skepkv/skep/store/internal/pieces"
)

// open is a block open for writing part by part.
type open struct {
	w  *Writer
	ns *namespaces.Namespace
	in *Block

	mu       locks.Mutex[locks.Writer]
	parts    []openPart
	ended    bool
	timer    *time.Timer
	bytes    int64
	inFlight int // writes copying outside the lock
	idle     sync.Cond
}

// openState is what an open block is reckoned to keep on the heap beside its payload, so
// that blocks of no bytes are bounded too.
const openState = 4 << 10

type openPart struct {
	bytes   []byte
	written pieces.Set
}

// Begin implements skep.Putter.
func (w *Writer) Begin(ctx context.Context, r *skep.BeginRequest) (skep.BlockWriter, error) {
	const op = "begin"
	if err := r.Validate(); err != nil {
		return nil, err
	}
	if err := w.Gate.EnterWrite(ctx, op); err != nil {
		return nil, err
	}
	defer w.Gate.Leave()
	ns, t, err := w.Names.Resolve(op, r.Scope)
	if err != nil {
		return nil, err
	}
	m := append(skep.Manifest(nil), r.Manifest...)
	for i := range m {
		if m[i].Name == "" {
			m[i].Name = skep.PartKV
		}
	}
	b := &open{w: w, ns: ns, in: &Block{Block: appender.Block{Block: commit.Block{Result: &skep.PutResult{}}}}}
	b.idle.L = &b.mu
	as := *r
	as.Manifest = m
	if err := w.Describe(op, ns, t, b.in, &as); err != nil {
		return nil, err
	}
	if err := w.seal(ctx, op, ns, b.in); err != nil && !appender.Declines(err) { // there may be room at its commit
		return nil, err
	}
	b.bytes = openState
	for _, p := range m {
		b.bytes += int64(layout.PagesOf(p.Size)) * layout.PageSize
	}
	if err := w.Open.Take(op, ns.Tenant, b.bytes, w.OpenBytes); err != nil {
		return nil, err
	}
	b.parts = make([]openPart, len(m))
	b.in.Parts = make([]skep.Part, len(m))
	for i, p := range m {
		b.parts[i] = openPart{device.AlignedBuffer(layout.PagesOf(p.Size) * device.Align)[:p.Size], pieces.New(int(p.Size))}
		b.in.Parts[i] = skep.Part{Name: p.Name, Bytes: b.parts[i].bytes}
	}
	b.mu.Lock()
	b.timer = time.AfterFunc(cmp.Or(r.Timeout, skep.DefaultPutTimeout), b.end)
	b.mu.Unlock()
	return b, nil
}

// end gives the writer's memory back, once.
func (b *open) end() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.ended {
		b.ended = true
		b.timer.Stop()
		b.w.Open.Give(b.ns.Tenant, b.bytes)
		b.parts = nil
	}
}

// Write implements skep.BlockWriter.
func (b *open) Write(ctx context.Context, part string, offset int64, p []byte) error {
	const op = "write part"
	if part == "" {
		part = skep.PartKV
	}
	b.mu.Lock()
	if b.ended {
		b.mu.Unlock()
		return &skep.Error{Op: op, Kind: skep.Closed}
	}
	i := b.partIndex(part)
	if i < 0 {
		b.mu.Unlock()
		return skep.Invalidf(op, "part", part, "one of the manifest's")
	}
	o := &b.parts[i]
	if offset < 0 || offset > int64(len(o.bytes)) || int64(len(p)) > int64(len(o.bytes))-offset {
		b.mu.Unlock()
		return skep.Invalidf(op, "range", skep.Range{From: int(offset), To: int(offset) + len(p)}, "within 0 to "+strconv.Itoa(len(o.bytes)))
	}
	if len(p) == 0 {
		b.mu.Unlock()
		return nil
	}
	r := skep.Range{From: int(offset), To: int(offset) + len(p)}
	if more := o.written.Growth(r); more > 0 { // a list of pieces can be larger than they are
		if err := b.w.Open.Take(op, b.ns.Tenant, more, b.w.OpenBytes); err != nil {
			b.mu.Unlock()
			return err
		}
		b.bytes += more
		o.written.Grow(more)
	}
	if !o.written.Add(r) {
		b.mu.Unlock()
		return skep.Invalidf(op, "range", r, "not written before")
	}
	dst := o.bytes[r.From:r.To]
	b.inFlight++
	b.mu.Unlock()
	copy(dst, p) // ranges are disjoint, so writers do not meet
	b.mu.Lock()
	if b.inFlight--; b.inFlight == 0 {
		b.idle.Broadcast()
	}
	b.mu.Unlock()
	return nil
}

func (b *open) partIndex(name string) int {
	for i := range b.in.Parts {
		if b.in.Parts[i].Name == name {
			return i
		}
	}
	return -1
}

// Commit implements skep.BlockWriter.
func (b *open) Commit(ctx context.Context, ack skep.Ack) (skep.PutResult, error) {
	const op = "commit"
	if ack != skep.AckCommitted && ack != skep.AckAccepted {
		return skep.PutResult{}, skep.Invalidf(op, "ack", ack, "committed or accepted")
	}
	if err := b.w.Gate.EnterWrite(ctx, op); err != nil {
		return skep.PutResult{}, err
	}
	defer b.w.Gate.Leave()
	b.mu.Lock()
	if b.ended {
		b.mu.Unlock()
		return skep.PutResult{}, &skep.Error{Op: op, Kind: skep.Closed}
	}
	for b.inFlight > 0 {
		b.idle.Wait()
	}
	if b.ended { // its time ran out, or it was aborted or committed, while this waited
		b.mu.Unlock()
		return skep.PutResult{}, &skep.Error{Op: op, Kind: skep.Closed}
	}
	if err := b.purged(op); err != nil {
		b.mu.Unlock()
		b.end()
		return skep.PutResult{}, err
	}
	for i := range b.parts {
		if r, missing := b.parts[i].written.Gap(); missing {
			name := b.in.Parts[i].Name
			b.mu.Unlock()
			return skep.PutResult{}, skep.Invalidf(op, "bytes of part "+name, "none in "+strconv.Itoa(r.From)+" to "+strconv.Itoa(r.To), "written")
		}
	}
	// From here on it is a put; the memory stays with it until it is done.
	b.ended = true
	b.timer.Stop()
	b.parts = nil
	b.mu.Unlock()
	l := appender.Lend(func() { b.w.Open.Give(b.ns.Tenant, b.bytes) }) // when no drive writes from it any more
	defer l.Back()
	b.in.Loan = l
	result := b.in.Result
	blocks := []*Block{b.in}
	// Again: its key may have been replaced since, or the drives had no room to be told of it.
	if err := b.w.seal(ctx, op, b.ns, b.in); appender.Declines(err) {
		b.w.Appends.Decline(toWrite(blocks), skep.KindOf(err))
		return *result, nil
	} else if err != nil {
		return skep.PutResult{}, err
	}
	err := b.w.Put(ctx, b.ns, blocks, ack)
	return *result, err
}

// purged says that what the block was begun in is gone: nobody would find it.
func (b *open) purged(op string) error {
	switch ns := b.w.Names.Get(b.ns.Info.ID); {
	case ns == nil:
		return &skep.Error{Op: op, Kind: skep.NotFound, Field: "namespace", Value: b.ns.Info.ID}
	case ns.Instance != b.in.Record.Instance, b.w.Names.Dead(b.in.Record.Instance, namespaces.Tag(b.in.Record.SaltTag)):
		return &skep.Error{Op: op, Kind: skep.NotFound, Field: "block", Value: b.in.Record.Key.Short(), Limit: "begun since the purge: begin it again"}
	}
	return nil
}

// Abort implements skep.BlockWriter.
func (b *open) Abort(context.Context) error {
	b.end()
	return nil
}
