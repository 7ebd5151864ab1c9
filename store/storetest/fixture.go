package storetest

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
)

// patience is how long a test waits for what must happen at some time. It is long, and
// passing it is a failure of the kind "it hung".
const patience = time.Minute

// env is a Store under test.
type env struct {
	*testing.T
	st  skep.Store
	ctx context.Context
}

// start opens a Store for one group of tests.
func start(t *testing.T, open Open, c Config) *env {
	t.Helper()
	st := open(t, c)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(func() {
		cancel()
		require.NoError(t, st.Close(), "closing the store")
	})
	return &env{T: t, st: st, ctx: ctx}
}

// run is a subtest on the same Store. Tests that share one use namespaces of their own.
func (e *env) run(name string, f func(e *env)) {
	e.T.Run(name, func(t *testing.T) { f(&env{T: t, st: e.st, ctx: e.ctx}) })
}

var serial atomic.Uint64

// A few shapes: every kind, both orders, block sizes that are a multiple of 4 KiB and
// that are not, elements of a whole, half and several bytes.
var (
	hnd     = skep.Shape{Kind: skep.Attention, Layers: 3, KVHeads: 2, HeadDim: 8, Element: skep.BF16, BlockTokens: 4}
	nhd     = skep.Shape{Kind: skep.Attention, Layers: 3, KVHeads: 2, HeadDim: 8, Element: skep.BF16, BlockTokens: 4, Order: skep.NHD}
	pages4K = skep.Shape{Kind: skep.Attention, Layers: 2, KVHeads: 4, HeadDim: 64, Element: skep.F16, BlockTokens: 8}
	odd     = skep.Shape{Kind: skep.Attention, Layers: 2, KVHeads: 3, HeadDim: 6, Element: skep.FP4, BlockTokens: 5}
	latent  = skep.Shape{Kind: skep.Latent, Layers: 3, HeadDim: 24, Element: skep.F32, BlockTokens: 4}
	fixed   = skep.Shape{Kind: skep.Opaque, BlockTokens: 4, Bytes: 5000}
	free    = skep.Shape{Kind: skep.Opaque, BlockTokens: 1}
)

var shapes = []struct {
	name  string
	shape skep.Shape
}{
	{"attention hnd", hnd}, {"attention nhd", nhd}, {"attention of 4 KiB pages", pages4K}, {"attention fp4", odd},
	{"latent", latent}, {"opaque of one size", fixed}, {"opaque of any size", free},
}

func specOf(shape skep.Shape) skep.NamespaceSpec {
	n := serial.Add(1)
	return skep.NamespaceSpec{
		Tenant: fmt.Sprintf("tenant %d", n), Name: "n", Model: fmt.Sprintf("model %d", n),
		Shape: shape, Copies: 1, Chained: true,
	}
}

// space opens a new namespace of a tenant and model of its own.
func (e *env) space(shape skep.Shape) skep.NamespaceInfo {
	e.Helper()
	return e.open(specOf(shape))
}

func (e *env) open(spec skep.NamespaceSpec) skep.NamespaceInfo {
	e.Helper()
	n, err := e.st.OpenNamespace(e.ctx, spec)
	require.NoError(e, err)
	return n
}

// chain is a prompt's keys in a scope, stored or not.
type chain struct {
	e     *env
	n     skep.NamespaceInfo
	scope skep.Scope
	keys  []skep.Key
	free  int // size of blocks where the shape does not say
}

// chain makes n keys that nobody else has.
func (e *env) chain(ns skep.NamespaceInfo, n int) *chain {
	c := &chain{e: e, n: ns, scope: skep.Scope{Namespace: ns.ID}, free: 100}
	root := uint32(serial.Add(1))
	var parent *skep.Key
	for i := range n {
		k := skep.ChainKey(parent, []uint32{root, uint32(i)})
		c.keys = append(c.keys, k)
		parent = &k
	}
	return c
}

// salted is the same keys under a salt.
func (c *chain) salted(s skep.Salt) *chain {
	x := *c
	x.scope.Salt = s
	return &x
}

// in is the same keys in another namespace.
func (c *chain) in(n skep.NamespaceInfo) *chain {
	x := *c
	x.n, x.scope.Namespace = n, n.ID
	return &x
}

// seed names the content of block i: scopes differ, so that bytes that crossed from
// one to another are seen.
func (c *chain) seed(i int) skep.Key {
	b := binary.LittleEndian.AppendUint32(c.keys[i][:len(c.keys[i]):len(c.keys[i])], uint32(c.scope.Namespace))
	return skep.KeyOf(append(b, c.scope.Salt...))
}

func (c *chain) size() int { return sizeOf(c.n.Shape, c.free) }

func (c *chain) payload(i int) []byte { return Payload(c.seed(i), skep.PartKV, c.size()) }

// request puts blocks [from, to).
func (c *chain) request(from, to int) *skep.PutRequest {
	r := &skep.PutRequest{Scope: c.scope}
	if c.n.Chained && from > 0 {
		r.Parent, r.Depth = &c.keys[from-1], from
	}
	for i := from; i < to; i++ {
		r.Blocks = append(r.Blocks, skep.Block{Key: c.keys[i], Parts: []skep.Part{{Bytes: c.payload(i)}}})
	}
	return r
}

