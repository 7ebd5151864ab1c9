package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/gpu"
	"github.com/skepkv/skep/gpu/loan"
	"github.com/skepkv/skep/gpu/sim"
	"github.com/skepkv/skep/gpu/slots"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/replication"
	"github.com/skepkv/skep/store"
	"github.com/skepkv/skep/tools/internal/objectstore"
	"github.com/skepkv/skep/wire"
	"github.com/skepkv/skep/wire/auth"
)

// spec is what a store is opened by.
type spec struct {
	Dir           string   `json:"dir"`
	Devices       int      `json:"devices"`
	CapacityBytes int64    `json:"capacity_bytes"`
	ChangeCap     bool     `json:"change_capacity"`
	DRAMBytes     int64    `json:"dram_bytes"`
	Connect       string   `json:"connect"`
	Token         string   `json:"token"`
	TLS           *tlsSpec `json:"tls"` // nil: none
	SharedBytes   int64    `json:"shared_bytes"`
	Lazy          bool     `json:"lazy"`
	Strict        bool     `json:"strict"`
	GPU           *gpuSpec `json:"gpu"`

	Bucket json.RawMessage `json:"bucket"` // object storage behind the drives, as in skep serve's configuration; nil: none
}

type gpuSpec struct {
	Backend     string   `json:"backend"`
	MemoryBytes int64    `json:"memory_bytes"`
	LocalBlocks int      `json:"local_blocks"`
	BlockBytes  int64    `json:"block_bytes"`
	DirectBytes *int64   `json:"direct_bytes"` // nil: eight blocks
	PinnedBytes int64    `json:"pinned_bytes"`
	Layers      int      `json:"layers"`
	Uncopied    int64    `json:"uncopied_bytes"`
	Borrow      []string `json:"borrow"`
}

// opened is a store with what a C program has of it.
type opened struct {
	skep.Store
	remote *replication.Store // of the servers that it connects to; nil: embedded
	client *wire.Client       // its, for memory
	device gpu.Device         // nil: none
	front  *gpu.Store         // with a device: Store itself
	loans  []*loan.Loan

	mu      sync.Mutex
	closing bool // nothing more is kept
	spaces  map[skep.NamespaceID]spaceSpec
	next    uint64 // address or stream to give
	memory  map[uint64]gpu.Memory
	own     gpu.Memory // the store's, which prefills have places in
	ownAt   uint64     // its address
	streams map[uint64]gpu.Stream
	shared  map[uintptr]skep.Memory // by address

	registered map[uintptr]*wire.AttachedMemory // by address; nil: of an embedded store

	land landings

	life   context.Context // ends with close
	end    context.CancelFunc
	behind sync.WaitGroup // who gives memory back when its time has come
}

const op = "libskep"

// keep puts what is of the store into a table, under a number that a C program has. Closed: the store is being closed,
// and its tables were gone through.
func (o *opened) keep(table *sync.Map, x any) (uint64, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closing {
		return 0, &skep.Error{Op: op, Kind: skep.Closed}
	}
	id := last.Add(1)
	table.Store(id, x)
	return id, nil
}

// keepNoMore comes before the tables are gone through.
func (o *opened) keepNoMore() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.closing = true
}

// last is the last number that was given to something a C program has.
var last atomic.Uint64

// patience is how long a call may take that does not say.
const patience = 30 * time.Second

// longest is the most that it may say.
const longest = time.Hour

// span is the time of a call that may take so many milliseconds; 0 or less: it does not say.
func span(ms int64) time.Duration {
	if ms <= 0 {
		return patience
	}
	return time.Duration(min(ms, int64(longest/time.Millisecond))) * time.Millisecond
}

// timeout is its context.
func timeout(ms int64) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), span(ms))
}

func parse(text string, into any) error {
	d := json.NewDecoder(bytes.NewReader([]byte(text)))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		// What it says is not repeated: a token may be in it.
		return &skep.Error{Op: op, Kind: skep.Invalid, Field: "json", Value: fmt.Sprintf("%d bytes", len(text)),
			Limit: "what skep.h says", Err: err}
	}
	return nil
}

