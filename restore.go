package skep

import (
	"context"
	"fmt"
	"time"
)

// Direction is the order in which a chain is loaded. The numbers travel on the wire.
type Direction uint8

const (
	HeadFirst  Direction = 0 // block by block, first block first
	TailFirst  Direction = 1 // block by block, last block first: the engine computes from the head meanwhile
	LayersUp   Direction = 2 // layer by layer, lowest first, each over all blocks
	LayersDown Direction = 3 // layer by layer, highest first: the engine computes from the bottom meanwhile
	Auto       Direction = 4 // TailFirst or LayersDown, as the Store decides when the session begins: Session.Direction
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
	case Auto:
		return "auto"
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
	// Stride is in bytes, the part's size or more; 0: that size rounded up to 4 KiB, where the shape says it. It is
	// looked at only where there is Memory.
	Stride int64
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
	Blocks    Subset // which of Keys to load; as of Layers and Heads, an empty one is Invalid
	Part      string // "" means PartKV
	Direction Direction
	Layers    Subset    // which of the shape's layers
	Heads     Subset    // which of its KV heads; All but for attention shapes in HND order
	Lease     LeaseID   // from the lookup that found it; 0 none. One that is unknown or over is as none
	Deadline  time.Time // zero: none. What has not landed by then (Steady) is a miss: Deadline
	Priority  int       // higher first
	Dest      Destination
	// Compute, when set, has the chain restored by two pointers. TailFirst, LayersDown and Auto only.
	Compute *Compute
}

// ValidateCompute returns an Invalid error when what the chain says of computing is outside its
// limits, or its Direction has no two pointers, or is Auto and nothing is said of computing.
func (c *Chain) ValidateCompute() error {
	if c.Compute == nil && c.Direction != Auto {
		return nil
	}
	if c.Compute == nil {
		return Invalidf("restore", "direction", c.Direction, "another, where computing has no cost")
	}
	if c.Direction != TailFirst && c.Direction != LayersDown && c.Direction != Auto {
		return Invalidf("restore", "direction", c.Direction, "tail-first, layers-down or auto, where computing has a cost")
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

// Validate returns an Invalid error naming the first field that is outside its limits in any namespace. All chains
// together have as many keys as one may have.
func (r *RestoreRequest) Validate() error {
	const op = "restore"
	if len(r.Chains) < 1 || len(r.Chains) > MaxChains {
		return Invalidf(op, "chains", len(r.Chains), fmt.Sprintf("1 to %d", MaxChains))
	}
	if r.Window < 0 {
		return Invalidf(op, "window in bytes", r.Window, "0 or more")
	}
	keys := 0
	for i := range r.Chains {
		if keys += len(r.Chains[i].Keys); keys > MaxChainKeys {
			return Invalidf(op, "keys of all chains", keys, fmt.Sprintf("at most %d", MaxChainKeys))
		}
		if err := r.Chains[i].Scope.validate(op); err != nil {
			return err
		}
	}
	return nil
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
	Block int // index into that chain's Keys, not into its Blocks
	// Layers is which layers of the shape the chunk has; empty where the part has none.
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

// AppendTo appends what the chunk lends in Data to b.
func (c *Chunk) AppendTo(b []byte) []byte {
	for _, piece := range c.Data {
		b = append(b, piece...)
	}
	return b
}

// Restorer loads blocks.
type Restorer interface {
	// Restore starts a session over a batch of chains. Bad arguments
	// start nothing. From here on the destinations belong to the session until it
	// says they are released. Close must be called. A block that is not there is no error but a chunk's.
	//
	// Errors: Invalid (no chain, among others), NotFound (no such namespace), Overloaded (too many calls are under way).
	Restore(ctx context.Context, r *RestoreRequest) (Session, error)
}
