package memstore

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"
	"unsafe"

	"github.com/skepkv/skep"
)

// writer is an open block. Its memory is reserved at Begin and allocated part by
// part with the first write, so that an empty promise of a large block costs little.
type writer struct {
	st       *Store
	space    *namespace
	req      skep.BeginRequest
	sizes    map[string]int64
	reserved int64
	deadline time.Time
	purged   bool // what it was begun in; guarded by st.mu

	mu     sync.Mutex
	parts  map[string]*partBuffer
	closed bool
}

type partBuffer struct {
	bytes   []byte
	written []span // disjoint, not touching, in order
}

type span struct{ from, to int64 }

// Begin implements skep.Putter.
func (s *Store) Begin(ctx context.Context, r *skep.BeginRequest) (skep.BlockWriter, error) {
	const op = "begin"
	if err := r.Validate(); err != nil {
		return nil, err
	}
	n, err := s.enter(ctx, op, r.Namespace)
	if err != nil {
		return nil, err
	}
	defer s.mu.Unlock()
	if err := skep.ValidateBlock(op, &n.NamespaceSpec, r.Depth, r.ValidTokens, r.Key, r.Parent, r.Name, r.Manifest); err != nil {
		return nil, err
	}
	if err := checkSizes(op, n, r.Manifest); err != nil {
		return nil, err
	}
	w := &writer{st: s, space: n, req: *r, sizes: map[string]int64{}, parts: map[string]*partBuffer{}}
	// The request is the caller's again when Begin returns.
	w.req.Parent, w.req.Replaces = clonePtr(r.Parent), clonePtr(r.Replaces)
	w.req.Name, w.req.Manifest = slices.Clone(r.Name), slices.Clone(r.Manifest)
	if w.req.Timeout == 0 {
		w.req.Timeout = skep.DefaultPutTimeout
	}
	w.deadline = s.opt.Clock().Add(w.req.Timeout)
	for _, p := range r.Manifest {
		w.sizes[p.Name] = p.Size
		w.reserved += p.Size
	}
	if s.memory+w.reserved > s.opt.MemoryBytes {
		return nil, &skep.Error{Op: op, Kind: skep.NoMemory, Field: "block size in bytes", Value: w.reserved, Limit: fmt.Sprintf("at most the %d free", s.opt.MemoryBytes-s.memory)}
	}
	s.memory += w.reserved
	s.writers[w] = struct{}{}
	return w, nil
}

func clonePtr(k *skep.Key) *skep.Key {
	if k == nil {
		return nil
	}
	x := *k
	return &x
}

// forgetLocked gives a writer's memory back. s.mu is held.
func (s *Store) forgetLocked(w *writer) {
	if _, ok := s.writers[w]; ok {
		delete(s.writers, w)
		s.returnLocked(w.reserved)
	}
}

// openLocked reports why the writer cannot be used any more. w.mu is held.
func (w *writer) openLocked(ctx context.Context, op string) error {
	switch {
	case w.closed:
		return &skep.Error{Op: op, Kind: skep.Closed}
	case !w.st.opt.Clock().Before(w.deadline):
		w.closed, w.parts = true, nil
		return &skep.Error{Op: op, Kind: skep.Closed, Err: fmt.Errorf("open for longer than %v: %w", w.req.Timeout, skep.Deadline)}
	}
	w.st.mu.Lock()
	defer w.st.mu.Unlock()
	if err := w.st.usable(ctx, op); err != nil {
		return err
	}
	_, err := w.st.spaceLocked(op, w.space.ID)
	return err
}

// Write implements skep.BlockWriter.
func (w *writer) Write(ctx context.Context, part string, offset int64, p []byte) error {
	const op = "write"
	part = partName(part)
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.openLocked(ctx, op); err != nil {
		return err
	}
	size, ok := w.sizes[part]
	if !ok {
		return skep.Invalidf(op, "part", part, "one of the manifest")
	}
	if offset < 0 || offset > size {
		return skep.Invalidf(op, "offset", offset, fmt.Sprintf("0 to %d", size))
	}
	if int64(len(p)) > size-offset {
		return skep.Invalidf(op, "length", len(p), fmt.Sprintf("at most %d at offset %d", size-offset, offset))
	}
	if len(p) == 0 {
		return nil
	}
	b := w.parts[part]
	if b == nil {
		b = &partBuffer{bytes: make([]byte, size)}
		w.parts[part] = b
	}
	if other, ok := b.take(span{offset, offset + int64(len(p))}); !ok {
		return skep.Invalidf(op, "offset", offset, fmt.Sprintf("outside of the bytes %d to %d written before", other.from, other.to))
	}
	copy(b.bytes[offset:], p)
	return nil
}

