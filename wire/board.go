package wire

import (
	"context"
	"sync/atomic"
	"unsafe"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/wire/frames"
)

// Claims without a call: a word in the shared memory (skep.ClaimWord) that the client's engine claims by
// and the server's Store fills. It is all that the server reads of the memory's control state,
// and the Store believes of it only what a claim can have made of what it wrote there.

const opShareWord = "share claim word"

// ShareClaimWord implements skep.Session: the word is 8 bytes of memory of Alloc, of a session whose destinations
// lie there too. A server that has no words is Unsupported.
func (s *clientSession) ShareClaimWord(ctx context.Context, chain int, word *atomic.Uint64) error {
	const op = opShareWord
	if err := s.checkCosted(op, chain); err != nil {
		return err
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
	return s.ask(ctx, frames.TypeBoard, &frames.BoardRequest{Session: s.id, Chain: chain, Offset: off}, nil)
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

// Shares says whether the server maps what p lies in: memory of Alloc, or of Attach as long as it is attached.
func (c *Client) Shares(p []byte) bool { return c.shared != nil && c.shared.reaches(p) }

// InDoubt says whether a server that gave no answer in time, or that is cut off and may run yet, may write to p.
func (c *Client) InDoubt(p []byte) bool { return c.shared.inDoubt([][]byte{p}) }

// Withheld is how many bytes of the shared memory were given back and are not lent again, as a server may use them yet:
// one that this client was cut off from until it takes the memory anew, one that has ended for shm.LastReads more.
func (c *Client) Withheld() int64 {
	if c.shared == nil {
		return 0
	}
	c.shared.mu.Lock()
	defer c.shared.mu.Unlock()
	c.shared.settleLocked()
	return c.shared.book.Withheld()
}

// Attached says whether the server maps the memory that Alloc lends: nil, or why it does not. It makes the connection that
// the memory is attached to where there is none.
//
// Errors: those of a connection; Unsupported where Options.SharedMemory is 0; those of the server that refused it.
func (c *Client) Attached(ctx context.Context) error {
	const op = "shared memory"
	if c.shared == nil {
		return &skep.Error{Op: op, Kind: skep.Unsupported, Field: "shared memory", Value: 0, Limit: "some, over a Unix socket"}
	}
	x, err := c.conn(ctx, 0)
	if err != nil || c.shared.attachedTo(x) {
		return err
	}
	c.shared.mu.Lock()
	defer c.shared.mu.Unlock()
	if c.shared.why != nil {
		return c.shared.why
	}
	return &skep.Error{Op: op, Kind: skep.Unavailable, Field: "connection", Value: "another one since", Limit: "one that is attached"}
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