func open(ctx context.Context, text string) (*opened, error) {
	var sp spec
	if err := parse(text, &sp); err != nil {
		return nil, err
	}
	if sp.TLS != nil && sp.Connect == "" {
		return nil, skep.Invalidf(op, "tls", "given", "none where there is no connect")
	}
	if sp.Bucket != nil && sp.Connect != "" {
		return nil, skep.Invalidf(op, "bucket", "given", "none where there is a connect: it is a setting of the server")
	}
	if (sp.Dir == "") == (sp.Connect == "") {
		return nil, skep.Invalidf(op, "dir and connect", fmt.Sprintf("%q %q", sp.Dir, sp.Connect), "one of them")
	}
	o := &opened{spaces: map[skep.NamespaceID]spaceSpec{}, next: 1 << 40, memory: map[uint64]gpu.Memory{},
		streams: map[uint64]gpu.Stream{}, shared: map[uintptr]skep.Memory{},
		registered: map[uintptr]*wire.AttachedMemory{}}
	o.life, o.end = context.WithCancel(context.Background())
	var err error
	if sp.Connect != "" {
		err = o.connect(ctx, &sp)
	} else {
		err = o.embed(ctx, &sp)
	}
	if err != nil {
		return nil, err
	}
	if sp.GPU != nil {
		if err := o.putInFront(sp.GPU); err != nil {
			return nil, errors.Join(err, o.close())
		}
	}
	return o, nil
}

// embed opens a store in the process.
func (o *opened) embed(ctx context.Context, sp *spec) error {
	behind, err := objectStorage(sp.Bucket)
	if err != nil {
		return err
	}
	o.Store, err = store.Open(ctx, store.Options{Dir: sp.Dir, DeviceCount: sp.Devices, CapacityBytes: sp.CapacityBytes,
		ChangeCapacity: sp.ChangeCap, CacheBytes: sp.DRAMBytes})
	if err != nil || behind == nil {
		return err
	}
	// A cluster's other nodes write below the prefix, too.
	_, err = os.Stat(filepath.Join(sp.Dir, "cluster"))
	st, err := behind.Open(o.Store, errors.Is(err, fs.ErrNotExist), nil, nil)
	if err != nil {
		return errors.Join(err, o.Store.Close())
	}
	o.Store = st
	return nil
}

// objectStorage reads the settings of what is behind the drives; nil: nothing is.
func objectStorage(text json.RawMessage) (*objectstore.Config, error) {
	if text == nil {
		return nil, nil
	}
	c := objectstore.Default()
	if err := parse(string(text), &c); err != nil {
		return nil, err
	}
	if c.Endpoint == "" {
		return nil, skep.Invalidf(op, "bucket.endpoint", "empty", "the URL of a server that speaks S3")
	}
	return &c, errors.Join(c.Check()...)
}

// connect opens the Store of a server, or of the cluster that it is a node of.
func (o *opened) connect(ctx context.Context, sp *spec) error {
	secure, err := sp.TLS.config()
	if err != nil {
		return err
	}
	s, err := replication.Connect(wire.Options{Addr: sp.Connect, Token: sp.Token, TLS: secure, Name: op,
		SharedMemory: sp.SharedBytes, Strict: sp.Strict})
	if err != nil {
		return err
	}
	if !sp.Lazy {
		if _, _, err := s.Identity(ctx); err != nil {
			return errors.Join(err, s.Close())
		}
	}
	o.Store, o.remote, o.client = s, s, s.Client()
	return nil
}

// putInFront puts GPU memory in front of the store.
func (o *opened) putInFront(g *gpuSpec) error {
	if g.Backend != "sim" {
		return &skep.Error{Op: op, Kind: skep.Unsupported, Field: "gpu backend", Value: g.Backend,
			Limit: "sim: others run in skep-gpu"}
	}
	so := sim.H20()
	so.Devices, so.MemoryBytes = 2, g.MemoryBytes
	w, err := sim.New(so)
	if err != nil {
		return err
	}
	direct := min(g.BlockBytes, skep.MaxPartBytes) * 8
	if g.DirectBytes != nil {
		direct = *g.DirectBytes
	}
	front, err := gpu.New(o.Store, gpu.Options{Device: w.Device(0), Local: g.LocalBlocks, BlockBytes: g.BlockBytes,
		DirectBytes: direct, PinnedBytes: g.PinnedBytes,
		Layers: g.Layers, UncopiedBytes: g.Uncopied, Timeout: 10 * time.Second})
	if err != nil {
		return err
	}
	o.Store, o.front, o.device = front, front, w.Device(0)
	for _, socket := range g.Borrow {
		lender, ok := gpu.Device(w.Device(1)).(gpu.Sharer)
		if !ok {
			return &skep.Error{Op: op, Kind: skep.Unsupported, Field: "borrow", Value: socket,
				Limit: "a system with shared GPU memory"}
		}
		l, err := loan.Borrow(loan.BorrowerOptions{Socket: socket, Name: op, Device: lender, Tier: front})
		if err != nil {
			return err
		}
		o.loans = append(o.loans, l)
	}
	return nil
}

