package enginesbench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store"
	"github.com/skepkv/skep/store/device"
	"github.com/skepkv/skep/tools/internal/bench"
)

// embedded is a Store in this process, of one file like the server's.
func (e *runner) embedded(ctx context.Context, total int64) (*way, error) {
	st, err := store.Open(ctx, store.Options{Dir: filepath.Join(e.dir, "embedded"), DeviceCount: 1,
		CacheBytes: 2 * total, Device: device.Options{Backend: e.Backend}, Logger: e.Log})
	if err != nil {
		return nil, err
	}
	e.ends = append(e.ends, st.Close)
	ns, err := st.OpenNamespace(ctx,
		skep.NamespaceSpec{Tenant: "default", Name: "skepkv/bench", Shape: skep.Shape{BlockTokens: 1}})
	if err != nil {
		return nil, err
	}
	stats, err := st.Stats(ctx)
	if err != nil {
		return nil, err
	}
	e.res.About = bench.AboutStats(stats)
	chained, err := st.OpenNamespace(ctx, skep.NamespaceSpec{Tenant: "default", Name: "skepkv/bench/accepted",
		Chained: true, Shape: skep.Shape{BlockTokens: 1}})
	if err != nil {
		return nil, err
	}
	b := e.inGo(st, ns, chained)
	return &way{name: "embedded", round: b.round}, nil
}

func (e *runner) inGo(st skep.Store, ns, chained skep.NamespaceInfo) *goWay {
	total := int64(e.Blocks) * e.BlockBytes
	b := &goWay{runner: e, st: st, scope: skep.Scope{Namespace: ns.ID}, chained: skep.Scope{Namespace: chained.ID}}
	b.values, b.memory = make([]byte, total), make([]byte, total)
	r := rand.NewChaCha8([32]byte{1})
	_, _ = r.Read(b.values)
	return b
}

// goWay is a Store that this process asks by itself.
type goWay struct {
	*runner
	st             skep.Store
	alone          bool // each key is a chain of its own
	scope, chained skep.Scope
	values, memory []byte
	keys, later    []skep.Key // of the blocks in memory; of those that more put
	n              int        // rounds
}

func (b *goWay) round(ctx context.Context) (out round, err error) {
	b.begin()
	if out.Put, err = bench.Timed(func() (int64, int64, error) { return b.each(ctx, b.put) }); err != nil {
		return out, err
	}
	if out.ColdInMemory, err = b.inMemory(ctx); err != nil {
		return out, err
	}
	clear(b.memory)
	b.rest(ctx)
	if out.Cold, err = bench.Timed(func() (int64, int64, error) { return b.each(ctx, b.get) }); err != nil {
		return out, err
	}
	if !bytes.Equal(b.memory, b.values) {
		out.Wrong++
	}
	// What goes through the store's memory is kept there; what drives read into b.memory would not be. Of copies either
	// may be read.
	for n := 0; n < 16 && (n < 2 || out.InMemory < b.Blocks); n++ {
		if _, _, err = b.each(ctx, b.warm); err != nil {
			return out, err
		}
		if out.InMemory, err = b.inMemory(ctx); err != nil {
			return out, err
		}
	}
	clear(b.memory)
	if out.Get, err = bench.Timed(func() (int64, int64, error) { return b.each(ctx, b.get) }); err != nil {
		return out, err
	}
	if !bytes.Equal(b.memory, b.values) {
		out.Wrong++
	}
	if _, err = b.st.Delete(ctx, b.scope, b.keys); err != nil {
		return out, err
	}
	if out.Accepted, err = bench.Timed(func() (int64, int64, error) { return b.each(ctx, b.accept) }); err != nil {
		return out, err
	}
	if err := b.st.Flush(ctx); err != nil {
		return out, err
	}
	_, err = b.st.Delete(ctx, b.chained, b.keys)
	return out, err
}

