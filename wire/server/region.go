package server

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/wire/auth"
	"github.com/skepkv/skep/wire/frames"
	"github.com/skepkv/skep/wire/link"
	"github.com/skepkv/skep/wire/shm"
)

// leastRegion is what a region is counted as at least: a mapping, and a place in what drives have registered.
const leastRegion = 1 << 20

// region is a client's memory, as its server has it. Whoever uses it holds it; it is
// unmapped when the last one lets go, after the drives have.
type region struct {
	s          *Server
	mem        *shm.Region
	event      *shm.Signaller
	ring       *ringWriter
	unregister func()
	shared     *auth.Held // its tenant's
	charged    int64
	client     clientID

	mu    sync.Mutex
	holds int
	files map[uint64]*attached // by number
}

// attach maps the memory whose descriptors came with the frame.
func attach(_ context.Context, r *request) (frames.Message, error) {
	const op = "attach"
	x := r.x
	files := x.l.Files.Take()
	drop := func() { link.CloseReceived(files) }
	var m frames.AttachRequest
	if err := r.read(&m); err != nil {
		drop()
		return nil, err
	}
	if len(files) != 2 {
		drop()
		return nil, skep.Invalidf(op, "descriptors", len(files), "2: a memfd and an eventfd, over a Unix socket")
	}
	x.mu.Lock()
	has := x.region != nil
	x.mu.Unlock()
	limit := x.s.shared.Of(x.who.Limits()).Most()
	var err error
	switch {
	case has:
		err = &skep.Error{Op: op, Kind: skep.Conflict, Field: "attached memory", Value: "one", Limit: "one a connection"}
	case m.Size > uint64(limit):
		err = skep.Invalidf(op, "size in bytes", m.Size, limit)
	default:
		err = shm.CheckRing(m.Size, m.Ring, m.Entries)
	}
	if err != nil {
		drop()
		return nil, err
	}
	size := int64(m.Size)
	g := &region{s: x.s, charged: max(size, leastRegion), shared: x.s.shared.Of(x.who.Limits()), holds: 1, client: x.client}
	if !g.shared.Take(g.charged) {
		drop()
		return nil, link.Overloaded("shared memory", x.s.comeBack())
	}
	if !g.admit() {
		g.shared.Give(g.charged)
		drop()
		return nil, link.Overloaded("memory attached to an earlier connection", x.s.comeBack())
	}
	if g.mem, err = shm.Open(files[0], size); err != nil {
		g.dismiss()
		drop()
		return nil, err
	}
	if g.event, err = shm.OpenEvent(files[1]); err != nil {
		g.dismiss()
		_ = g.mem.Close()
		drop()
		return nil, err
	}
	link.CloseReceived(files[:1]) // it stays mapped
	ring := g.mem.Bytes()[m.Ring : m.Ring+uint64(m.Entries)*shm.EntrySize]
	g.ring = &ringWriter{event: g.event, w: shm.NewWriter(ring), credit: int64(m.Entries), most: int64(m.Entries),
		wake: make(chan struct{})}
	if g.unregister, err = x.s.store.Register(g.mem.Bytes()); err != nil {
		x.s.log.Debug("shared memory not registered; reads cost more CPU", "error", err)
		g.unregister = nil
	}
	x.s.count.regions.Add(1)
	x.mu.Lock()
	x.region = g
	x.mu.Unlock()
	return &frames.Number{N: 1}, nil
}

func prepareDetach(r *request) (func(context.Context) (frames.Message, error), error) {
	var m frames.Number
	if err := r.read(&m); err != nil {
		return nil, err
	}
	return func(context.Context) (frames.Message, error) {
		r.x.mu.Lock()
		g := r.x.region
		r.x.region = nil
		r.x.mu.Unlock()
		if g != nil {
			g.release()
		}
		return nil, nil
	}, nil
}

// holdRegion gives the connection's region, to be released.
func (x *serverConn) holdRegion() (*region, error) {
	x.mu.Lock()
	g := x.region
	if g != nil {
		g.hold()
	}
	x.mu.Unlock()
	if g == nil {
		return nil, &skep.Error{Op: "shared memory", Kind: skep.Invalid, Field: "attached memory", Value: "none", Limit: "attached before"}
	}
	return g, nil
}

func (g *region) hold() {
	g.mu.Lock()
	g.holds++
	g.mu.Unlock()
}

func (g *region) release() {
	g.mu.Lock()
	g.holds--
	last := g.holds == 0
	g.mu.Unlock()
	if !last {
		return
	}
	for _, a := range g.files {
		a.close(g)
	}
	if g.unregister != nil {
		g.unregister()
	}
	if err := g.mem.Close(); err != nil {
		g.s.log.Warn("shared memory", "error", err)
	}
	_ = g.event.Close()
	g.s.count.regions.Add(-1)
	g.dismiss()
}

