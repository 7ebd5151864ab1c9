package wire

import (
	"context"
	"math"
	"net"
	"sync"
	"sync/atomic"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/wire/frames"
	"github.com/skepkv/skep/wire/link"
	"github.com/skepkv/skep/wire/runs"
)

// Put implements skep.Putter. A request larger than a frame is sent in several, each of
// which the server carries out by itself; everything is checked before the first is sent.
func (c *Client) Put(ctx context.Context, r *skep.PutRequest) ([]skep.PutResult, error) {
	out, err := c.put(ctx, r)
	if _, held := skep.Held(err); held && r.Released != nil {
		if c.shared == nil {
			r.Released()
			return out, err
		}
		c.shared.tell(bytesOf(r.Blocks), r.Released)
	}
	return out, err
}

func bytesOf(blocks []skep.Block) (out [][]byte) {
	for i := range blocks {
		for _, p := range blocks[i].Parts {
			out = append(out, p.Bytes)
		}
	}
	return out
}

func (c *Client) put(ctx context.Context, r *skep.PutRequest) ([]skep.PutResult, error) {
	const op = "put"
	if ctx.Err() != nil {
		return nil, link.Ended(op, ctx)
	}
	if err := r.Validate(); err != nil {
		return nil, err
	}
	x, err := c.pick(ctx)
	if err != nil {
		return c.putRefused(ctx, r, err)
	}
	shared := c.sharedFor(ctx, r.Blocks)
	most := int64(x.hi.MaxPayload)
	if shared && !c.shared.fetched(r.Blocks) {
		most = math.MaxInt64 // no payload travels
	}
	list, err := runs.Of(r, most, int(x.hi.MaxBody))
	if err != nil {
		return nil, err
	}
	if len(list) <= 1 && (len(list) == 0 || !list[0].Large) {
		return c.putRun(ctx, r, skep.Range{From: 0, To: len(r.Blocks)}, nil)
	}

	n, err := c.namespace(ctx, op, r.Namespace)
	if err != nil {
		return c.putRefused(ctx, r, err)
	}
	for i := range r.Blocks {
		if err := checkBlock(op, &n.NamespaceSpec, r, i); err != nil {
			return nil, err
		}
	}
	return c.putRuns(ctx, r, &n, list, together)
}

// putRefused is the answer when nothing was begun.
func (c *Client) putRefused(ctx context.Context, r *skep.PutRequest, err error) ([]skep.PutResult, error) {
	if !c.forgiven(ctx, err) {
		return nil, err
	}
	out := make([]skep.PutResult, len(r.Blocks))
	for i := range out {
		out[i] = skep.PutResult{Outcome: skep.Declined, Reason: skep.KindOf(err)}
	}
	return out, nil
}

// checkBlock checks block i of a put as the Store would.
func checkBlock(op string, n *skep.NamespaceSpec, r *skep.PutRequest, i int) error {
	b := &r.Blocks[i]
	m := make(skep.Manifest, len(b.Parts))
	for j, p := range b.Parts {
		m[j] = skep.PartSpec{Name: p.Name, Size: int64(len(p.Bytes))}
		if p.Name == "" {
			m[j].Name = skep.PartKV
		}
		if m[j].Name != skep.PartKV {
			continue
		}
		want := n.Shape.Bytes
		if n.Shape.Kind != skep.Opaque {
			g, err := layout.Of(n.Shape)
			if err != nil {
				return err
			}
			want = g.PartBytes()
		}
		if want > 0 && m[j].Size != want {
			return skep.Invalidf(op, "size of part kv", m[j].Size, want)
		}
	}
	parent, depth := r.Behind(n, i)
	return skep.ValidateBlock(op, n, depth, b.ValidTokens, b.Key, parent, b.Name, m)
}

// together is how many runs of one put are under way at once, and alone how many chains of one where the server takes
// them one by one.
const together, alone = 4, 64

