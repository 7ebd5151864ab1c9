package frames

import (
	"slices"
	"time"

	"github.com/skepkv/skep"
)

// Where a chain's bytes go.
const (
	ToStream uint8 = 0 // into the payloads of Chunks
	ToMemory uint8 = 1 // into shared memory, block by block
	ToPages  uint8 = 2 // into shared memory, an engine's pages
)

// Area is a piece of the attached memory.
type Area struct{ Offset, Len uint64 }

func (m *Area) Walk(c *Coder) {
	c.u64(&m.Offset)
	c.u64(&m.Len)
}

type RestoreChain struct {
	skep.Scope
	Part      string
	Direction skep.Direction
	Lease     uint64
	Priority  int
	Deadline  time.Duration // from now; 0 none
	Blocks    skep.Range
	Layers    skep.Range
	Heads     skep.Range
	To        uint8
	Memory    Area // toMemory
	Stride    int64
	Order     skep.AxisOrder // toPages
	Planes    []Area         // [layer][K, V], one after another
	Pages     []int
	Keys      []skep.Key
}

func (m *RestoreChain) Walk(c *Coder) {
	c.scope(&m.Scope)
	text(c, &m.Part)
	enum(c, &m.Direction)
	c.u64(&m.Lease)
	c.int(&m.Priority)
	c.duration(&m.Deadline)
	c.span(&m.Blocks)
	c.span(&m.Layers)
	c.span(&m.Heads)
	c.u8(&m.To)
	switch m.To {
	case ToStream:
	case ToMemory:
		m.Memory.Walk(c)
		c.i64(&m.Stride)
	case ToPages:
		enum(c, &m.Order)
		c.i64(&m.Stride)
		list(c, &m.Planes, 16, func(c *Coder, a *Area) { a.Walk(c) })
		list(c, &m.Pages, 8, (*Coder).int)
	default:
		c.fail("destination", m.To, "0 to 2")
	}
	c.keys(&m.Keys)
}

type RestoreRequest struct {
	Window uint64 // bytes the server may send before the first Credit
	Ring   bool   // answer through the ring in the attached memory
	Chains []RestoreChain
}

func (m *RestoreRequest) Walk(c *Coder) {
	c.u64(&m.Window)
	c.flag(&m.Ring)
	list(c, &m.Chains, 86, func(c *Coder, x *RestoreChain) { x.Walk(c) })
}

// ChainCompute is what computing a chain of a session costs.
type ChainCompute struct {
	Chain uint32 // index into the session's chains
	skep.Compute
}

func (m *ChainCompute) Walk(c *Coder) {
	c.u32(&m.Chain)
	c.cost(&m.Cost)
	c.int(&m.Suffix)
	c.f64(&m.Weight)
	c.flag(&m.LoadOnly)
	c.flag(&m.Background)
	if maybe(c, &m.Boundary) {
		num32(c, &m.Boundary.Chain)
		c.i64(&m.Boundary.BytesPerToken)
	}
}

// CostedRestoreRequest is a Restore that says of some chains what computing them costs.
type CostedRestoreRequest struct {
	Compute []ChainCompute
	RestoreRequest
}

func (m *CostedRestoreRequest) Walk(c *Coder) {
	list(c, &m.Compute, 47, func(c *Coder, x *ChainCompute) { x.Walk(c) })
	m.RestoreRequest.Walk(c)
}

// Frame is the request as it travels: as a plain Restore where no chain has a cost.
func (m *CostedRestoreRequest) Frame() (Type, Message) {
	if len(m.Compute) == 0 {
		return TypeRestore, &m.RestoreRequest
	}
	return TypeCostedRestore, m
}

// Credit lets a session send Bytes more, or a stream of events so many more.
type Credit struct{ Session, Amount uint64 }

func (m *Credit) Walk(c *Coder) {
	c.u64(&m.Session)
	c.u64(&m.Amount)
}

type ClaimRequest struct {
	Session uint64
	Chain   int
	Range   skep.Range
}

func (m *ClaimRequest) Walk(c *Coder) {
	c.u64(&m.Session)
	c.int(&m.Chain)
	c.span(&m.Range)
}

type ClaimWhenRequest struct {
	ClaimRequest
	Idle bool
}

func (m *ClaimWhenRequest) Walk(c *Coder) {
	m.ClaimRequest.Walk(c)
	c.flag(&m.Idle)
}

type ComputedRequest struct {
	ClaimRequest
	Took, Other time.Duration
}

func (m *ComputedRequest) Walk(c *Coder) {
	m.ClaimRequest.Walk(c)
	c.duration(&m.Took)
	c.duration(&m.Other)
}

type ClaimResult struct{ skep.Claim }

func (m *ClaimResult) Walk(c *Coder) {
	c.span(&m.Granted)
	c.int(&m.Next)
}

type ReprioritiseRequest struct {
	Session  uint64
	Chain    int
	Priority int
	Deadline time.Duration
}

