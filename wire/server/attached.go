package server

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/wire/frames"
	"github.com/skepkv/skep/wire/link"
	"github.com/skepkv/skep/wire/shm"
)

// Beside the memory that a client made for its server (region.go) there may be memory that its engine has anyway: files
// of tmpfs or hugetlbfs, which nothing keeps from being cut short. Drives read into them as into the region, and for a
// page that is gone they have an error. This process touches them under a guard only: the Store as it checks and
// copies, this package as it fetches what is put. Places in them are numbered like the region's own; the number of the
// file is in the bits above.

// attached is a file of a client's, as its server has it.
type attached struct {
	number     uint64
	mem        *shm.Region
	unregister func()
	charged    int64
	gone       atomic.Bool // it was cut short
	// Guarded by the region's mu.
	holds  int           // sessions and puts that use it
	leaves chan struct{} // closed when it is asked to leave and nobody uses it; nil: it stays
}

// attachMemory maps the file whose descriptor came with the frame.
func attachMemory(_ context.Context, r *request) (frames.Message, error) {
	const op = "attach memory"
	x := r.x
	received := x.l.Files.Take()
	defer link.CloseReceived(received) // it stays mapped
	var m frames.AttachMemoryRequest
	if err := r.read(&m); err != nil {
		return nil, err
	}
	limit := x.s.shared.Of(x.who.Limits()).Most()
	switch {
	case len(received) != 1:
		return nil, skep.Invalidf(op, "descriptors", len(received), "1: a file in memory, over a Unix socket")
	case !shm.SameUser(x.l.Conn):
		return nil, &skep.Error{Op: op, Kind: skep.Denied, Field: "user", Value: "another", Limit: "the server's own"}
	case m.Memory == 0 || m.Memory >= 1<<(63-frames.FileShift):
		return nil, skep.Invalidf(op, "memory", m.Memory, fmt.Sprintf("1 to %d", 1<<(63-frames.FileShift)-1))
	case m.Size > uint64(limit) || m.Size >= 1<<frames.FileShift:
		return nil, skep.Invalidf(op, "size in bytes", m.Size, min(limit, 1<<frames.FileShift-1))
	case m.Offset >= 1<<62:
		return nil, skep.Invalidf(op, "offset", m.Offset, "within the file")
	}
	g, err := x.holdRegion()
	if err != nil {
		return nil, err
	}
	defer g.release()
	g.mu.Lock()
	twice, many := g.files[m.Memory] != nil, len(g.files) >= frames.MostAttached
	g.mu.Unlock()
	if twice {
		return nil, &skep.Error{Op: op, Kind: skep.Conflict, Field: "memory", Value: m.Memory,
			Limit: "a number that is not in use"}
	}
	if many {
		return nil, skep.Invalidf(op, "files", frames.MostAttached+1, frames.MostAttached)
	}
	a := &attached{number: m.Memory, charged: max(int64(m.Size), leastRegion)}
	if !g.shared.Take(a.charged) {
		return nil, link.Overloaded("shared memory", x.s.comeBack())
	}
	if a.mem, err = shm.Map(received[0], int64(m.Offset), int64(m.Size)); err != nil {
		g.shared.Give(a.charged)
		return nil, err
	}
	if a.unregister, err = x.s.store.Register(a.mem.Bytes()); err != nil {
		x.s.log.Debug("attached memory not registered; reads cost more CPU", "error", err)
		a.unregister = nil
	}
	g.mu.Lock()
	if g.files == nil {
		g.files = map[uint64]*attached{}
	}
	g.files[m.Memory] = a // only this connection's reader adds any
	g.mu.Unlock()
	return &frames.Number{N: m.Memory}, nil
}

