package store

import (
	"context"
	"sync"
	"time"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/device"
	"github.com/skepkv/skep/store/internal/appender"
	"github.com/skepkv/skep/store/internal/commit"
	"github.com/skepkv/skep/store/internal/ingest"
	"github.com/skepkv/skep/store/internal/locks"
	"github.com/skepkv/skep/store/internal/namespaces"
	"github.com/skepkv/skep/store/internal/pieces"
)

// writer is a block open for writing part by part.
type writer struct {
	s  *Store
	ns *namespaces.Namespace
	in *ingest.Block

	mu       locks.Mutex[locks.Writer]
	parts    []openPart
	ended    bool
	timer    *time.Timer
	bytes    int64
	inFlight int // writes copying outside the lock
	idle     sync.Cond
}

// writerState is what an open block is reckoned to keep on the heap beside its payload, so
// that blocks of no bytes are bounded too.
const writerState = 4 << 10

type openPart struct {
	bytes   []byte
	written pieces.Set
}

// Begin implements skep.Putter.
func (s *Store) Begin(ctx context.Context, r *skep.BeginRequest) (skep.BlockWriter, error) {
	const op = "begin"
	if err := s.enterWrite(ctx, op); err != nil {
		return nil, err
	}
	defer s.leave()
	ns, t, err := s.names.Resolve(op, r.Scope)
	if err != nil {
		return nil, err
	}
	timeout := r.Timeout
	if timeout == 0 {
		timeout = skep.DefaultPutTimeout
	}
	if timeout < 0 || timeout > time.Hour {
		return nil, skep.Invalidf(op, "timeout", timeout, "0 to 1h")
	}
	m := append(skep.Manifest(nil), r.Manifest...)
	for i := range m {
		if m[i].Name == "" {
			m[i].Name = skep.PartKV
		}
	}
	w := &writer{s: s, ns: ns, in: &ingest.Block{Block: appender.Block{Block: commit.Block{Result: &skep.PutResult{}}}}}
	w.idle.L = &w.mu
	as := *r
	as.Manifest = m
	if err := s.ingest.Describe(op, ns, t, w.in, &as); err != nil {
		return nil, err
	}
	w.bytes = writerState
	for _, p := range m {
		w.bytes += int64(layout.PagesOf(p.Size)) * layout.PageSize
	}
	if err := s.writers.Take(op, ns.Tenant, w.bytes, s.options.WriterBytes); err != nil {
		return nil, err
	}
	w.parts = make([]openPart, len(m))
	w.in.Parts = make([]skep.Part, len(m))
	for i, p := range m {
		w.parts[i] = openPart{device.AlignedBuffer(layout.PagesOf(p.Size) * device.Align)[:p.Size], pieces.New(int(p.Size))}
		w.in.Parts[i] = skep.Part{Name: p.Name, Bytes: w.parts[i].bytes}
	}
	w.mu.Lock()
	w.timer = time.AfterFunc(timeout, w.end)
	w.mu.Unlock()
	return w, nil
}

// end gives the writer's memory back, once.
func (w *writer) end() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.ended {
		w.ended = true
		w.timer.Stop()
		w.s.writers.Give(w.ns.Tenant, w.bytes)
		w.parts = nil
	}
}