func (m *ReprioritiseRequest) Walk(c *Coder) {
	c.u64(&m.Session)
	c.int(&m.Chain)
	c.int(&m.Priority)
	c.duration(&m.Deadline)
}

type StopRequest struct {
	Session uint64
	Chain   int
}

func (m *StopRequest) Walk(c *Coder) {
	c.u64(&m.Session)
	c.int(&m.Chain)
}

// What a piece of a Chunks frame is.
const (
	pieceBytes  uint8 = 0 // Len bytes of the payload
	PieceMiss   uint8 = 1 // an error follows
	PieceLanded uint8 = 2 // its bytes lie in shared memory
)

// Piece is a chunk, or a run of a chunk's bytes.
type Piece struct {
	Chain, Block uint32
	Layers       [2]uint32
	Tier         skep.Tier
	What         uint8
	Bytes        uint64 // of the whole chunk
	Offset, Len  uint64 // of the bytes in this frame within them
	Sums         []Sum
	Err          ErrorBody
}

func (m *Piece) Walk(c *Coder) {
	c.u32(&m.Chain)
	c.u32(&m.Block)
	c.u32(&m.Layers[0])
	c.u32(&m.Layers[1])
	enum(c, &m.Tier)
	c.u8(&m.What)
	switch m.What {
	case pieceBytes:
		c.u64(&m.Bytes)
		c.u64(&m.Offset)
		c.u64(&m.Len)
		list(c, &m.Sums, 25, func(c *Coder, s *Sum) { s.Walk(c) })
	case PieceMiss:
		m.Err.Walk(c)
	case PieceLanded:
		c.u64(&m.Bytes)
	default:
		c.fail("piece", m.What, "0 to 2")
	}
}

// Sum covers the next Len bytes of a piece.
type Sum struct {
	Kind  uint8
	Len   uint64
	Seed  uint64
	Check uint64
}

func (m *Sum) Walk(c *Coder) {
	c.u8(&m.Kind)
	c.u64(&m.Len)
	c.u64(&m.Seed)
	c.u64(&m.Check)
}

type Chunks struct{ List []Piece }

func (m *Chunks) Walk(c *Coder) { list(c, &m.List, 26, func(c *Coder, p *Piece) { p.Walk(c) }) }

type EventsRequest struct {
	Cursor   skep.Cursor
	Snapshot bool
	Credit   uint64 // events the server may send before the first Credit
}

func (m *EventsRequest) Walk(c *Coder) {
	c.u64(&m.Cursor.Epoch)
	c.u64(&m.Cursor.Seq)
	c.flag(&m.Snapshot)
	c.u64(&m.Credit)
}

type EventBatch struct{ List []skep.Event }

func (m *EventBatch) Walk(c *Coder) {
	list(c, &m.List, 78, func(c *Coder, e *skep.Event) {
		c.u64(&e.Epoch)
		c.u64(&e.Seq)
		enum(c, &e.Kind)
		c.flag(&e.Salted)
		enum(c, &e.Tier)
		c.kind(&e.Reason)
		c.time(&e.Time)
		num32(c, &e.Namespace)
		num32(c, &e.Depth)
		c.u64(&e.Lost)
		c.key(&e.Key)
		c.maybeKey(&e.Parent)
	})
}

// AttachRequest comes with two descriptors: a memfd and an eventfd.
type AttachRequest struct {
	Size    uint64
	Ring    uint64 // offset of the ring
	Entries uint32 // of the ring, a power of two
}

// AttachMemoryRequest comes with one descriptor: a file in memory, of which the server maps a part.
type AttachMemoryRequest struct {
	Memory uint64 // its number, from 1
	Offset uint64 // in the file
	Size   uint64
}

func (m *AttachMemoryRequest) Walk(c *Coder) {
	c.u64(&m.Memory)
	c.u64(&m.Offset)
	c.u64(&m.Size)
}

func (m *AttachRequest) Walk(c *Coder) {
	c.u64(&m.Size)
	c.u64(&m.Ring)
	c.u32(&m.Entries)
}

// Lands says whether anything lands in shared memory.
func (m *RestoreRequest) Lands() bool {
	return slices.ContainsFunc(m.Chains, func(c RestoreChain) bool { return c.To != ToStream })
}

// DirectionRequest asks by which way a chain of a session goes.
type DirectionRequest struct {
	Session uint64
	Chain   int
}

func (m *DirectionRequest) Walk(c *Coder) {
	c.u64(&m.Session)
	c.int(&m.Chain)
}

type DirectionResult struct{ Direction skep.Direction }

func (m *DirectionResult) Walk(c *Coder) { enum(c, &m.Direction) }

// BoardRequest has a chain's claims granted through the word at Offset of the attached memory.
type BoardRequest struct {
	Session uint64
	Chain   int
	Offset  uint64
}

func (m *BoardRequest) Walk(c *Coder) {
	c.u64(&m.Session)
	c.int(&m.Chain)
	c.u64(&m.Offset)
}