func (c *Client) putRuns(ctx context.Context, r *skep.PutRequest, n *skep.NamespaceInfo, of []runs.Run, most int) ([]skep.PutResult, error) {
	out := make([]skep.PutResult, len(r.Blocks))
	var next, done atomic.Int64
	var wait sync.WaitGroup
	var held atomic.Bool // whatever else is wrong, the server may still read the memory of one
	whole := ctx
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	for range min(most, len(of)) {
		wait.Go(func() {
			for ctx.Err() == nil {
				i := int(next.Add(1)) - 1
				if i >= len(of) {
					return
				}
				list, err := c.putOne(ctx, r, n, of[i])
				if rest, kept := skep.Held(err); kept {
					held.Store(true)
					if err = rest; err == nil {
						err = &skep.Error{Op: "put", Kind: skep.Unavailable, Field: "answer", Value: "none", Limit: "in time"}
					}
				}
				if err != nil {
					cancel(err)
					return
				}
				copy(out[of[i].From:], list)
				done.Add(1)
			}
		})
	}
	wait.Wait()
	if int(done.Load()) == len(of) {
		return out, nil
	}
	err := context.Cause(ctx)
	if skep.KindOf(err) == skep.Other && whole.Err() != nil {
		err = link.Ended("put", whole)
	}
	if held.Load() {
		err = &skep.Error{Op: "put", Kind: skep.NotReleased, Err: err}
	}
	return nil, err
}

func (c *Client) putOne(ctx context.Context, r *skep.PutRequest, n *skep.NamespaceInfo, x runs.Run) ([]skep.PutResult, error) {
	if !x.Large {
		return c.putRun(ctx, r, x.Range, n)
	}
	b := &r.Blocks[x.From]
	parent, depth := r.Behind(&n.NamespaceSpec, x.From)
	req := &skep.BeginRequest{Scope: r.Scope, Parent: parent, Depth: depth, Key: b.Key, Name: b.Name,
		ValidTokens: b.ValidTokens, Replaces: b.Replaces}
	for _, p := range b.Parts {
		name := p.Name
		if name == "" {
			name = skep.PartKV
		}
		req.Manifest = append(req.Manifest, skep.PartSpec{Name: name, Size: int64(len(p.Bytes))})
	}
	w, err := c.Begin(ctx, req)
	if err != nil {
		return nil, err
	}
	for i, p := range b.Parts {
		if err := w.Write(ctx, req.Manifest[i].Name, 0, p.Bytes); err != nil {
			go w.Abort(c.ctx)
			return nil, err
		}
	}
	res, err := w.Commit(ctx, r.Ack)
	return []skep.PutResult{res}, err
}

// putRun sends one frame. n may be nil when the run is the whole request.
func (c *Client) putRun(ctx context.Context, r *skep.PutRequest, x skep.Range, n *skep.NamespaceInfo) ([]skep.PutResult, error) {
	m := &frames.PutRequest{Scope: r.Scope, Parent: r.Parent, Depth: r.Depth, Ack: r.Ack,
		Blocks: make([]frames.PutBlock, 0, x.Len())}
	if n != nil {
		m.Parent, m.Depth = r.Behind(&n.NamespaceSpec, x.From)
	}
	var payload net.Buffers
	shared := c.sharedFor(ctx, r.Blocks[x.From:x.To])
	for _, b := range r.Blocks[x.From:x.To] {
		out := frames.PutBlock{Key: b.Key, Valid: b.ValidTokens, Replaces: b.Replaces, Name: b.Name,
			Parts: make([]frames.PutPart, len(b.Parts))}
		for j, p := range b.Parts {
			if shared {
				off, _ := c.shared.place(p.Bytes)
				out.Parts[j] = frames.PutPart{Name: p.Name, Size: uint64(len(p.Bytes)), Shared: true, Offset: off}
				continue
			}
			out.Parts[j] = frames.PutPart{Name: p.Name, Size: uint64(len(p.Bytes)), Sum: c.sumKind(),
				Check: link.SumOver(c.sumKind(), p.Bytes)}
			if len(p.Bytes) > 0 {
				payload = append(payload, p.Bytes)
			}
		}
		m.Blocks = append(m.Blocks, out)
	}
	var res frames.PutResults
	call := spec{t: frames.TypePut, op: "put", long: true, first: shared}
	if r.Each && x.Len() > 1 {
		call.t, call.needs = frames.TypePutEach, frames.FeatureEach
	}
	if shared {
		call.lent = bytesOf(r.Blocks[x.From:x.To])
	}
	err := c.do(ctx, call, m, payload, &res)
	switch {
	case err != nil && call.needs != 0 && skep.KindOf(err) == skep.Unsupported:
		var ones []runs.Run
		for i := x.From; i < x.To; i++ {
			ones = append(ones, runs.Run{Range: skep.Range{From: i, To: i + 1}})
		}
		list, err := c.putRuns(ctx, r, &skep.NamespaceInfo{}, ones, alone)
		if err != nil {
			return nil, err
		}
		return list[x.From:x.To], nil
	case err != nil && skep.KindOf(err) == skep.Overloaded:
		return c.putRefused(ctx, &skep.PutRequest{Blocks: r.Blocks[x.From:x.To]}, err)
	case err != nil:
		return nil, err
	case len(res.List) != x.Len():
		return nil, frames.Broken("results of a put", len(res.List), x.Len())
	}
	return res.List, nil
}

