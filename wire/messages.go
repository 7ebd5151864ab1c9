package wire

import (
	"time"

	"github.com/skepkv/skep"
)

// The bodies of frames. Each walk is the frame's table in docs/reference/protocol.md, line by line.

// Features a peer may offer in its Hello; the Welcome has those both know.
const (
	// FeatureXXH3: this client checks xxh3-64. Without it every checksum is a CRC-32 that
	// the server makes as it sends.
	FeatureXXH3 uint32 = 1
	// FeatureCompute: both know the frames by which chains are restored by two pointers.
	FeatureCompute uint32 = 2

	// FeatureEither: both know direction 4, either way, and the frame that asks which it is.
	FeatureEither uint32 = 4
	// FeatureTold: an event batch without events says that the stream has told of all of its snapshot.
	FeatureTold uint32 = 8
	// FeatureRuns: both know the frame that looks many runs of keys up.
	FeatureRuns uint32 = 16
	// FeatureEpoch: the server is a node of a cluster, and compares the epoch in a request's header with its map's.
	FeatureEpoch uint32 = 32
	// FeatureMemory: both know the frames that attach files in memory.
	FeatureMemory uint32 = 64
	// FeatureNode: the server is a node of a cluster, and its Welcome says which.
	FeatureNode uint32 = 128

	features = FeatureXXH3 | FeatureCompute | FeatureEither | FeatureTold | FeatureRuns | FeatureEpoch | FeatureMemory | FeatureNode
)

// maxHello is the largest body read before a client has authenticated.
const maxHello = 8 << 10

type hello struct {
	Min, Max uint8
	Features uint32
	Client   [16]byte // the same on all connections of one client
	Name     string   // for logs
	Token    string
}

func (m *hello) walk(c *coder) {
	c.u8(&m.Min)
	c.u8(&m.Max)
	c.u32(&m.Features)
	c.fixed(m.Client[:])
	text(c, &m.Name)
	text(c, &m.Token)
}

type welcome struct {
	Version    uint8
	Features   uint32
	Server     ServerID // another one each time the server starts
	MaxBody    uint32
	MaxPayload uint32
	MaxKeys    uint32
	MaxCalls   uint32
	MaxWindow  uint64
	Tenant     string
	Rights     uint8
	Name       string
	Node       string // by its name in the cluster's map; with FeatureNode only
}

func (m *welcome) walk(c *coder) {
	c.u8(&m.Version)
	c.u32(&m.Features)
	c.fixed(m.Server[:])
	c.u32(&m.MaxBody)
	c.u32(&m.MaxPayload)
	c.u32(&m.MaxKeys)
	c.u32(&m.MaxCalls)
	c.u64(&m.MaxWindow)
	text(c, &m.Tenant)
	c.u8(&m.Rights)
	text(c, &m.Name)
	if m.Features&FeatureNode != 0 {
		text(c, &m.Node)
	}
}

// errorBody is a skep.Error.
type errorBody struct {
	Kind                           skep.Kind
	RetryAfter                     time.Duration
	Op, Field, Value, Limit, Cause string
}

func (m *errorBody) walk(c *coder) {
	c.kind(&m.Kind)
	c.duration(&m.RetryAfter)
	text(c, &m.Op)
	text(c, &m.Field)
	text(c, &m.Value)
	text(c, &m.Limit)
	text(c, &m.Cause)
}

// number is a body of one number: a call, a lease, a writer, a region.
type number struct{ N uint64 }

func (m *number) walk(c *coder) { c.u64(&m.N) }

type goodbye struct {
	After  time.Duration // the sender closes the connection then
	Reason string
}

func (m *goodbye) walk(c *coder) {
	c.duration(&m.After)
	text(c, &m.Reason)
}

type namespaceSpec struct{ skep.NamespaceSpec }

func (m *namespaceSpec) walk(c *coder) { walkSpec(c, &m.NamespaceSpec) }