// prepareDetachMemory has a file unmapped that nobody uses any more, and answers then.
func prepareDetachMemory(r *request) (func(context.Context) (frames.Message, error), error) {
	const op = "detach memory"
	var m frames.Number
	if err := r.read(&m); err != nil {
		return nil, err
	}
	g, err := r.x.holdRegion()
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) (frames.Message, error) {
		defer g.release()
		g.mu.Lock()
		a := g.files[m.N]
		if a == nil || a.leaves != nil {
			g.mu.Unlock()
			if a != nil {
				return nil, &skep.Error{Op: op, Kind: skep.Conflict, Field: "memory", Value: m.N, Limit: "one that is not leaving"}
			}
			return nil, skep.Invalidf(op, "memory", m.N, "the number of one that is attached")
		}
		a.leaves = make(chan struct{})
		if a.holds == 0 {
			close(a.leaves)
		}
		g.mu.Unlock()
		g.s.count.leaving.Add(1)
		select {
		case <-a.leaves:
		case <-ctx.Done():
		}
		g.s.count.leaving.Add(-1)
		g.mu.Lock() // until it is decided: whoever uses it lets go of it under the lock, and nobody begins to
		if a.holds > 0 {
			a.leaves = nil
			g.mu.Unlock()
			return nil, &skep.Error{Op: op, Kind: skep.NotReleased, Field: "memory", Value: m.N,
				Limit: "not used by sessions and puts", Err: ctx.Err()}
		}
		delete(g.files, m.N)
		g.mu.Unlock()
		a.close(g)
		return nil, nil
	}, nil
}

// close unmaps the file. Nobody uses it any more.
func (a *attached) close(g *region) {
	if a.unregister != nil {
		a.unregister()
	}
	if err := a.mem.Close(); err != nil {
		g.s.log.Warn("attached memory", "error", err)
	}
	g.shared.Give(a.charged)
}

// uses are the files that a session or a put uses.
type uses []*attached

// place is n bytes of the region, or of a file, which h holds then.
func (g *region) place(at, n uint64, h *uses) ([]byte, error) {
	if at>>frames.FileShift == 0 {
		return g.slice(at, n)
	}
	const op = "attached memory"
	g.mu.Lock()
	defer g.mu.Unlock()
	a := g.files[at>>frames.FileShift]
	if a == nil || a.leaves != nil {
		return nil, skep.Invalidf(op, "memory", at>>frames.FileShift, "the number of one that is attached")
	}
	if a.gone.Load() {
		return nil, &skep.Error{Op: op, Kind: skep.Invalid, Field: "memory", Value: a.number,
			Limit: "a file that was not cut short; attach it anew"}
	}
	mem, off := a.mem.Bytes(), at&(1<<frames.FileShift-1)
	if off > uint64(len(mem)) || n > uint64(len(mem))-off {
		return nil, skep.Invalidf(op, "range", fmt.Sprintf("%d bytes at %d", n, off), fmt.Sprintf("within %d bytes",
			len(mem)))
	}
	if !slices.Contains(*h, a) {
		*h = append(*h, a)
		a.holds++
	}
	return mem[off : off+n : off+n], nil
}

func (h *uses) release(g *region) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, a := range *h {
		if a.holds--; a.holds == 0 && a.leaves != nil {
			close(a.leaves)
		}
	}
	*h = nil
}

// look finds out which files were cut short, where chunks say that their destination was not there.
func (h uses) look(list []skep.Chunk) {
	if len(h) == 0 || !slices.ContainsFunc(list, func(ch skep.Chunk) bool { return errors.Is(ch.Err, skep.Invalid) }) {
		return
	}
	for _, a := range h {
		a.look()
	}
}

// look touches the last byte: what is cut off a file is its end.
func (a *attached) look() {
	mem, last := a.mem.Bytes(), byte(0)
	if shm.Guarded(mem, func() { last = mem[len(mem)-1] }) != nil {
		a.gone.Store(true)
	}
	_ = last
}

// inFile says whether the part's bytes lie in an attached file: they are fetched before anything is stored.
func inFile(p *frames.PutPart) bool { return p.Shared && p.Offset>>frames.FileShift != 0 }

// fetch is a part in a file, and memory of the Store's that it is copied to.
type fetch struct{ from, to []byte }

func (t *taker) later(p *frames.PutPart, to []byte) error {
	from, err := t.region.place(p.Offset, p.Size, &t.files)
	if err == nil {
		t.copies = append(t.copies, fetch{from, to})
	}
	return err
}

// fetch copies what lies in files.
func (t *taker) fetch() error {
	for _, c := range t.copies {
		if err := shm.Guarded(c.from, func() { copy(c.to, c.from) }); err != nil {
			for _, a := range t.files {
				a.look()
			}
			return err
		}
	}
	t.copies = nil
	return nil
}