func (o *opened) close() error {
	o.mu.Lock()
	o.end()
	o.mu.Unlock()
	o.behind.Wait()
	var err error
	for _, l := range o.loans {
		err = errors.Join(err, l.Close())
	}
	return errors.Join(err, o.land.close(), o.Store.Close())
}

// inUse is err, of kind NotReleased where any of it is: whatever else went wrong, the caller's memory is not the
// caller's.
func inUse(err error) error {
	if !errors.Is(err, skep.NotReleased) || skep.KindOf(err) == skep.NotReleased {
		return err
	}
	return &skep.Error{Op: op, Kind: skep.NotReleased, Err: err}
}

// spaceSpec is a namespace as a C program opens it.
type spaceSpec struct {
	skep.NamespaceSpec
	Each bool `json:"each"` // each key of a call is a chain of its own

	opened bool // else it was asked for by number, and nobody said how its keys are given
}

// openNamespace opens a namespace. One without a tenant is of the tenant that the credential is of, or of the default
// one. Conflict: this store has it open with the other Each.
func (o *opened) openNamespace(ctx context.Context, sp spaceSpec) (skep.NamespaceInfo, error) {
	if sp.Each && !sp.Chained {
		return skep.NamespaceInfo{}, skep.Invalidf(op, "each", true, "false where chained is false")
	}
	if sp.Tenant == "" {
		sp.Tenant = auth.DefaultTenant
		if o.remote != nil {
			who, _, err := o.remote.Identity(ctx) // the server says who we are when a connection is made
			if err != nil {
				return skep.NamespaceInfo{}, err
			}
			if who != auth.AnyTenant && who != "" {
				sp.Tenant = who
			}
		}
	}
	n, err := o.OpenNamespace(ctx, sp.NamespaceSpec)
	if err != nil {
		return n, err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if was := o.spaces[n.ID]; was.opened && was.Each != sp.Each {
		return n, &skep.Error{Op: op, Kind: skep.Conflict, Field: "each", Value: sp.Each, Limit: was.Each}
	}
	o.spaces[n.ID] = spaceSpec{n.NamespaceSpec, sp.Each, true}
	return n, nil
}

// deleteNamespace deletes one, and forgets what its blocks looked like.
func (o *opened) deleteNamespace(ctx context.Context, id skep.NamespaceID) error {
	o.mu.Lock()
	delete(o.spaces, id)
	o.mu.Unlock()
	return o.DeleteNamespace(ctx, id)
}

// space is what a namespace's blocks look like.
func (o *opened) space(ctx context.Context, id skep.NamespaceID) (spaceSpec, error) {
	o.mu.Lock()
	sp, ok := o.spaces[id]
	o.mu.Unlock()
	if ok {
		return sp, nil
	}
	n, err := o.FindNamespace(ctx, id)
	sp.NamespaceSpec = n.NamespaceSpec
	if err == nil {
		o.mu.Lock()
		o.spaces[id] = sp
		o.mu.Unlock()
	}
	return sp, err
}

// geometry is the byte arithmetic of a namespace's blocks.
func (o *opened) geometry(ctx context.Context, id skep.NamespaceID) (layout.Geometry, error) {
	sp, err := o.space(ctx, id)
	if err != nil {
		return layout.Geometry{}, err
	}
	return layout.Of(sp.Shape)
}

// target is an engine's paged cache.
type target struct {
	slots.Pages
	slots []int64
	first int         // the block that slots begins with
	only  skep.Subset // of layers; the planes of others are not there
	// write puts runs of a block into the plane of a layer's K or V.
	write func(layer int, v bool, block []byte, runs []slots.Run) error
	// direct gives the runs of a block that goes to memory of the Store's own device; nil: write.
	direct func(dst []gpu.Run, layer int, v bool, runs []slots.Run) []gpu.Run
	on     gpu.Stream // for direct
	// take gives pinned memory for so many bytes, which write is given blocks of. nil: blocks lie where the Store has
	// them.
	take func(ctx context.Context, n int64) (*room, error)
}

// room is memory that blocks of a restore land in, on their way to where they are wanted.
type room struct {
	bytes  []byte       // nil: the Store lends its own, chunk by chunk
	queued func() error // says that a stream has been told of all copies from it
	// back gives it back, once a stream is past the copies. REQUIRES: queued, and nothing writes to it any more.
	back func()
	lose func() // in place of back, where nobody will say that nothing writes to it any more
	hung func() // some time before back, where something writes to it for long
}

// leave gives room back after a restore that ended with err: once its session is closed, where something may write yet.
func (o *opened) leave(r *room, ended skep.Session, err error) {
	if ended == nil && errors.Is(err, skep.NotReleased) {
		r.lose()
		return
	}
	o.giveBack(r.back, r.hung, ended, err)
}

// restore writes blocks [from, to) of a chain to t and says how many, in order, arrived.
func (o *opened) restore(ctx context.Context, sc skep.Scope, keys []skep.Key, blocks skep.Range, g layout.Geometry,
	t *target) (arrived int, err error) {
	if err := t.Validate(g); err != nil {
		return 0, err
	}
	t.first = blocks.From
	chain := skep.Chain{Scope: sc, Keys: keys, Layers: t.only}
	if t.direct != nil {
		return o.front.RestoreTo(ctx, &gpu.Direct{Scope: sc, Keys: keys, Blocks: blocks.Subset(), On: t.on,
			Runs: func(dst []gpu.Run, block int) ([]gpu.Run, error) {
				err := t.each(g, block-blocks.From, func(l int, v bool, runs []slots.Run) error {
					dst = t.direct(dst, l, v, runs)
					return nil
				})
				return dst, err
			}})
	}
	if t.take == nil {
		n, err := o.restoreChain(ctx, o, chain, blocks, g, t)
		return n, notOurs(ctx, err)
	}
	// As many blocks at a time as land in one piece of pinned memory.
	step := (g.PartBytes() + 4095) &^ 4095
	some := int(max(1, landingBytes/step))
	for from := blocks.From; from < blocks.To; from += some {
		part := skep.Range{From: from, To: min(from+some, blocks.To)}
		mem, err := t.take(ctx, int64(min(some, blocks.Len()))*step)
		if err != nil {
			return arrived, err
		}
		chain.Dest = skep.Destination{Memory: mem.bytes[:int64(part.Len())*step], Stride: step}
		k := &kept{Restorer: o}
		n, err := o.restoreChain(ctx, k, chain, part, g, t)
		arrived += n
		queued := mem.queued()
		o.leave(mem, k.session, err)
		if err = errors.Join(queued, notOurs(ctx, err)); err != nil || n < part.Len() {
			return arrived, err
		}
	}
	return arrived, nil
}

// restoreChain restores blocks of one chain to t.
func (o *opened) restoreChain(
	ctx context.Context, st skep.Restorer, chain skep.Chain, blocks skep.Range, g layout.Geometry, t *target,
) (int, error) {
	chain.Blocks = blocks.Subset()
	d := chain.Dest
	arrived := make([]bool, blocks.Len())
	err := skep.Load(ctx, st, &skep.RestoreRequest{Chains: []skep.Chain{chain}}, func(c *skep.Chunk) error {
		if c.Err != nil {
			return nil
		}
		block := []byte(nil)
		if d.Memory != nil {
			block = d.Memory[int64(c.Block-blocks.From)*d.Stride+t.span(g).Off:][:c.Bytes]
		} else {
			block = whole(c.Data)
		}
		err := t.scatter(g, c.Block-t.first, block)
		arrived[c.Block-blocks.From] = err == nil
		return err
	})
	n := 0
	for n < len(arrived) && arrived[n] {
		n++
	}
	return n, err
}

func whole(pieces [][]byte) []byte {
	if len(pieces) == 1 {
		return pieces[0]
	}
	return bytes.Join(pieces, nil)
}

// span is the bytes of a block that its layers have.
func (t *target) span(g layout.Geometry) layout.Span {
	layers, _ := t.only.In(g.Layers())
	return layout.Span{Off: int64(layers.From) * g.LayerBytes(), Len: int64(layers.Len()) * g.LayerBytes()}
}

// scatter writes the layers of the i-th block of those restored.
func (t *target) scatter(g layout.Geometry, i int, block []byte) error {
	span := t.span(g)
	if int64(len(block)) != span.Len {
		return &skep.Error{Op: op, Kind: skep.Damaged, Field: "block in bytes", Value: len(block), Limit: span.Len}
	}
	return t.each(g, i, func(l int, v bool, runs []slots.Run) error {
		for j := range runs {
			runs[j].From -= span.Off
		}
		return t.write(l, v, block, runs)
	})
}

// each gives the runs of each layer's K and V of the i-th block.
func (t *target) each(g layout.Geometry, i int, do func(layer int, v bool, runs []slots.Run) error) error {
	s := g.Shape()
	mine := t.slots[i*s.BlockTokens : (i+1)*s.BlockTokens]
	var runs []slots.Run
	layers, _ := t.only.In(s.Layers)
	for l := layers.From; l < layers.To; l++ {
		for _, v := range []bool{false, true} {
			if v && s.Kind != skep.Attention {
				continue
			}
			var err error
			if runs, err = t.Runs(runs[:0], g, l, v, mine); err != nil {
				return err
			}
			if err := do(l, v, runs); err != nil {
				return err
			}
		}
	}
	return nil
}