func walkSpec(c *coder, m *skep.NamespaceSpec) {
	text(c, &m.Tenant)
	text(c, &m.Name)
	text(c, &m.Model)
	enum(c, &m.Shape.Kind)
	enum(c, &m.Shape.Element)
	enum(c, &m.Shape.Order)
	c.int(&m.Shape.Layers)
	c.int(&m.Shape.KVHeads)
	c.int(&m.Shape.HeadDim)
	c.int(&m.Shape.BlockTokens)
	c.i64(&m.Shape.Bytes)
	enum(c, &m.Class)
	c.int(&m.Copies)
	c.flag(&m.Chained)
}

type namespaceInfo struct{ skep.NamespaceInfo }

func (m *namespaceInfo) walk(c *coder) {
	num32(c, &m.ID)
	c.time(&m.Created)
	walkSpec(c, &m.NamespaceSpec)
}

type namespaceList struct{ List []namespaceInfo }

func (m *namespaceList) walk(c *coder) {
	list(c, &m.List, 71, func(c *coder, n *namespaceInfo) { n.walk(c) })
}

// time is nanoseconds since 1970, 0 for the zero time.
func (c *coder) time(v *time.Time) {
	var n int64
	if !v.IsZero() {
		n = v.UnixNano()
	}
	if u, ok := c.carry64(uint64(n)); ok && u != 0 {
		*v = time.Unix(0, int64(u))
	}
}

type lookupRequest struct{ skep.LookupRequest }

func (m *lookupRequest) walk(c *coder) {
	c.scope(&m.Scope)
	c.duration(&m.Lease)
	c.flag(&m.Tiers)
	if maybe(c, &m.Cost) {
		c.cost(m.Cost)
	}
	c.keys(&m.Keys)
}

type lease struct {
	ID   uint64
	Left time.Duration // from now
}

func (m *lease) walk(c *coder) {
	c.u64(&m.ID)
	c.duration(&m.Left)
}

type lookupResult struct {
	Blocks, Tokens uint64
	Bytes          int64
	Lease          lease
	Denied, Pays   bool
	Estimate       time.Duration
	Tiers          []byte
}

func (m *lookupResult) walk(c *coder) {
	c.u64(&m.Blocks)
	c.u64(&m.Tokens)
	c.i64(&m.Bytes)
	m.Lease.walk(c)
	c.flag(&m.Denied)
	c.flag(&m.Pays)
	c.duration(&m.Estimate)
	c.bytes(&m.Tiers)
}

type runsRequest struct{ skep.RunsRequest }

func (m *runsRequest) walk(c *coder) {
	c.scope(&m.Scope)
	c.duration(&m.Lease)
	c.flag(&m.Tiers)
	if maybe(c, &m.Cost) {
		c.cost(m.Cost)
	}
	list(c, &m.Runs, leastRun, func(c *coder, keys *[]skep.Key) { c.keys(keys) })
}

// leastRun is how long a run of one key is.
const leastRun = 4 + skep.KeySize

func (m *runsRequest) keys() (n int) {
	for _, run := range m.Runs {
		n += len(run)
	}
	return n
}

type runsResult struct {
	Runs   []skep.RunFound
	Lease  lease
	Denied bool
	Tiers  []byte
}

func (m *runsResult) walk(c *coder) {
	list(c, &m.Runs, runFoundBytes, func(c *coder, x *skep.RunFound) {
		c.int(&x.Blocks)
		c.int(&x.Tokens)
		c.i64(&x.Bytes)
		c.duration(&x.Estimate)
		c.flag(&x.Pays)
	})
	m.Lease.walk(c)
	c.flag(&m.Denied)
	c.bytes(&m.Tiers)
}

const runFoundBytes = 33

type wantRequest struct{ skep.WantRequest }

func (m *wantRequest) walk(c *coder) {
	c.scope(&m.Scope)
	c.i64(&m.Bytes)
	c.keys(&m.Keys)
}

type wantResult struct{ List []skep.Want }

func (m *wantResult) walk(c *coder) {
	list(c, &m.List, 4, func(c *coder, w *skep.Want) {
		c.flag(&w.Wanted)
		enum(c, &w.Outcome)
		c.kind(&w.Reason)
	})
}

// Kinds of checksums.
const (
	sumNone  uint8 = 0 // of bytes that did not travel
	sumCRC32 uint8 = 1
	sumXXH3  uint8 = 2
)

