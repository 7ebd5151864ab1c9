package server

import (
	"cmp"
	"context"
	"fmt"
	"time"
	"unsafe"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/wire/frames"
	"github.com/skepkv/skep/wire/link"
)

// allocPatience is how long the reader of a connection waits for memory before it
// refuses a put: the other calls of the connection wait with it.
const allocPatience = 50 * time.Millisecond

// refusePayload reads a payload nobody wants and gives why back.
func (r *request) refusePayload(left uint64, why error) error {
	if err := r.x.l.Discard(left); err != nil {
		return &cutOff{err}
	}
	return why
}

// preparePut reads a put's blocks, its payload straight into memory of the Store's.
func preparePut(r *request) (func(context.Context) (frames.Message, error), error) {
	var m frames.PutRequest
	left := uint64(r.h.Payload)
	if err := r.read(&m); err != nil {
		return nil, r.refusePayload(left, err)
	}
	if n, most := len(m.Blocks), r.x.s.opt.Limits.Keys; n > most {
		return nil, r.refusePayload(left, skep.Invalidf("put", "blocks", n, most))
	}
	if err := r.reach(m.Namespace); err != nil {
		return nil, r.refusePayload(left, err)
	}
	region, err := checkPut(&m, left, r.x)
	if err != nil {
		return nil, r.refusePayload(left, err)
	}
	t := &taker{r: r, region: region, left: left}
	req, err := t.take(&m)
	if err != nil {
		t.release()
		return nil, err
	}
	r.x.s.count.taken.Add(int64(r.h.Payload))
	r.x.who.Limits().Charge(m.Shared())
	// A client's memory is never lent to drives to write from: it may change it meanwhile, or be gone.
	req.Exposed = t.exposed
	req.Released = func() { go t.release() }
	return func(ctx context.Context) (frames.Message, error) {
		if err := t.fetch(); err != nil {
			t.release()
			return nil, err
		}
		list, err := r.x.s.store.Put(ctx, req)
		rest, held := skep.Held(err)
		if !held {
			t.release()
		}
		return &frames.PutResults{List: list}, rest
	}, nil
}

// checkPut compares the sizes of a put's parts with its payload and with the shared memory,
// before anything of that size is made. It gives the region when a part lies in it,
// held.
func checkPut(m *frames.PutRequest, payload uint64, x *serverConn) (*region, error) {
	var sum, fetched uint64
	shared := false
	for i := range m.Blocks {
		for j := range m.Blocks[i].Parts {
			p := &m.Blocks[i].Parts[j]
			if p.Shared {
				shared = true
				if inFile(p) {
					if most := uint64(x.s.opt.Limits.Payload); p.Size > most || fetched+p.Size > most {
						return nil, skep.Invalidf("put", "bytes of parts in attached files", fetched+min(p.Size, 1<<62), most)
					}
					fetched += p.Size
				}
				continue
			}
			if err := link.KnownSum(p.Sum); err != nil {
				return nil, err
			}
			if p.Size > payload {
				return nil, skep.Invalidf("put", "size of part "+p.Name, p.Size, fmt.Sprintf("at most the payload's %d bytes", payload))
			}
			sum += p.Size // cannot overflow: fewer than 2^32 parts of at most 2^32 bytes
		}
	}
	if sum != payload {
		return nil, skep.Invalidf("put", "payload length", payload, sum)
	}
	if !shared {
		return nil, nil
	}
	return x.holdRegion()
}

// taker takes a put's payload off the connection.
type taker struct {
	r       *request
	region  *region
	left    uint64
	charged int64
	mem     skep.Memory
	exposed bool // parts lie in the region
	files   uses // what parts lie in, that are fetched
	copies  []fetch
}

func (t *taker) release() {
	if t.mem != nil {
		t.mem.Release()
		t.mem = nil
	}
	if t.region != nil {
		t.files.release(t.region)
		t.region.release()
		t.region = nil
	}
	t.r.x.memory.Give(t.charged)
	t.charged = 0
}

