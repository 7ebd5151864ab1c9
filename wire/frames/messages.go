package frames

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
	// FeatureEach: both know the frame that puts blocks which each begin a chain.
	FeatureEach uint32 = 256
	// FeatureUncounted: both know FlagUncounted and FlagContinued.
	FeatureUncounted uint32 = 512
	// FeatureCluster: the server is a node of a cluster, and its Welcome says of which, and the node's id.
	FeatureCluster uint32 = 1024
	// FeatureRecall: both know FlagRecall.
	FeatureRecall uint32 = 2048

	Features = FeatureXXH3 | FeatureCompute | FeatureEither | FeatureTold | FeatureRuns | FeatureEpoch | FeatureMemory | FeatureNode |
		FeatureEach | FeatureUncounted | FeatureCluster | FeatureRecall
)

// MaxHello is the largest body read before a client has authenticated.
const MaxHello = 8 << 10

type Hello struct {
	Min, Max uint8
	Features uint32
	Client   [16]byte // the same on all connections of one client
	Name     string   // for logs
	Token    string
}

func (m *Hello) Walk(c *Coder) {
	c.u8(&m.Min)
	c.u8(&m.Max)
	c.u32(&m.Features)
	c.fixed(m.Client[:])
	text(c, &m.Name)
	text(c, &m.Token)
}

type Welcome struct {
	Version    uint8
	Features   uint32
	Server     [16]byte // another one each time the server starts
	MaxBody    uint32
	MaxPayload uint32
	MaxKeys    uint32
	MaxCalls   uint32
	MaxWindow  uint64
	Tenant     string
	Rights     uint8
	Name       string
	Node       string // by its name in the cluster's map; with FeatureNode only
	Cluster    string // the seed of its map; with FeatureCluster only, as NodeID
	NodeID     uint64 // in the map
}

func (m *Welcome) Walk(c *Coder) {
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
	if m.Features&FeatureCluster != 0 {
		text(c, &m.Cluster)
		c.u64(&m.NodeID)
	}
}

// ErrorBody is a skep.Error.
type ErrorBody struct {
	Kind                           skep.Kind
	RetryAfter                     time.Duration
	Op, Field, Value, Limit, Cause string
}

func (m *ErrorBody) Walk(c *Coder) {
	c.kind(&m.Kind)
	c.duration(&m.RetryAfter)
	text(c, &m.Op)
	text(c, &m.Field)
	text(c, &m.Value)
	text(c, &m.Limit)
	text(c, &m.Cause)
}

// Number is a body of one number: a call, a lease, a writer, a region.
type Number struct{ N uint64 }

func (m *Number) Walk(c *Coder) { c.u64(&m.N) }

type Goodbye struct {
	After  time.Duration // the sender closes the connection then
	Reason string
}

func (m *Goodbye) Walk(c *Coder) {
	c.duration(&m.After)
	text(c, &m.Reason)
}

type NamespaceSpec struct{ skep.NamespaceSpec }

func (m *NamespaceSpec) Walk(c *Coder) { walkSpec(c, &m.NamespaceSpec) }

