package ttft

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout/twopointer"
	"github.com/skepkv/skep/store"
	"github.com/skepkv/skep/store/device"
	"github.com/skepkv/skep/tools/internal/payload"
)

// bed is a store with a workload's prefixes in it, on file devices that are slowed down in
// process (device.Throttled: simulated, and says so).
type bed struct {
	dir     string
	model   twopointer.Model
	factor  float64
	shape   skep.Shape
	block   int64 // bytes
	devices int
	bytes   int64 // stored
	log     *slog.Logger
}

// storeBlock is the tokens of a stored block; traces name larger ones.
const storeBlock = 64

// shapeFor is the model's shape with its KV divided by about factor: fewer heads and a
// smaller head dimension, all layers. It says by how much exactly.
func shapeFor(m twopointer.Model, factor float64) (skep.Shape, float64, error) {
	elements := max(int(float64(m.KV*m.HeadDim)/factor), 1)
	s := skep.Shape{Kind: skep.Attention, Layers: m.Layers, KVHeads: 1, HeadDim: elements, Element: skep.BF16, BlockTokens: storeBlock}
	return s, float64(m.KV*m.HeadDim) / float64(elements), s.Validate()
}

// newBed stores every prefix of the workloads, each block once, filled with bytes made of its key.
func newBed(ctx context.Context, dir string, m twopointer.Model, factor float64, log *slog.Logger, loads ...*Workload) (_ *bed, err error) {
	shape, factor, err := shapeFor(m, factor)
	if err != nil {
		return nil, err
	}
	size := int64(shape.Layers) * 2 * int64(shape.HeadDim) * 2 * storeBlock
	b := &bed{dir: dir, model: m, factor: factor, shape: shape, block: size, devices: 2, log: log}
	blocks := map[skep.Key]struct{}{}
	for _, w := range loads {
		for i := range w.Requests {
			for _, k := range w.Requests[i].keys() {
				blocks[k] = struct{}{}
			}
		}
	}
	b.bytes = int64(len(blocks)) * size
	st, scope, err := b.open(ctx, 0, twopointer.Skep, twopointer.RoundRobin)
	if err != nil {
		return nil, err
	}
	defer func() {
		if cerr := st.Close(); err == nil {
			err = cerr
		}
	}()
	for _, w := range loads {
		for i := range w.Requests {
			if err := b.put(ctx, st, scope, w.Requests[i].keys(), blocks); err != nil {
				return nil, err
			}
		}
	}
	return b, st.Flush(ctx)
}

// put stores what of a chain is still in todo.
func (b *bed) put(ctx context.Context, st skep.Store, scope skep.Scope, keys []skep.Key, todo map[skep.Key]struct{}) error {
	for from := 0; from < len(keys); {
		if _, ok := todo[keys[from]]; !ok {
			from++
			continue
		}
		r := &skep.PutRequest{Scope: scope, Depth: from}
		if from > 0 {
			r.Parent = &keys[from-1]
		}
		for ; from < len(keys) && len(r.Blocks) < 256; from++ {
			if _, ok := todo[keys[from]]; !ok {
				break
			}
			delete(todo, keys[from])
			bytes := make([]byte, b.block)
			payload.Fill(bytes, keys[from])
			r.Blocks = append(r.Blocks, skep.Block{Key: keys[from], Parts: []skep.Part{{Bytes: bytes}}})
		}
		results, err := st.Put(ctx, r)
		if err != nil {
			return err
		}
		for _, res := range results {
			if res.Outcome != skep.Committed && res.Outcome != skep.Exists {
				return fmt.Errorf("a block was not stored: %v, %v", res.Outcome, res.Reason)
			}
		}
	}
	return nil
}

// keys are the store's keys of a prompt's prefix, one for each storeBlock tokens.
func (p *Prompt) keys() []skep.Key {
	n := p.Prefix / storeBlock
	keys := make([]skep.Key, n)
	for i := range keys {
		token := i * storeBlock
		id := p.Chain[token/p.BlockTokens]
		keys[i] = skep.KeyOf(fmt.Appendf(nil, "ttft %d %d", id, token%p.BlockTokens))
	}
	return keys
}

// open opens the store with devices of so many bytes a second together; 0: not slowed down.
func (b *bed) open(ctx context.Context, bps int64, policy twopointer.Policy, kind twopointer.Engine) (*store.Store, skep.Scope, error) {
	if err := os.MkdirAll(b.dir, 0o755); err != nil {
		return nil, skep.Scope{}, err
	}
	o := store.Options{Dir: b.dir, DeviceCount: b.devices, BlockBytes: b.block, CacheBytes: -1, IOBytes: 512 << 20,
		CapacityBytes: b.bytes*3/2 + 512<<20, LeasedBytes: 1 << 50, RestorePolicy: policy.String(), FirstCome: kind == twopointer.FirstCome, Logger: b.log}
	model := device.Model{}
	if bps > 0 {
		model = device.Model{ReadBandwidth: max(bps/int64(b.devices), 1), Latency: 100 * time.Microsecond}
	}
	o.OpenDevice = func(i int, _ string, create bool, size int64) (device.Device, error) {
		path := filepath.Join(b.dir, fmt.Sprintf("device-%d", i))
		var d device.Device
		var err error
		if create {
			d, err = device.Create(path, size, device.Options{})
		} else {
			d, err = device.Open(path, device.Options{})
		}
		if err != nil {
			return nil, err
		}
		return device.NewThrottled(d, model)
	}
	st, err := store.Open(ctx, o)
	if err != nil {
		return nil, skep.Scope{}, err
	}
	ns, err := st.OpenNamespace(ctx, skep.NamespaceSpec{Tenant: "bench", Name: "ttft", Model: "payload-1", Shape: b.shape, Chained: true})
	if err != nil {
		return nil, skep.Scope{}, errors.Join(err, st.Close())
	}
	return st, skep.Scope{Namespace: ns.ID}, nil
}

// warm restores a little, so that the store knows the speed of its devices.
func (b *bed) warm(ctx context.Context, st skep.Store, scope skep.Scope, w *Workload) error {
	longest := &w.Requests[0]
	for i := range w.Requests {
		if w.Requests[i].Prefix > longest.Prefix {
			longest = &w.Requests[i]
		}
	}
	keys := longest.keys()
	keys = keys[:min(len(keys), int((8<<20)/b.block)+1)]
	r := &skep.RestoreRequest{Chains: []skep.Chain{{Scope: scope, Keys: keys}}}
	return skep.Load(ctx, st, r, func(c *skep.Chunk) error { return c.Err })
}