// Write implements skep.BlockWriter.
func (w *writer) Write(ctx context.Context, part string, offset int64, p []byte) error {
	const op = "write part"
	if part == "" {
		part = skep.PartKV
	}
	w.mu.Lock()
	if w.ended {
		w.mu.Unlock()
		return &skep.Error{Op: op, Kind: skep.Closed}
	}
	i := w.partIndex(part)
	if i < 0 {
		w.mu.Unlock()
		return skep.Invalidf(op, "part", part, "one of the manifest's")
	}
	o := &w.parts[i]
	if offset < 0 || offset > int64(len(o.bytes)) || int64(len(p)) > int64(len(o.bytes))-offset {
		w.mu.Unlock()
		return skep.Invalidf(op, "range", skep.Range{From: int(offset), To: int(offset) + len(p)}, "within 0 to "+itoa(len(o.bytes)))
	}
	if len(p) == 0 {
		w.mu.Unlock()
		return nil
	}
	r := skep.Range{From: int(offset), To: int(offset) + len(p)}
	if more := o.written.Growth(r); more > 0 { // a list of pieces can be larger than they are
		if err := w.s.writers.Take(op, w.ns.Tenant, more, w.s.options.WriterBytes); err != nil {
			w.mu.Unlock()
			return err
		}
		w.bytes += more
		o.written.Grow(more)
	}
	if !o.written.Add(r) {
		w.mu.Unlock()
		return skep.Invalidf(op, "range", r, "not written before")
	}
	dst := o.bytes[r.From:r.To]
	w.inFlight++
	w.mu.Unlock()
	copy(dst, p) // ranges are disjoint, so writers do not meet
	w.mu.Lock()
	if w.inFlight--; w.inFlight == 0 {
		w.idle.Broadcast()
	}
	w.mu.Unlock()
	return nil
}

func (w *writer) partIndex(name string) int {
	for i := range w.in.Parts {
		if w.in.Parts[i].Name == name {
			return i
		}
	}
	return -1
}

// Commit implements skep.BlockWriter.
func (w *writer) Commit(ctx context.Context, ack skep.Ack) (skep.PutResult, error) {
	const op = "commit"
	if ack != skep.AckCommitted && ack != skep.AckAccepted {
		return skep.PutResult{}, skep.Invalidf(op, "ack", ack, "committed or accepted")
	}
	if err := w.s.enterWrite(ctx, op); err != nil {
		return skep.PutResult{}, err
	}
	defer w.s.leave()
	w.mu.Lock()
	if w.ended {
		w.mu.Unlock()
		return skep.PutResult{}, &skep.Error{Op: op, Kind: skep.Closed}
	}
	for w.inFlight > 0 {
		w.idle.Wait()
	}
	if w.ended { // its time ran out, or it was aborted or committed, while this waited
		w.mu.Unlock()
		return skep.PutResult{}, &skep.Error{Op: op, Kind: skep.Closed}
	}
	if err := w.purged(op); err != nil {
		w.mu.Unlock()
		w.end()
		return skep.PutResult{}, err
	}
	for i := range w.parts {
		if r, missing := w.parts[i].written.Gap(); missing {
			name := w.in.Parts[i].Name
			w.mu.Unlock()
			return skep.PutResult{}, skep.Invalidf(op, "bytes of part "+name, "none in "+itoa(r.From)+" to "+itoa(r.To), "written")
		}
	}
	// From here on it is a put; the memory stays with it until it is done.
	w.ended = true
	w.timer.Stop()
	w.parts = nil
	w.mu.Unlock()
	l := appender.Lend(func() { w.s.writers.Give(w.ns.Tenant, w.bytes) }) // when no drive writes from it any more
	defer l.Back()
	w.in.Loan = l
	result := w.in.Result
	blocks := []*ingest.Block{w.in}
	err := w.s.ingest.Put(ctx, w.ns, blocks, ack)
	return *result, err
}

// purged says that what the block was begun in is gone: nobody would find it.
func (w *writer) purged(op string) error {
	switch ns := w.s.namespaceOf(w.ns.Info.ID); {
	case ns == nil:
		return &skep.Error{Op: op, Kind: skep.NotFound, Field: "namespace", Value: w.ns.Info.ID}
	case ns.Instance != w.in.Record.Instance, w.s.names.Dead(w.in.Record.Instance, namespaces.Tag(w.in.Record.SaltTag)):
		return &skep.Error{Op: op, Kind: skep.NotFound, Field: "block", Value: w.in.Record.Key.Short(), Limit: "begun since the purge: begin it again"}
	}
	return nil
}

// Abort implements skep.BlockWriter.
func (w *writer) Abort(context.Context) error {
	w.end()
	return nil
}