// take gives the request with its bytes in place. Parts of a page and more begin at a
// page, so that the Store writes them from where they are.
func (t *taker) take(m *frames.PutRequest) (*skep.PutRequest, error) {
	var large, little, lists int64
	for i := range m.Blocks {
		lists += int64(unsafe.Sizeof(skep.Block{})) + int64(len(m.Blocks[i].Parts))*int64(unsafe.Sizeof(skep.Part{}))
		for j := range m.Blocks[i].Parts {
			if p := &m.Blocks[i].Parts[j]; p.Shared && !inFile(p) {
				t.exposed = true
			} else if p.Size >= frames.PageSize {
				large += int64(p.Size+frames.PageSize-1) &^ (frames.PageSize - 1)
			} else {
				little += int64(p.Size)
			}
		}
	}
	if err := t.r.x.charge("put", "the body, its lists and the payload", t.r.charged, large+little+lists); err != nil {
		return nil, t.r.refusePayload(t.left, err)
	}
	t.charged = large + little + lists
	req := &skep.PutRequest{Scope: m.Scope, Parent: m.Parent, Depth: m.Depth, Ack: m.Ack,
		Each: t.r.h.Type == frames.TypePutEach, Blocks: make([]skep.Block, len(m.Blocks))}
	room, err := t.alloc(large)
	if err != nil {
		return nil, t.r.refusePayload(t.left, err)
	}
	bytes := make([]byte, little)
	var wrong error
	for i := range m.Blocks {
		b := &m.Blocks[i]
		req.Blocks[i] = skep.Block{Key: b.Key, Name: b.Name, ValidTokens: b.Valid, Replaces: b.Replaces, Parts: make([]skep.Part, len(b.Parts))}
		for j := range b.Parts {
			p := &b.Parts[j]
			out := &req.Blocks[i].Parts[j]
			out.Name = p.Name
			switch {
			case p.Shared && !inFile(p):
				if out.Bytes, err = t.region.slice(p.Offset, p.Size); err != nil && wrong == nil {
					wrong = err
				}
				continue
			case p.Size >= frames.PageSize:
				out.Bytes = room[:p.Size:p.Size]
				room = room[(p.Size+frames.PageSize-1)&^(frames.PageSize-1):]
			default:
				out.Bytes = bytes[:p.Size:p.Size]
				bytes = bytes[p.Size:]
			}
			if p.Shared {
				if err := t.later(p, out.Bytes); err != nil && wrong == nil {
					wrong = err
				}
				continue
			}
			if err := t.part(p, out.Bytes); err != nil {
				return nil, err
			} else if wrong == nil {
				wrong = comparePart(p, &t.r.x.l.Check)
			}
		}
	}
	return req, wrong
}

func (t *taker) part(p *frames.PutPart, mem []byte) error {
	c := &t.r.x.l.Check
	c.Reset(p.Sum, 0)
	if err := t.r.x.l.ReadSummed(mem, c); err != nil {
		return &cutOff{err}
	}
	t.left -= p.Size
	return nil
}

func comparePart(p *frames.PutPart, c *link.Summer) error {
	if s := c.Sum(); s != p.Check {
		return &skep.Error{Op: "put", Kind: skep.Damaged, Field: "checksum of part " + p.Name, Value: p.Check, Limit: s}
	}
	return nil
}

