package wire

import (
	"errors"
	"fmt"
	"io"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/wire/frames"
	"github.com/skepkv/skep/wire/heap"
	"github.com/skepkv/skep/wire/link"
)

// What follows runs on the connection's reader: chunks land.

// buffers are what chunks are lent in.
var buffers heap.Buffers

// take is called by the connection's reader with a frame of chunks. An error ends the connection.
func (s *clientSession) take(l *link.Link, h *frames.Header, body []byte) error {
	var m frames.Chunks
	if err := frames.Decode(h.Type, body, &m); err != nil {
		return err
	}
	left := uint64(h.Payload)
	for i := range m.List {
		p := &m.List[i]
		if p.Len > left {
			return frames.Broken("payload of a piece", p.Len, left)
		}
		left -= p.Len
		if err := s.piece(l, p); err != nil {
			return err
		}
	}
	if left != 0 {
		return frames.Broken("payload left over", left, 0)
	}
	if h.Flags&frames.FlagLast != 0 {
		s.finish(io.EOF)
	}
	s.signal()
	return nil
}

// finish notes that no more will come. What is missing then is a miss.
func (s *clientSession) finish(why error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended != nil {
		return
	}
	s.ended = why
	if s.left == 0 || s.closed {
		return
	}
	if errors.Is(why, io.EOF) {
		why = link.ErrorOf(opRestore, skep.Unavailable)
	}
	for c, t := range s.chains {
		s.goesLocked(c, skep.TailFirst) // when nothing has said otherwise
		for i := range t.Chunks() {
			s.answerLocked(c, i, skep.Chunk{Err: why})
		}
	}
}

// lost is called when the connection broke, or the server gave the session up.
func (s *clientSession) lost(why error) {
	s.finish(why)
	s.signal()
}

// piece takes one piece of a frame, and its bytes off the connection.
func (s *clientSession) piece(l *link.Link, p *frames.Piece) error {
	if int(p.Chain) >= len(s.chains) {
		return frames.Broken("chain of a chunk", p.Chain, len(s.chains))
	}
	chain := int(p.Chain)
	t := s.chains[chain]
	item, ok := s.itemOf(chain, int(p.Block), skep.Range{From: int(p.Layers[0]), To: int(p.Layers[1])})
	if !ok {
		return frames.Broken("chunk", fmt.Sprint(p.Block, p.Layers), "one that was asked for")
	}
	a := &s.now
	if a.open && (a.chain != chain || a.item != item) {
		return frames.Broken("chunk", item, "the rest of the one before")
	}
	switch p.What {
	case frames.PieceMiss:
		s.dropArriving()
		return s.answer(chain, item, skep.Chunk{Err: p.Err.Err()})
	case frames.PieceLanded:
		return frames.Broken("chunk", "in shared memory", "in the payload")
	}
	if p.Offset > p.Bytes || p.Len > p.Bytes-p.Offset || p.Len == 0 && p.Bytes > 0 || p.Bytes > skep.MaxPartBytes {
		return frames.Broken("piece", fmt.Sprintf("%d bytes at %d", p.Len, p.Offset), p.Bytes)
	}
	if !s.spend(chain, int64(p.Len)) {
		return frames.Broken("chunk", item, "within the credit")
	}
	if !a.open {
		if p.Offset != 0 {
			return frames.Broken("first piece's offset", p.Offset, 0)
		}
		if err := s.begin(chain, item, p); err != nil {
			return err
		}
	} else if a.off != int64(p.Offset) || a.bytes != p.Bytes {
		return frames.Broken("piece", fmt.Sprintf("at %d of %d", p.Offset, p.Bytes),
			fmt.Sprintf("at %d of %d", a.off, a.bytes))
	}
	if err := s.bytes(l, t, p); err != nil {
		return err
	}
	if a.off += int64(p.Len); a.off < int64(p.Bytes) {
		s.owe(int64(p.Len)) // a chunk may be larger than the window
		s.signal()
		return nil
	}
	return s.complete(t, p, int64(p.Len))
}

// spend takes bytes that came from the credit, which the last piece may pass; of a chain that was stopped the rest comes
// without. The server counts like that, too.
func (s *clientSession) spend(chain int, n int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	ok := n == 0 || s.credit > 0 || s.stopped[chain]
	s.credit -= n
	return ok
}

// owe counts bytes that are out of the way; Next gives the server credit for them.
func (s *clientSession) owe(n int64) {
	s.mu.Lock()
	s.owed += n
	s.mu.Unlock()
}

