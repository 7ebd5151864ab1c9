package wire

import (
	"time"

	"github.com/skepkv/skep"
)

// Where a chain's bytes go.
const (
	toStream uint8 = 0 // into the payloads of Chunks
	toMemory uint8 = 1 // into shared memory, block by block
	toPages  uint8 = 2 // into shared memory, an engine's pages
)

// area is a piece of the attached memory.
type area struct{ Offset, Len uint64 }

func (m *area) walk(c *coder) {
	c.u64(&m.Offset)
	c.u64(&m.Len)
}

type restoreChain struct {
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
	Memory    area // toMemory
	Stride    int64
	Order     skep.AxisOrder // toPages
	Planes    []area         // [layer][K, V], one after another
	Pages     []int
	Keys      []skep.Key
}

func (m *restoreChain) walk(c *coder) {
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
	case toStream:
	case toMemory:
		m.Memory.walk(c)
		c.i64(&m.Stride)
	case toPages:
		enum(c, &m.Order)
		c.i64(&m.Stride)
		list(c, &m.Planes, 16, func(c *coder, a *area) { a.walk(c) })
		list(c, &m.Pages, 8, (*coder).int)
	default:
		c.fail("destination", m.To, "0 to 2")
	}
	c.keys(&m.Keys)
}

type restoreRequest struct {
	Window uint64 // bytes the server may send before the first Credit
	Ring   bool   // answer through the ring in the attached memory
	Chains []restoreChain
}

func (m *restoreRequest) walk(c *coder) {
	c.u64(&m.Window)
	c.flag(&m.Ring)
	list(c, &m.Chains, 86, func(c *coder, x *restoreChain) { x.walk(c) })
}

// chainCompute is what computing a chain of a session costs.
type chainCompute struct {
	Chain uint32 // index into the session's chains
	skep.Compute
}

func (m *chainCompute) walk(c *coder) {
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

// costedRestoreRequest is a Restore that says of some chains what computing them costs.
type costedRestoreRequest struct {
	Compute []chainCompute
	restoreRequest
}

func (m *costedRestoreRequest) walk(c *coder) {
	list(c, &m.Compute, 47, func(c *coder, x *chainCompute) { x.walk(c) })
	m.restoreRequest.walk(c)
}

// frame is the request as it travels: as a plain Restore where no chain has a cost.
func (m *costedRestoreRequest) frame() (Type, message) {
	if len(m.Compute) == 0 {
		return TypeRestore, &m.restoreRequest
	}
	return TypeCostedRestore, m
}

// credit lets a session send Bytes more, or a stream of events so many more.
type credit struct{ Session, Amount uint64 }

func (m *credit) walk(c *coder) {
	c.u64(&m.Session)
	c.u64(&m.Amount)
}

type claimRequest struct {
	Session uint64
	Chain   int
	Range   skep.Range
}

func (m *claimRequest) walk(c *coder) {
	c.u64(&m.Session)
	c.int(&m.Chain)
	c.span(&m.Range)
}

type claimWhenRequest struct {
	claimRequest
	Idle bool
}

func (m *claimWhenRequest) walk(c *coder) {
	m.claimRequest.walk(c)
	c.flag(&m.Idle)
}

type computedRequest struct {
	claimRequest
	Took, Other time.Duration
}

func (m *computedRequest) walk(c *coder) {
	m.claimRequest.walk(c)
	c.duration(&m.Took)
	c.duration(&m.Other)
}

type claimResult struct{ skep.Claim }

func (m *claimResult) walk(c *coder) {
	c.span(&m.Granted)
	c.int(&m.Next)
}

type reprioritiseRequest struct {
	Session  uint64
	Chain    int
	Priority int
	Deadline time.Duration
}

func (m *reprioritiseRequest) walk(c *coder) {
	c.u64(&m.Session)
	c.int(&m.Chain)
	c.int(&m.Priority)
	c.duration(&m.Deadline)
}

type stopRequest struct {
	Session uint64
	Chain   int
}

func (m *stopRequest) walk(c *coder) {
	c.u64(&m.Session)
	c.int(&m.Chain)
}

// What a piece of a Chunks frame is.
const (
	pieceBytes  uint8 = 0 // Len bytes of the payload
	pieceMiss   uint8 = 1 // an error follows
	pieceLanded uint8 = 2 // its bytes lie in shared memory
)

// piece is a chunk, or a run of a chunk's bytes.
type piece struct {
	Chain, Block uint32
	Layers       [2]uint32
	Tier         skep.Tier
	What         uint8
	Bytes        uint64 // of the whole chunk
	Offset, Len  uint64 // of the bytes in this frame within them
	Sums         []sum
	Err          errorBody
}

func (m *piece) walk(c *coder) {
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
		list(c, &m.Sums, 25, func(c *coder, s *sum) { s.walk(c) })
	case pieceMiss:
		m.Err.walk(c)
	case pieceLanded:
		c.u64(&m.Bytes)
	default:
		c.fail("piece", m.What, "0 to 2")
	}
}

// sum covers the next Len bytes of a piece.
type sum struct {
	Kind  uint8
	Len   uint64
	Seed  uint64
	Check uint64
}

func (m *sum) walk(c *coder) {
	c.u8(&m.Kind)
	c.u64(&m.Len)
	c.u64(&m.Seed)
	c.u64(&m.Check)
}

type chunks struct{ List []piece }

func (m *chunks) walk(c *coder) { list(c, &m.List, 26, func(c *coder, p *piece) { p.walk(c) }) }

type eventsRequest struct {
	Cursor   skep.Cursor
	Snapshot bool
	Credit   uint64 // events the server may send before the first Credit
}

func (m *eventsRequest) walk(c *coder) {
	c.u64(&m.Cursor.Epoch)
	c.u64(&m.Cursor.Seq)
	c.flag(&m.Snapshot)
	c.u64(&m.Credit)
}

type eventBatch struct{ List []skep.Event }

func (m *eventBatch) walk(c *coder) {
	list(c, &m.List, 78, func(c *coder, e *skep.Event) {
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

// attachRequest comes with two descriptors: a memfd and an eventfd.
type attachRequest struct {
	Size    uint64
	Ring    uint64 // offset of the ring
	Entries uint32 // of the ring, a power of two
}

// attachMemoryRequest comes with one descriptor: a file in memory, of which the server maps a part.
type attachMemoryRequest struct {
	Memory uint64 // its number, from 1
	Offset uint64 // in the file
	Size   uint64
}

func (m *attachMemoryRequest) walk(c *coder) {
	c.u64(&m.Memory)
	c.u64(&m.Offset)
	c.u64(&m.Size)
}

func (m *attachRequest) walk(c *coder) {
	c.u64(&m.Size)
	c.u64(&m.Ring)
	c.u32(&m.Entries)
}