func walkSpec(c *Coder, m *skep.NamespaceSpec) {
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

type NamespaceInfo struct{ skep.NamespaceInfo }

func (m *NamespaceInfo) Walk(c *Coder) {
	num32(c, &m.ID)
	c.time(&m.Created)
	walkSpec(c, &m.NamespaceSpec)
}

type NamespaceList struct{ List []NamespaceInfo }

func (m *NamespaceList) Walk(c *Coder) {
	list(c, &m.List, 71, func(c *Coder, n *NamespaceInfo) { n.Walk(c) })
}

// time is nanoseconds since 1970, 0 for the zero time.
func (c *Coder) time(v *time.Time) {
	var n int64
	if !v.IsZero() {
		n = v.UnixNano()
	}
	if u, ok := c.carry64(uint64(n)); ok && u != 0 {
		*v = time.Unix(0, int64(u))
	}
}

type LookupRequest struct{ skep.LookupRequest }

func (m *LookupRequest) Walk(c *Coder) {
	c.scope(&m.Scope)
	c.duration(&m.Lease)
	c.flag(&m.Tiers)
	if maybe(c, &m.Cost) {
		c.cost(m.Cost)
	}
	c.keys(&m.Keys)
}

type Lease struct {
	ID   uint64
	Left time.Duration // from now
}

func (m *Lease) Walk(c *Coder) {
	c.u64(&m.ID)
	c.duration(&m.Left)
}

type LookupResult struct {
	Blocks, Tokens uint64
	Bytes          int64
	Lease          Lease
	Denied, Pays   bool
	Estimate       time.Duration
	Tiers          []byte
}

func (m *LookupResult) Walk(c *Coder) {
	c.u64(&m.Blocks)
	c.u64(&m.Tokens)
	c.i64(&m.Bytes)
	m.Lease.Walk(c)
	c.flag(&m.Denied)
	c.flag(&m.Pays)
	c.duration(&m.Estimate)
	c.bytes(&m.Tiers)
}

type RunsRequest struct{ skep.RunsRequest }

func (m *RunsRequest) Walk(c *Coder) {
	c.scope(&m.Scope)
	c.duration(&m.Lease)
	c.flag(&m.Tiers)
	if maybe(c, &m.Cost) {
		c.cost(m.Cost)
	}
	list(c, &m.Runs, LeastRun, func(c *Coder, keys *[]skep.Key) { c.keys(keys) })
}

// LeastRun is how long a run of one key is.
const LeastRun = 4 + skep.KeySize

func (m *RunsRequest) Keys() (n int) {
	for _, run := range m.Runs {
		n += len(run)
	}
	return n
}

type RunsResult struct {
	Runs   []skep.RunFound
	Lease  Lease
	Denied bool
	Tiers  []byte
}

func (m *RunsResult) Walk(c *Coder) {
	list(c, &m.Runs, RunFoundBytes, func(c *Coder, x *skep.RunFound) {
		c.int(&x.Blocks)
		c.int(&x.Tokens)
		c.i64(&x.Bytes)
		c.duration(&x.Estimate)
		c.flag(&x.Pays)
	})
	m.Lease.Walk(c)
	c.flag(&m.Denied)
	c.bytes(&m.Tiers)
}

const RunFoundBytes = 33

type WantRequest struct{ skep.WantRequest }

func (m *WantRequest) Walk(c *Coder) {
	c.scope(&m.Scope)
	c.i64(&m.Bytes)
	c.keys(&m.Keys)
}

type WantResult struct{ List []skep.Want }

func (m *WantResult) Walk(c *Coder) {
	list(c, &m.List, 4, func(c *Coder, w *skep.Want) {
		c.flag(&w.Wanted)
		enum(c, &w.Outcome)
		c.kind(&w.Reason)
	})
}

// Kinds of checksums.
const (
	sumNone  uint8 = 0 // of bytes that did not travel
	SumCRC32 uint8 = 1
	SumXXH3  uint8 = 2
)

// PutPart is a part of a block: its bytes follow in the payload, or lie in shared
// memory.
type PutPart struct {
	Name   string
	Size   uint64
	Sum    uint8
	Check  uint64 // of the bytes in the payload
	Shared bool
	Offset uint64 // into the attached memory
}

func (m *PutPart) Walk(c *Coder) {
	text(c, &m.Name)
	c.u64(&m.Size)
	c.u8(&m.Sum)
	c.u64(&m.Check)
	c.flag(&m.Shared)
	c.u64(&m.Offset)
}

type PutBlock struct {
	Key      skep.Key
	Valid    int
	Replaces *skep.Key
	Name     []byte
	Parts    []PutPart
}

func (m *PutBlock) Walk(c *Coder) {
	c.key(&m.Key)
	c.int(&m.Valid)
	c.maybeKey(&m.Replaces)
	c.bytes(&m.Name)
	list(c, &m.Parts, 28, func(c *Coder, p *PutPart) { p.Walk(c) })
}

// PutRequest is a Put's body, and a PutEach's.
type PutRequest struct {
	skep.Scope
	Parent *skep.Key
	Depth  int
	Ack    skep.Ack
	Blocks []PutBlock
}

func (m *PutRequest) Walk(c *Coder) {
	c.scope(&m.Scope)
	c.maybeKey(&m.Parent)
	c.int(&m.Depth)
	enum(c, &m.Ack)
	list(c, &m.Blocks, 49, func(c *Coder, b *PutBlock) { b.Walk(c) })
}

type PutResults struct{ List []skep.PutResult }

func (m *PutResults) Walk(c *Coder) { list(c, &m.List, 4, walkPutResult) }

func walkPutResult(c *Coder, r *skep.PutResult) {
	enum(c, &r.Outcome)
	c.flag(&r.Differs)
	c.kind(&r.Reason)
}

type BeginRequest struct{ skep.BeginRequest }

func (m *BeginRequest) Walk(c *Coder) {
	c.scope(&m.Scope)
	c.maybeKey(&m.Parent)
	c.int(&m.Depth)
	c.key(&m.Key)
	c.bytes(&m.Name)
	c.int(&m.ValidTokens)
	c.maybeKey(&m.Replaces)
	c.duration(&m.Timeout)
	list(c, (*[]skep.PartSpec)(&m.Manifest), 10, func(c *Coder, p *skep.PartSpec) {
		text(c, &p.Name)
		c.i64(&p.Size)
	})
}

type WriteRequest struct {
	Writer uint64
	Part   string
	Offset int64
	Sum    uint8
	Check  uint64
}

func (m *WriteRequest) Walk(c *Coder) {
	c.u64(&m.Writer)
	text(c, &m.Part)
	c.i64(&m.Offset)
	c.u8(&m.Sum)
	c.u64(&m.Check)
}

type CommitRequest struct {
	Writer uint64
	Ack    skep.Ack
}

func (m *CommitRequest) Walk(c *Coder) {
	c.u64(&m.Writer)
	enum(c, &m.Ack)
}

type HintRequest struct {
	skep.Scope
	Hint skep.Hint
	Keys []skep.Key
}

func (m *HintRequest) Walk(c *Coder) {
	c.scope(&m.Scope)
	c.duration(&m.Hint.Pin)
	c.duration(&m.Hint.NextUse)
	c.int(&m.Hint.Steps)
	c.duration(&m.Hint.TTL)
	text(c, &m.Hint.Program)
	c.flag(&m.Hint.Drop)
	c.keys(&m.Keys)
}

type DeleteRequest struct {
	skep.Scope
	Keys []skep.Key
}

func (m *DeleteRequest) Walk(c *Coder) {
	c.scope(&m.Scope)
	c.keys(&m.Keys)
}

type PurgeRequest struct{ skep.Purge }

func (m *PurgeRequest) Walk(c *Coder) {
	text(c, &m.Tenant)
	text(c, &m.Model)
	num32(c, &m.Namespace)
	if maybe(c, &m.Salt) {
		c.scope(m.Salt)
	}
}

// Document is a body of JSON, or of anything else.
type Document struct{ Bytes []byte }

func (m *Document) Walk(c *Coder) { c.bytes(&m.Bytes) }

type AdminRequest struct {
	Name string
	JSON []byte
}

func (m *AdminRequest) Walk(c *Coder) {
	text(c, &m.Name)
	c.bytes(&m.JSON)
}

// Shared is how many bytes of the parts lie in shared memory, which take has found to be there.
func (m *PutRequest) Shared() (n int64) {
	for i := range m.Blocks {
		for j := range m.Blocks[i].Parts {
			if p := &m.Blocks[i].Parts[j]; p.Shared {
				n = min(n+int64(p.Size), 1<<50)
			}
		}
	}
	return n
}

// ListRequest asks what a namespace holds: how many blocks, and at most N keys from a place on.
type ListRequest struct {
	Namespace skep.NamespaceID
	From      uint64
	N         uint32
}

func (m *ListRequest) Walk(c *Coder) {
	num32(c, &m.Namespace)
	c.u64(&m.From)
	c.u32(&m.N)
}

type ListResult struct {
	Blocks int64 // that the namespace holds
	Next   uint64
	Keys   []skep.Key
}

func (m *ListResult) Walk(c *Coder) {
	c.i64(&m.Blocks)
	c.u64(&m.Next)
	c.keys(&m.Keys)
}