// alloc is n bytes of the Store's memory, or of our own where the Store lends none so
// large.
func (t *taker) alloc(n int64) ([]byte, error) {
	if n == 0 {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(t.r.x.ctx, allocPatience)
	defer cancel()
	began := time.Now()
	mem, err := t.r.x.s.store.Alloc(ctx, n)
	switch {
	case err == nil:
		t.mem = mem
		return mem.Bytes(), nil
	case skep.KindOf(err) == skep.NoMemory && time.Since(began) < allocPatience/2:
		return make([]byte, n), nil // larger than it ever lends
	case skep.KindOf(err) == skep.NoMemory:
		return nil, link.Overloaded("memory of the store", t.r.x.s.comeBack())
	}
	return nil, err
}

func prepareBegin(r *request) (func(context.Context) (frames.Message, error), error) {
	var m frames.BeginRequest
	if err := r.read(&m); err != nil {
		return nil, err
	}
	if err := r.reach(m.Namespace); err != nil {
		return nil, err
	}
	x := r.x
	return func(ctx context.Context) (frames.Message, error) {
		if err := x.charge("begin", "open blocks", 0, writerBytes); err != nil {
			return nil, err
		}
		w, err := x.s.store.Begin(ctx, &m.BeginRequest)
		if err != nil {
			x.memory.Give(writerBytes)
			return nil, err
		}
		until := time.Now().Add(cmp.Or(m.Timeout, skep.DefaultPutTimeout))
		x.mu.Lock()
		x.next++
		id := x.next
		if len(x.writers) >= 16*x.s.opt.Limits.Calls {
			x.forgetWritersLocked()
		}
		full := x.writers == nil || len(x.writers) >= 16*x.s.opt.Limits.Calls
		if !full {
			x.writers[id] = openBlock{w, until}
		}
		x.mu.Unlock()
		if full {
			x.memory.Give(writerBytes)
			_ = w.Abort(ctx)
			return nil, link.Overloaded("open blocks of the connection", time.Second)
		}
		return &frames.Number{N: id}, nil
	}, nil
}

// openBlock is a block that was begun.
type openBlock struct {
	skep.BlockWriter
	until time.Time // the Store has dropped it by then
}

// forgetWritersLocked forgets the blocks that nobody ended in their time. REQUIRES: x.mu.
func (x *serverConn) forgetWritersLocked() {
	now := time.Now()
	for id, w := range x.writers {
		if now.After(w.until) {
			delete(x.writers, id)
			x.memory.Give(writerBytes)
		}
	}
}

func (x *serverConn) writer(op string, id uint64, last bool) (skep.BlockWriter, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	w, ok := x.writers[id]
	if !ok {
		return nil, link.ErrorOf(op, skep.Closed)
	}
	if last {
		delete(x.writers, id)
		x.memory.Give(writerBytes)
	}
	return w, nil
}

func prepareWrite(r *request) (func(context.Context) (frames.Message, error), error) {
	var m frames.WriteRequest
	left := uint64(r.h.Payload)
	if err := r.read(&m); err != nil {
		return nil, r.refusePayload(left, err)
	}
	if err := link.KnownSum(m.Sum); err != nil {
		return nil, r.refusePayload(left, err)
	}
	w, err := r.x.writer("write", m.Writer, false)
	if err != nil {
		return nil, r.refusePayload(left, err)
	}
	if err := r.spendOn("the payload", int64(left)); err != nil {
		return nil, r.refusePayload(left, err)
	}
	p := make([]byte, left)
	c := &r.x.l.Check
	c.Reset(m.Sum, 0)
	if err := r.x.l.ReadSummed(p, c); err != nil {
		return nil, &cutOff{err}
	}
	if s := c.Sum(); s != m.Check {
		return nil, &skep.Error{Op: "write", Kind: skep.Damaged, Field: "checksum", Value: m.Check, Limit: s}
	}
	r.x.s.count.taken.Add(int64(left))
	return func(ctx context.Context) (frames.Message, error) { return nil, w.Write(ctx, m.Part, m.Offset, p) }, nil
}

func prepareCommit(r *request) (func(context.Context) (frames.Message, error), error) {
	var m frames.CommitRequest
	if err := r.read(&m); err != nil {
		return nil, err
	}
	w, err := r.x.writer("commit", m.Writer, false)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) (frames.Message, error) {
		res, err := w.Commit(ctx, m.Ack)
		if err != nil && skep.KindOf(err) != skep.Invalid {
			// It may not have begun, and nobody can name the block any more.
			stall, cancel := context.WithTimeout(context.WithoutCancel(ctx), r.x.s.opt.Limits.Stall)
			_ = w.Abort(stall)
			cancel()
		}
		if err == nil || skep.KindOf(err) != skep.Invalid { // else it stays open
			_, _ = r.x.writer("commit", m.Writer, true)
		}
		return &frames.PutResults{List: []skep.PutResult{res}}, err
	}, nil
}

func prepareAbort(r *request) (func(context.Context) (frames.Message, error), error) {
	var m frames.Number
	if err := r.read(&m); err != nil {
		return nil, err
	}
	w, err := r.x.writer("abort", m.N, true)
	return func(ctx context.Context) (frames.Message, error) {
		if err != nil {
			return nil, nil // aborting what is over is not an error
		}
		return nil, w.Abort(ctx)
	}, nil
}
