package skep

import (
	"context"
	"fmt"
	"time"
)

// Range is [From, To). The zero Range means everything.
type Range struct{ From, To int }

// All reports whether r stands for everything.
func (r Range) All() bool { return r == Range{} }

// Within gives r with the zero Range turned into [0, n), and whether it lies in it.
func (r Range) Within(n int) (Range, bool) {
	if r.All() {
		return Range{0, n}, true
	}
	return r, r.From >= 0 && r.From < r.To && r.To <= n
}

// Len is the number of elements.
func (r Range) Len() int { return r.To - r.From }

// Direction is the order in which a chain is loaded. The numbers travel on the wire.
type Direction uint8

const (
	HeadFirst  Direction = 0 // block by block, first block first
	TailFirst  Direction = 1 // block by block, last block first: the engine computes from the head meanwhile
	LayersUp   Direction = 2 // layer by layer, lowest first, each over all blocks
	LayersDown Direction = 3 // layer by layer, highest first: the engine computes from the bottom meanwhile
	EitherWay  Direction = 4 // TailFirst or LayersDown, as the Store decides when the session begins: Directed
)

func (d Direction) String() string {
	switch d {
	case HeadFirst:
		return "head-first"
	case TailFirst:
		return "tail-first"
	case LayersUp:
		return "layers-up"
	case LayersDown:
		return "layers-down"
	case EitherWay:
		return "either-way"
	}
	return fmt.Sprintf("direction %d", uint8(d))
}

// ByLayer reports whether d goes layer by layer.
func (d Direction) ByLayer() bool { return d == LayersUp || d == LayersDown }

// Destination says where a chain's bytes go. Exactly one of Memory and Paged may be
// set; with neither the store lends its own memory with each chunk.
//
// Memory that is aligned to 4 KiB is read into directly; the rest goes through a
// copy that Stats counts (CopiedBytes). Memory from Store.Alloc is registered with
// the drives, which saves CPU.
type Destination struct {
	// Memory is contiguous: block i of the chain's Blocks range begins at i·Stride,
	// in the layout of the namespace's shape, whichever layers and heads are asked for.
	Memory []byte
	Stride int64 // bytes; 0: the part's size rounded up to 4 KiB
	// Paged fills an engine's paged KV.
	Paged *Paged
}

// Paged maps layer, K or V and slot to an address, so that an engine's paged KV
// cache is filled in place. A page holds the shape's B tokens of one layer's K or
// V: KVHeads × B × HeadDim elements in Order.
type Paged struct {
	Order      AxisOrder
	Planes     [][2][]byte // [layer][K, V]; a latent shape uses index 0 only
	PageStride int64       // bytes from one page of a plane to the next
	Pages      []int       // page of each block of the chain's Blocks range
}

// Chain is one prompt's blocks to be restored.
type Chain struct {
	Scope
	Keys      []Key  // the chain, first block first; lent until the session is closed
	Blocks    Range  // which of Keys to load
	Part      string // "" means PartKV
	Direction Direction
	Layers    Range     // zero: all
	Heads     Range     // KV heads; zero: all. Attention shapes in HND order
	Lease     LeaseID   // from the lookup that found it; 0 none
	Deadline  time.Time // zero: none. What has not landed by then is a miss with reason Deadline
	Priority  int       // higher first
	Dest      Destination
	// Compute, when set, has the chain restored by two pointers. TailFirst, LayersDown and EitherWay only.
	Compute *Compute
}

// ValidateCompute returns an Invalid error when what the chain says of computing is outside its
// limits, or its Direction has no two pointers, or is EitherWay and nothing is said of computing.
func (c *Chain) ValidateCompute() error {
	if c.Compute == nil && c.Direction != EitherWay {
		return nil
	}
	if c.Compute == nil {
		return Invalidf("restore", "direction", c.Direction, "another, where computing has no cost")
	}
	if c.Direction != TailFirst && c.Direction != LayersDown && c.Direction != EitherWay {
		return Invalidf("restore", "direction", c.Direction, "tail-first, layers-down or either-way, where computing has a cost")
	}
	return c.Compute.Validate()
}