// sharedFor says whether blocks stay where they are, in shared memory: all of them lie there, and it is attached.
func (c *Client) sharedFor(ctx context.Context, blocks []skep.Block) bool {
	if c.shared == nil || !c.shared.holdsParts(blocks) {
		return false
	}
	first, err := c.conn(ctx, 0)
	return err == nil && c.shared.attachedTo(first)
}

func (c *Client) sumKind() uint8 {
	if c.opt.CRC {
		return frames.SumCRC32
	}
	return frames.SumXXH3
}

// Flush implements skep.Putter.
func (c *Client) Flush(ctx context.Context) error {
	return c.do(ctx, spec{t: frames.TypeFlush, op: "flush", again: true, long: true}, nil, nil, nil)
}

// blockWriter is a block open on a server. It ends with the connection it was begun on.
type blockWriter struct {
	c  *Client
	x  *clientConn
	id uint64
}

// Begin implements skep.Putter.
func (c *Client) Begin(ctx context.Context, r *skep.BeginRequest) (skep.BlockWriter, error) {
	const op = "begin"
	if err := r.Validate(); err != nil {
		return nil, err
	}
	if err := c.open(ctx, op); err != nil {
		return nil, err
	}
	x, err := c.pick(ctx)
	if err != nil {
		return nil, err
	}
	w := &blockWriter{c: c, x: x}
	var m frames.Number
	if err := w.do(ctx, frames.TypeBegin, &frames.BeginRequest{BeginRequest: *r}, nil, &m); err != nil {
		return nil, err
	}
	w.id = m.N
	return w, nil
}

// do carries out a call on the writer's own connection.
func (w *blockWriter) do(ctx context.Context, t frames.Type, m frames.Message, payload net.Buffers,
	out frames.Message) error {
	if ctx.Err() != nil {
		return link.Ended(t.String(), ctx)
	}
	if w.c.ctx.Err() != nil {
		return errClosed
	}
	within, cancel := context.WithTimeout(ctx, w.c.opt.Patience)
	defer cancel()
	_, err := w.x.call(within, t, m, payload, out)
	if err == nil {
		return nil
	}
	return w.c.verdict(ctx, within, spec{op: t.String()}, err)
}

// Write implements skep.BlockWriter.
func (w *blockWriter) Write(ctx context.Context, part string, offset int64, p []byte) error {
	for first := true; first || len(p) > 0; first = false {
		n := min(len(p), int(w.x.hi.MaxPayload))
		m := &frames.WriteRequest{Writer: w.id, Part: part, Offset: offset, Sum: w.c.sumKind(),
			Check: link.SumOver(w.c.sumKind(), p[:n])}
		if err := w.do(ctx, frames.TypeWrite, m, net.Buffers{p[:n]}, nil); err != nil {
			return err
		}
		p, offset = p[n:], offset+int64(n)
	}
	return nil
}

// Commit implements skep.BlockWriter.
func (w *blockWriter) Commit(ctx context.Context, ack skep.Ack) (skep.PutResult, error) {
	var m frames.PutResults
	if err := w.do(ctx, frames.TypeCommit, &frames.CommitRequest{Writer: w.id, Ack: ack}, nil, &m); err != nil {
		return skep.PutResult{}, err
	}
	if len(m.List) != 1 {
		return skep.PutResult{}, frames.Broken("results of a commit", len(m.List), 1)
	}
	return m.List[0], nil
}

// Abort implements skep.BlockWriter. A server that is gone has aborted it.
func (w *blockWriter) Abort(ctx context.Context) error {
	err := w.do(ctx, frames.TypeAbort, &frames.Number{N: w.id}, nil, nil)
	if k := skep.KindOf(err); err != nil && ctx.Err() == nil && (k == skep.Unavailable || k == skep.Closed) {
		return nil
	}
	return err
}