// putPart is a part of a block: its bytes follow in the payload, or lie in shared
// memory.
type putPart struct {
	Name   string
	Size   uint64
	Sum    uint8
	Check  uint64 // of the bytes in the payload
	Shared bool
	Offset uint64 // into the attached memory
}

func (m *putPart) walk(c *coder) {
	text(c, &m.Name)
	c.u64(&m.Size)
	c.u8(&m.Sum)
	c.u64(&m.Check)
	c.flag(&m.Shared)
	c.u64(&m.Offset)
}

type putBlock struct {
	Key      skep.Key
	Valid    int
	Replaces *skep.Key
	Name     []byte
	Parts    []putPart
}

func (m *putBlock) walk(c *coder) {
	c.key(&m.Key)
	c.int(&m.Valid)
	c.maybeKey(&m.Replaces)
	c.bytes(&m.Name)
	list(c, &m.Parts, 28, func(c *coder, p *putPart) { p.walk(c) })
}

type putRequest struct {
	skep.Scope
	Parent *skep.Key
	Depth  int
	Ack    skep.Ack
	Blocks []putBlock
}

func (m *putRequest) walk(c *coder) {
	c.scope(&m.Scope)
	c.maybeKey(&m.Parent)
	c.int(&m.Depth)
	enum(c, &m.Ack)
	list(c, &m.Blocks, 49, func(c *coder, b *putBlock) { b.walk(c) })
}

type putResults struct{ List []skep.PutResult }

func (m *putResults) walk(c *coder) { list(c, &m.List, 4, walkPutResult) }

func walkPutResult(c *coder, r *skep.PutResult) {
	enum(c, &r.Outcome)
	c.flag(&r.Differs)
	c.kind(&r.Reason)
}

type beginRequest struct{ skep.BeginRequest }

func (m *beginRequest) walk(c *coder) {
	c.scope(&m.Scope)
	c.maybeKey(&m.Parent)
	c.int(&m.Depth)
	c.key(&m.Key)
	c.bytes(&m.Name)
	c.int(&m.ValidTokens)
	c.maybeKey(&m.Replaces)
	c.duration(&m.Timeout)
	list(c, (*[]skep.PartSpec)(&m.Manifest), 10, func(c *coder, p *skep.PartSpec) {
		text(c, &p.Name)
		c.i64(&p.Size)
	})
}

type writeRequest struct {
	Writer uint64
	Part   string
	Offset int64
	Sum    uint8
	Check  uint64
}

func (m *writeRequest) walk(c *coder) {
	c.u64(&m.Writer)
	text(c, &m.Part)
	c.i64(&m.Offset)
	c.u8(&m.Sum)
	c.u64(&m.Check)
}

type commitRequest struct {
	Writer uint64
	Ack    skep.Ack
}

func (m *commitRequest) walk(c *coder) {
	c.u64(&m.Writer)
	enum(c, &m.Ack)
}

type hintRequest struct {
	skep.Scope
	Hint skep.Hint
	Keys []skep.Key
}

func (m *hintRequest) walk(c *coder) {
	c.scope(&m.Scope)
	c.duration(&m.Hint.Pin)
	c.duration(&m.Hint.NextUse)
	c.int(&m.Hint.Steps)
	c.duration(&m.Hint.TTL)
	text(c, &m.Hint.Program)
	c.flag(&m.Hint.Drop)
	c.keys(&m.Keys)
}

type deleteRequest struct {
	skep.Scope
	Keys []skep.Key
}

func (m *deleteRequest) walk(c *coder) {
	c.scope(&m.Scope)
	c.keys(&m.Keys)
}

type purgeRequest struct{ skep.Purge }

func (m *purgeRequest) walk(c *coder) {
	text(c, &m.Tenant)
	text(c, &m.Model)
	num32(c, &m.Namespace)
	if maybe(c, &m.Salt) {
		c.scope(m.Salt)
	}
}

// document is a body of JSON, or of anything else.
type document struct{ Bytes []byte }

func (m *document) walk(c *coder) { c.bytes(&m.Bytes) }

type adminRequest struct {
	Name string
	JSON []byte
}

func (m *adminRequest) walk(c *coder) {
	text(c, &m.Name)
	c.bytes(&m.JSON)
}