// inMemory is how many blocks a lookup finds in a DRAM tier.
func (b *goWay) inMemory(ctx context.Context) (n int, err error) {
	for i := range b.keys { // key by key: they are no chain
		r := &skep.LookupRequest{Scope: b.scope, Keys: b.keys[i : i+1], Lease: skep.NoLease, Tiers: true}
		f, err := b.st.Lookup(ctx, r)
		if err != nil {
			return 0, err
		}
		if f.Blocks == 1 && f.Tiers[0] == skep.TierDRAM {
			n++
		}
	}
	return n, nil
}

// begin draws keys, and has the memory have their blocks.
func (b *goWay) begin() {
	b.n++
	b.keys = nil
	for i := range b.Blocks {
		b.keys = append(b.keys, skep.KeyOf(fmt.Appendf(nil, "round %d block %d", b.n, i)))
	}
	copy(b.memory, b.values)
}

// each does all blocks, batch by batch.
func (b *goWay) each(
	ctx context.Context, do func(context.Context, []skep.Key, []byte) error,
) (int64, int64, error) {
	for from := 0; from < b.Blocks; from += b.Batch {
		to := min(from+b.Batch, b.Blocks)
		memory := b.memory[int64(from)*b.BlockBytes : int64(to)*b.BlockBytes]
		if err := do(ctx, b.keys[from:to], memory); err != nil {
			return 0, 0, err
		}
	}
	return int64(len(b.memory)), int64(b.Blocks), nil
}

func (b *goWay) put(ctx context.Context, keys []skep.Key, memory []byte) error {
	return b.store(ctx, &skep.PutRequest{Scope: b.scope, Each: b.alone}, keys, memory)
}

func (b *goWay) accept(ctx context.Context, keys []skep.Key, memory []byte) error {
	r := &skep.PutRequest{Scope: b.chained, Each: b.alone, Ack: skep.AckAccepted}
	if at := slices.Index(b.keys, keys[0]); at > 0 && !b.alone {
		r.Depth, r.Parent = at, &b.keys[at-1]
	}
	return b.store(ctx, r, keys, memory)
}

func (b *goWay) store(ctx context.Context, r *skep.PutRequest, keys []skep.Key, memory []byte) error {
	bad, err := b.stored(ctx, r, keys, memory)
	return errors.Join(append(bad, err)...)
}

// stored puts blocks, and says of each why it was declined.
func (b *goWay) stored(ctx context.Context, r *skep.PutRequest, keys []skep.Key, memory []byte) ([]error, error) {
	for i, k := range keys {
		part := memory[int64(i)*b.BlockBytes : int64(i+1)*b.BlockBytes]
		r.Blocks = append(r.Blocks, skep.Block{Key: k, Parts: []skep.Part{{Bytes: part}}})
	}
	bad := make([]error, len(keys))
	said, err := b.st.Put(ctx, r)
	for i := range said {
		if said[i].Outcome == skep.Declined {
			bad[i] = said[i].Reason
		}
	}
	return bad, err
}

// chains are those of keys, with memory for their blocks; nil: they go through the store's own.
func (b *goWay) chains(keys []skep.Key, memory []byte) *skep.RestoreRequest {
	n := len(keys)
	if b.alone {
		n = 1
	}
	r := &skep.RestoreRequest{}
	for from := 0; from < len(keys); from += n {
		c := skep.Chain{Scope: b.scope, Keys: keys[from : from+n]}
		if memory != nil {
			at := int64(from) * b.BlockBytes
			c.Dest = skep.Destination{Memory: memory[at : at+int64(n)*b.BlockBytes], Stride: b.BlockBytes}
		}
		r.Chains = append(r.Chains, c)
	}
	return r
}

func (b *goWay) get(ctx context.Context, keys []skep.Key, memory []byte) error {
	return skep.Load(ctx, b.st, b.chains(keys, memory), func(c *skep.Chunk) error { return c.Err })
}

func (b *goWay) warm(ctx context.Context, keys []skep.Key, _ []byte) error {
	return b.get(ctx, keys, nil)
}