// admit lets a client have one region at a time: while sessions of a connection that
// broke still write to the memory, it is not attached again, so that a client whose
// attach is answered knows that nobody writes to it any more.
func (g *region) admit() bool {
	g.s.mu.Lock()
	defer g.s.mu.Unlock()
	if g.s.attached[g.client] {
		return false
	}
	g.s.attached[g.client] = true
	return true
}

func (g *region) dismiss() {
	g.s.mu.Lock()
	delete(g.s.attached, g.client)
	g.s.mu.Unlock()
	g.shared.Give(g.charged)
}

// slice is n bytes of the region, or Invalid.
func (g *region) slice(off, n uint64) ([]byte, error) {
	mem := g.mem.Bytes()
	if off > uint64(len(mem)) || n > uint64(len(mem))-off {
		return nil, skep.Invalidf("shared memory", "range", fmt.Sprintf("%d bytes at %d", n, off), fmt.Sprintf("within %d bytes", len(mem)))
	}
	return mem[off : off+n : off+n], nil
}

// destination makes a Destination of a chain's areas. What the Store needs of them
// (strides, sizes, pages) it checks itself.
func (g *region) destination(c *frames.RestoreChain, h *uses) (d skep.Destination, err error) {
	if c.To == frames.ToMemory {
		d.Stride = c.Stride
		d.Memory, err = g.place(c.Memory.Offset, c.Memory.Len, h)
		return d, err
	}
	p := &skep.Paged{Order: c.Order, PageStride: c.Stride, Pages: c.Pages, Planes: make([][2][]byte, len(c.Planes)/2)}
	if len(c.Planes)%2 != 0 || len(c.Planes) > 2*skep.MaxLayers {
		return d, skep.Invalidf("restore", "planes", len(c.Planes), fmt.Sprintf("pairs, at most %d", skep.MaxLayers))
	}
	for i, a := range c.Planes {
		if p.Planes[i/2][i%2], err = g.place(a.Offset, a.Len, h); err != nil {
			return d, err
		}
	}
	d.Paged = p
	return d, nil
}

// ringWriter answers sessions through the ring. How many entries are free it knows from
// the client's credit, never from the ring.
type ringWriter struct {
	event *shm.Signaller

	mu     sync.Mutex
	w      *shm.Writer
	credit int64
	most   int64         // entries of the ring
	wake   chan struct{} // closed and replaced when credit comes
}

// grant gives back entries that the client has read. More than the ring has are another ring's: what is written
// by them would write over what the client has yet to read.
//
// Errors: Invalid (the ring has fewer entries).
func (w *ringWriter) grant(n int64) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if n > w.most-w.credit {
		return skep.Invalidf("credit", "entries of the ring", w.credit+n, fmt.Sprintf("at most %d", w.most))
	}
	w.credit += n
	close(w.wake)
	w.wake = make(chan struct{})
	return nil
}

// room waits until an entry is free and takes it. It returns with w.mu held, unless it
// fails.
func (w *ringWriter) room(ctx context.Context, s *serverSession) error {
	var stalled <-chan time.Time
	for {
		w.mu.Lock()
		if w.credit > 0 {
			w.credit--
			return nil
		}
		wake := w.wake
		w.mu.Unlock()
		w.event.Signal()
		if stalled == nil {
			late, began := time.NewTimer(s.pace.Left), time.Now()
			defer late.Stop()
			stalled = late.C
			defer func() { s.pace.Waited(time.Since(began), 0) }()
		}
		select {
		case <-wake:
		case <-ctx.Done():
			return ctx.Err()
		case <-stalled:
			return s.tooSlow("credit of the ring")
		}
	}
}

func (w *ringWriter) one(ctx context.Context, s *serverSession, e *shm.Entry) error {
	if err := w.room(ctx, s); err != nil {
		return err
	}
	w.w.Put(e)
	w.mu.Unlock()
	s.pace.Waited(0, max(int64(e.Bytes), frames.PageSize))
	return nil
}

// put tells of chunks.
func (w *ringWriter) put(ctx context.Context, s *serverSession, list []skep.Chunk) error {
	for i := range list {
		ch := &list[i]
		e := shm.Entry{Session: s.id, Chain: uint32(ch.Chain), Block: uint32(ch.Block), Bytes: uint64(ch.Bytes), Tier: ch.Tier,
			Layers: [2]uint32{uint32(ch.Layers.From), uint32(ch.Layers.To)}}
		if ch.Err != nil {
			e.What, e.Kind, e.Bytes = shm.Miss, skep.KindOf(ch.Err), 0
		}
		if err := w.one(ctx, s, &e); err != nil {
			return err
		}
	}
	w.event.Signal()
	return nil
}

func (w *ringWriter) end(ctx context.Context, s *serverSession) error {
	err := w.one(ctx, s, &shm.Entry{Session: s.id, What: shm.End})
	w.event.Signal()
	return err
}