// take records that x is written, or gives the span it overlaps.
func (b *partBuffer) take(x span) (overlaps span, ok bool) {
	// The first span that ends after x begins; all before are left of x.
	i, _ := slices.BinarySearchFunc(b.written, x.from, func(s span, from int64) int {
		if s.to <= from {
			return -1
		}
		return 1
	})
	if i < len(b.written) && b.written[i].from < x.to {
		return b.written[i], false
	}
	left := i > 0 && b.written[i-1].to == x.from
	right := i < len(b.written) && b.written[i].from == x.to
	switch {
	case left && right:
		b.written[i-1].to = b.written[i].to
		b.written = slices.Delete(b.written, i, i+1)
	case left:
		b.written[i-1].to = x.to
	case right:
		b.written[i].from = x.from
	default:
		b.written = slices.Insert(b.written, i, x)
	}
	return span{}, true
}

// missing is the first span that was not written.
func (b *partBuffer) missing(size int64) (span, bool) {
	if b == nil || len(b.written) == 0 {
		return span{0, size}, size > 0
	}
	first := b.written[0]
	switch {
	case first.from > 0:
		return span{0, first.from}, true
	case len(b.written) > 1:
		return span{first.to, b.written[1].from}, true
	}
	return span{first.to, size}, first.to < size
}

// Commit implements skep.BlockWriter.
func (w *writer) Commit(ctx context.Context, ack skep.Ack) (skep.PutResult, error) {
	const op = "commit"
	if err := checkAck(op, ack); err != nil {
		return skep.PutResult{}, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.openLocked(ctx, op); err != nil {
		return skep.PutResult{}, err
	}
	parts := make(map[string][]byte, len(w.sizes))
	for _, p := range w.req.Manifest {
		b := w.parts[p.Name]
		if m, ok := b.missing(p.Size); ok {
			return skep.PutResult{}, skep.Invalidf(op, "part "+p.Name, fmt.Sprintf("bytes %d to %d not written", m.from, m.to), "written in full")
		}
		if b != nil {
			parts[p.Name] = b.bytes
		} else {
			parts[p.Name] = nil
		}
	}
	r := &w.req
	b := newBlock(w.space, r.Salt, r.Key, r.Parent, r.Depth, r.ValidTokens, r.Name, parts)
	s := w.st
	if err := s.begin(ctx, op); err != nil {
		return skep.PutResult{}, err
	}
	defer s.mu.Unlock()
	w.closed, w.parts = true, nil
	s.forgetLocked(w)
	if w.purged {
		return skep.PutResult{}, &skep.Error{Op: op, Kind: skep.NotFound, Field: "block", Value: r.Key.Short(), Limit: "begun since the purge: begin it again"}
	}
	return s.storeLocked(w.space, roomOf(r.Scope), b, storedPtr(r.Salt, r.Replaces), ack), nil
}

// Abort implements skep.BlockWriter. It works on a closed store and with an ended
// context: there is nothing to wait for.
func (w *writer) Abort(context.Context) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed, w.parts = true, nil
	w.st.mu.Lock()
	defer w.st.mu.Unlock()
	w.st.forgetLocked(w)
	return nil
}

// Alloc implements skep.Allocator.
func (s *Store) Alloc(ctx context.Context, n int64) (skep.Memory, error) {
	const op = "alloc"
	if n < 1 {
		return nil, skep.Invalidf(op, "bytes", n, "at least 1")
	}
	for {
		if err := s.begin(ctx, op); err != nil {
			if ctx.Err() != nil && skep.KindOf(err) != skep.Closed {
				err = &skep.Error{Op: op, Kind: skep.NoMemory, Field: "bytes", Value: n, Err: ctx.Err()}
			}
			return nil, err
		}
		if n > s.opt.MemoryBytes {
			s.mu.Unlock()
			return nil, &skep.Error{Op: op, Kind: skep.NoMemory, Field: "bytes", Value: n, Limit: fmt.Sprintf("at most the budget of %d", s.opt.MemoryBytes)}
		}
		if s.memory+n <= s.opt.MemoryBytes {
			s.memory += n
			s.mu.Unlock()
			return &memory{st: s, bytes: aligned(n)}, nil
		}
		freed := s.freed
		s.mu.Unlock()
		select {
		case <-freed:
		case <-ctx.Done():
		}
	}
}

// returnLocked gives n bytes back to the budget and wakes who waits for some.
func (s *Store) returnLocked(n int64) {
	s.memory -= n
	close(s.freed)
	s.freed = make(chan struct{})
}

const pageSize = 4096

// aligned is n bytes at an address that is a multiple of pageSize.
func aligned(n int64) []byte {
	b := make([]byte, n+pageSize-1)
	off := -int64(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) & (pageSize - 1)
	return b[off : off+n : off+n]
}

// memory is what Alloc lends.
type memory struct {
	st    *Store
	mu    sync.Mutex
	bytes []byte
}

func (m *memory) Bytes() []byte {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.bytes
}

// Release gives the memory back; a second time does nothing.
func (m *memory) Release() {
	m.mu.Lock()
	n := int64(len(m.bytes))
	m.bytes = nil
	m.mu.Unlock()
	if n == 0 {
		return
	}
	m.st.mu.Lock()
	defer m.st.mu.Unlock()
	m.st.returnLocked(n)
}