// RestoreRequest is a batch of chains restored by one session.
type RestoreRequest struct {
	Chains []Chain
	// Sums asks for Chunk.Sums.
	Sums bool
	// Window is how many bytes the session may have on the way to its reader: being read,
	// or landed and not given back. 0: as many as the store likes. A store that lends
	// memory keeps to it, so that a slow reader holds little of it.
	Window int64
}

// Sum is the checksum of Len bytes, as it was computed when they were put: xxh3-64
// seeded with Seed. The seed has the bytes' identity in it (namespace, salt, key, part,
// granule, version), so bytes of another place do not match.
type Sum struct {
	Len  int64
	Seed uint64
	Sum  uint64
}

// MaxChains is the most chains of one session.
const MaxChains = 1024

// Chunk is one piece that landed, or one that will not: a block (or the asked-for
// layers of one) in the block directions, one layer of one block in the layer
// directions.
type Chunk struct {
	Chain int // index into RestoreRequest.Chains
	Block int // index into that chain's Keys
	// Layers is which layers of the block the chunk is.
	Layers Range
	Bytes  int64
	Tier   Tier // where it came from
	// Err is nil, or why the piece is a miss: its Kind is the reason. A miss leaves
	// its destination undefined and fails nobody else.
	Err error
	// Data is the bytes when the chain has no destination, in the part's layout,
	// possibly in several pieces; valid until Release.
	Data [][]byte
	// Sums covers the chunk's bytes whole and in order, when RestoreRequest.Sums asked
	// for it and the store keeps checksums of exactly these bytes; else it is nil. The
	// bytes were compared with them before the chunk was delivered.
	Sums []Sum
	// Free gives Data back; nil when there is nothing to give. Call Release.
	Free func()
}

// Release gives the chunk's Data back to the store. Safe on any chunk, once.
func (c *Chunk) Release() {
	if c.Free != nil {
		c.Free()
		c.Free, c.Data = nil, nil
	}
}

// Claim answers a caller that wants to compute tokens itself.
type Claim struct {
	// Granted is the leading part of what was asked for that the store will now not
	// load: compute it. Empty (From == To) when the very first is loaded or on its way.
	Granted Range
	// Jump is where to go on after Granted: the first position at or after
	// Granted.To that is neither loaded nor being loaded. The chain's end means done.
	Jump int
}

// Directed is what a Session is besides whose Store takes chains EitherWay.
type Directed interface {
	// Direction is the way by which the chain is restored: what was asked for, or of EitherWay what the Store
	// chose, TailFirst or LayersDown. It does not change. Claims, Computed and Board count in tokens or in
	// layers by it, and chunks come by it: whole blocks, or one layer of a block. Over a
	// connection it may take a round trip, once; a server whose Store does not say is Unsupported.
	Direction(chain int) (Direction, error)
}

// Restorer loads blocks.
type Restorer interface {
	// Restore starts a session over a batch of chains. Bad arguments are Invalid and
	// start nothing. From here on the destinations belong to the session until it
	// says they are released. Close must be called.
	Restore(ctx context.Context, r *RestoreRequest) (Session, error)
}

// Session is a restore under way. Next is for one goroutine; the rest may be called
// from any.
type Session interface {
	// Next waits for chunks and fills into with at least one, in the order they
	// landed. io.EOF says that every chunk of every chain has been delivered and all
	// destinations are released. Cancelling ctx ends the wait, not the session.
	Next(ctx context.Context, into []Chunk) (int, error)
	// Claim says that the caller is about to compute tokens [From, To) of the chain
	// (in the block directions) or layers [From, To) (in the layer directions).
	// Chunks so granted are delivered as misses of kind Claimed.
	Claim(chain int, r Range) (Claim, error)
	// Reprioritise changes a chain's priority and deadline for what is not yet on its way.
	Reprioritise(chain int, priority int, deadline time.Time) error
	// Stop ends a chain (-1: all of them). When it returns nil no byte will ever again
	// be written to the chain's destination. What had not landed is delivered as
	// misses of kind Stopped. When ctx ends first the error is NotReleased and Stop may
	// be called again.
	Stop(ctx context.Context, chain int) error
	// Close stops what is left and waits, as Stop(ctx, -1), and ends the session.
	Close(ctx context.Context) error
}
