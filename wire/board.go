package wire

import (
	"context"
	"sync/atomic"
	"unsafe"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout/twopointer"
)

// Claims without a call: a word in the shared memory (twopointer.Word) that the client's engine claims by
// and the server's Store fills. It is all that the server reads of the memory's control state,
// and the Store believes of it only what a claim can have made of what it wrote there.

// boardRequest has a chain's claims granted through the word at Offset of the attached memory.
type boardRequest struct {
	Session uint64
	Chain   int
	Offset  uint64
}

func (m *boardRequest) walk(c *coder) {
	c.u64(&m.Session)
	c.int(&m.Chain)
	c.u64(&m.Offset)
}

var _ skep.Boarder = (*clientSession)(nil)

// Board implements skep.Boarder: the word is 8 bytes of memory of Alloc, of a session whose destinations
// lie there too. A server that has no words is Unsupported.
func (s *clientSession) Board(chain int, word *atomic.Uint64) error {
	const op = "board"
	if err := s.checkChain(op, chain); err != nil {
		return err
	}
	if s.chains[chain].Compute == nil {
		return skep.Invalidf(op, "chain", chain, "one that says what computing costs")
	}
	if word == nil {
		return skep.Invalidf(op, "word", "nil", "one")
	}
	if s.ring == nil {
		return &skep.Error{Op: op, Kind: skep.Unsupported, Field: "destination", Value: "not in shared memory", Limit: "memory of Alloc"}
	}
	mem := unsafe.Slice((*byte)(unsafe.Pointer(word)), 8)
	off, ok := s.c.shared.at(mem)
	if !ok {
		return skep.Invalidf(op, "word", "elsewhere", "in memory of Alloc")
	}
	s.ring.keep(mem)
	return s.ask(context.Background(), TypeBoard, &boardRequest{s.id, chain, off}, nil)
}

// SharedFile says where p, of memory of Alloc, lies in the descriptor of the memory shared with the server:
// another process of the engine maps it to claim by a word there. False where p lies elsewhere. The descriptor
// is the Client's until Close.
func (c *Client) SharedFile(p []byte) (fd int, offset int64, ok bool) {
	if c.shared == nil {
		return 0, 0, false
	}
	at, ok := c.shared.at(p)
	return c.shared.mem.Fd(), int64(at), ok
}

// words are memory that the server writes to as it does to destinations.
type words struct {
	mem  []byte
	next *words
}

// keep has the memory of a word treated as a destination's.
func (r *ringSession) keep(mem []byte) {
	w := &words{mem: mem}
	for w.next = r.words.Load(); !r.words.CompareAndSwap(w.next, w); w.next = r.words.Load() {
	}
}

// boardWord carries out a Board call. The session holds the memory until the Store's session is closed, which
// touches no word afterwards.
func boardWord(_ context.Context, r *request) (message, error) {
	const op = "board"
	var m boardRequest
	s, err := r.about(op, &m, &m.Session)
	if err != nil {
		return nil, err
	}
	g, err := r.x.holdRegion()
	if err != nil {
		return nil, err
	}
	defer g.release()
	if s.ring == nil || s.ring != g.ring {
		return nil, skep.Invalidf(op, "session", m.Session, "one that is answered through the ring of the attached memory")
	}
	mem, err := g.slice(m.Offset, 8)
	if err != nil {
		return nil, err
	}
	word, err := twopointer.WordAt(mem)
	if err != nil {
		return nil, err
	}
	b, ok := s.ses.(skep.Boarder)
	if !ok {
		return nil, &skep.Error{Op: op, Kind: skep.Unsupported, Field: "store", Value: "without a scheduler of claims"}
	}
	return nil, b.Board(m.Chain, word)
}