// begin makes ready for a chunk's first byte.
func (s *clientSession) begin(chain, item int, p *frames.Piece) error {
	t := s.chains[chain]
	spans, err := spansOf(t, skep.Range{From: int(p.Layers[0]), To: int(p.Layers[1])}, int64(p.Bytes))
	if err != nil {
		return err
	}
	s.mu.Lock()
	drop := s.closed || s.late || s.stopped[chain] || s.ended != nil
	again := !s.late && s.got[chain][item/64]>>(item%64)&1 != 0
	s.mu.Unlock()
	if again { // before it is written over what the caller has
		return frames.Broken("chunk", item, "each delivered once")
	}
	s.now = arriving{open: true, chain: chain, item: item, bytes: p.Bytes, spans: spans, drop: drop}
	a := &s.now
	if err := t.Fits(int64(p.Bytes)); err != nil {
		a.drop, a.failed = true, err
	}
	if !a.drop && (m(t) == nil || t.Transposed()) {
		a.data = buffers.Get(int64(p.Bytes))
	}
	return nil
}

// spansOf are the bytes of the part that a chunk of so many bytes is.
func spansOf(t *layout.ChainPlan, layers skep.Range, bytes int64) ([]layout.Span, error) {
	size := t.Size
	if !t.Structured {
		size = bytes
	}
	spans, err := t.Spans(nil, layers, size)
	n := int64(0)
	for _, s := range spans {
		n += s.Len
	}
	if err != nil || n != bytes {
		return nil, frames.Broken("bytes of a chunk", bytes, n)
	}
	return spans, nil
}

// m is the chain's destination, nil when its chunks are lent.
func m(t *layout.ChainPlan) any {
	if t.Dest.Memory == nil && t.Dest.Paged == nil {
		return nil
	}
	return t
}

// bytes reads a piece's bytes to where they belong and compares them with its checksums.
func (s *clientSession) bytes(l *link.Link, t *layout.ChainPlan, p *frames.Piece) error {
	a := &s.now
	if a.drop {
		return l.Discard(p.Len)
	}
	s.slots = s.slots[:0]
	if a.data != nil {
		s.slots = append(s.slots, a.data[p.Offset:p.Offset+p.Len])
	} else {
		block, _ := t.Chunk(a.item)
		s.slots = t.Places(s.slots, block, a.spans, int64(p.Offset), int64(p.Len))
	}
	if !s.enter(a.chain) {
		a.drop = true
		return l.Discard(p.Len)
	}
	v, left := link.Verifier{Sums: p.Sums, By: &l.Check}, p.Len
	for _, slot := range s.slots {
		for len(slot) > 0 {
			n := min(len(slot), link.ReadStep)
			k, err := l.ReadWhile(slot[:n], s.going)
			if left -= uint64(k); err != nil && !s.going() {
				a.drop = true
				s.leave()
				return l.Discard(left)
			}
			if err != nil {
				s.leave()
				return err
			}
			v.Write(slot[:n])
			slot = slot[n:]
		}
	}
	s.leave()
	if err := v.End(); err != nil && a.failed == nil {
		a.failed = err
	}
	for i := range p.Sums {
		if c := &p.Sums[i]; s.sums && c.Kind == frames.SumXXH3 && c.Len > 0 {
			a.sums = append(a.sums, skep.Sum{Len: int64(c.Len), Seed: c.Seed, Sum: c.Check})
		}
	}
	return nil
}

// complete answers the chunk whose last bytes, so many, are here.
func (s *clientSession) complete(t *layout.ChainPlan, p *frames.Piece, last int64) error {
	a := s.now
	s.now = arriving{}
	out := skep.Chunk{Bytes: int64(p.Bytes), Tier: p.Tier}
	switch {
	case a.failed != nil:
		out = skep.Chunk{Err: a.failed}
		buffers.Put(a.data)
	case a.drop:
		out = skep.Chunk{Err: frames.ErrStopped}
		buffers.Put(a.data)
	case m(t) == nil:
		out.Data = [][]byte{a.data}
		out.Free = func() {
			buffers.Put(a.data)
			s.consumed(last)
		}
		if out.Bytes == 0 {
			out.Data = nil
		}
	case a.data != nil:
		block, _ := t.Chunk(a.item)
		rest := a.data
		if s.enter(a.chain) {
			for _, sp := range a.spans {
				t.Copy(block, sp.Off, rest[:sp.Len])
				rest = rest[sp.Len:]
			}
			s.leave()
		} else {
			out = skep.Chunk{Err: frames.ErrStopped}
		}
		buffers.Put(a.data)
	}
	if out.Err == nil && covers(a.sums, out.Bytes) {
		out.Sums = a.sums
	}
	if out.Err != nil || out.Free == nil {
		s.owe(last)
	}
	return s.answer(a.chain, a.item, out)
}

// covers says whether checksums are of so many bytes.
func covers(sums []skep.Sum, bytes int64) bool {
	for i := range sums {
		bytes -= sums[i].Len
	}
	return bytes == 0
}

func (s *clientSession) dropArriving() {
	buffers.Put(s.now.data)
	s.now = arriving{}
}