func (c *chain) put(from, to int) *chain {
	c.e.Helper()
	c.e.put(c.request(from, to))
	return c
}

// put puts and requires that every block was stored.
func (e *env) put(r *skep.PutRequest) {
	e.Helper()
	res, err := e.st.Put(e.ctx, r)
	require.NoError(e, err)
	require.Len(e, res, len(r.Blocks))
	for i, x := range res {
		require.Truef(e, isStored(x), "block %d: %v, %v", i, x.Outcome, x.Reason)
	}
}

func isStored(r skep.PutResult) bool {
	return r.Outcome == skep.Committed || r.Outcome == skep.Accepted
}

// lookup looks the whole chain up without a lease.
func (c *chain) lookup() skep.LookupResult {
	c.e.Helper()
	return c.e.lookup(&skep.LookupRequest{Scope: c.scope, Keys: c.keys, Lease: skep.NoLease})
}

// found is how many leading blocks a lookup finds.
func (c *chain) found() int {
	c.e.Helper()
	return c.lookup().Blocks
}

func (c *chain) lease(d time.Duration) skep.Lease {
	c.e.Helper()
	r := c.e.lookup(&skep.LookupRequest{Scope: c.scope, Keys: c.keys, Lease: d})
	require.NotZero(c.e, r.Lease.ID, "a lookup that finds blocks leases them")
	return r.Lease
}

func (e *env) lookup(r *skep.LookupRequest) skep.LookupResult {
	e.Helper()
	res, err := e.st.Lookup(e.ctx, r)
	require.NoError(e, err)
	return res
}

// piece is a chunk whose lent bytes were copied and given back.
type piece struct {
	skep.Chunk
	bytes []byte
}

// place is what a chunk is of; no two chunks of a session are of the same.
type place struct {
	chain, block int
	layers       skep.Range
}

// drain reads a session until io.EOF.
func (e *env) drain(s skep.Session) map[place]piece {
	e.Helper()
	out := map[place]piece{}
	into := make([]skep.Chunk, 3)
	for {
		n, err := s.Next(e.ctx, into)
		if errors.Is(err, io.EOF) {
			require.Zero(e, n, "chunks with io.EOF")
			return out
		}
		require.NoError(e, err)
		require.Positive(e, n, "Next fills in at least one chunk")
		for i := range into[:n] {
			e.keep(out, &into[i])
		}
	}
}

// keep files a chunk and gives it back.
func (e *env) keep(out map[place]piece, ch *skep.Chunk) {
	e.Helper()
	p := piece{Chunk: *ch}
	for _, b := range ch.Data {
		p.bytes = append(p.bytes, b...)
	}
	ch.Release()
	at := place{ch.Chain, ch.Block, ch.Layers}
	require.NotContains(e, out, at, "a piece is delivered once")
	out[at] = p
}

// restore runs a session of chains to its end.
func (e *env) restore(chains ...skep.Chain) map[place]piece {
	e.Helper()
	s, err := e.st.Restore(e.ctx, &skep.RestoreRequest{Chains: chains})
	require.NoError(e, err)
	defer func() { require.NoError(e, s.Close(e.ctx)) }()
	return e.drain(s)
}

// check restores blocks [from, to) into lent memory and requires their bytes.
func (c *chain) check(from, to int) {
	c.e.Helper()
	if from == to {
		return
	}
	got := c.e.restore(skep.Chain{Scope: c.scope, Keys: c.keys, Blocks: skep.Only(from, to)})
	require.Len(c.e, got, to-from)
	for at, p := range got {
		require.NoErrorf(c.e, p.Err, "block %d", at.block)
		require.Equalf(c.e, c.payload(at.block), bytesOf(p), "bytes of block %d", at.block)
	}
}

// bytesOf is a piece's lent bytes, never nil.
func bytesOf(p piece) []byte {
	if p.bytes == nil {
		return []byte{}
	}
	return p.bytes
}

// miss requires that restoring block i gives no bytes, for want of the block.
func (c *chain) miss(i int) {
	c.e.Helper()
	for _, p := range c.e.restore(skep.Chain{Scope: c.scope, Keys: c.keys, Blocks: skep.Only(i, i+1)}) {
		require.Error(c.e, p.Err)
		require.Empty(c.e, p.bytes)
		requireGone(c.e, p.Err)
	}
}

// requireGone requires the miss reasons of a block that is not there.
func requireGone(t testing.TB, err error) {
	t.Helper()
	require.Truef(t, errors.Is(err, skep.NotFound) || errors.Is(err, skep.Evicted), "miss reason %v", err)
}

func requireKind(t testing.TB, kind skep.Kind, err error, msg ...any) {
	t.Helper()
	require.ErrorIs(t, err, kind, msg...)
}

func (e *env) stats() skep.Stats {
	e.Helper()
	s, err := e.st.Stats(e.ctx)
	require.NoError(e, err)
	return s
}

// poison is memory filled with a pattern, to see what is written.
func poison(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = poisonByte
	}
	return b
}

const poisonByte = 0xA5
