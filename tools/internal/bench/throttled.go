package bench

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store"
	"github.com/skepkv/skep/store/device"
)

// modelOptions are of benchmarks on drives with the speed of a model, so that what is
// measured is the store's doing and not the machine's.
type modelOptions struct {
	Common
	Devices    int
	DeviceMBps int64 // of reads and of writes together: one server a drive
	Bytes      int64 // payload stored
	BlockBytes int64
	ChainLen   int // blocks of a chain
}

func (o *modelOptions) validate() error {
	if err := o.Common.Validate(); err != nil {
		return err
	}
	for _, f := range []struct {
		flag     string
		v, least int64
	}{{"--drives", int64(o.Devices), 2}, {"--device-mbps", o.DeviceMBps, 1}, {"--size", o.Bytes, 1 << 20}, {"--block-size", o.BlockBytes, 4 << 10}, {"--chain-blocks", int64(o.ChainLen), 1}} {
		if f.v < f.least {
			return skep.Invalidf("bench", f.flag, f.v, fmt.Sprintf("at least %d", f.least))
		}
	}
	return nil
}

// modelRig is a store on drives in memory behind a model and a switchboard of faults.
type modelRig struct {
	s      *store.Store
	faults []*device.Fault
	scope  skep.Scope
	chains [][]skep.Key
	o      modelOptions
}

func (o modelOptions) open(ctx context.Context, dir string, copies int, change func(*store.Options)) (*modelRig, error) {
	r := &modelRig{o: o}
	bps := o.DeviceMBps * 1e6
	so := store.Options{Dir: dir, DeviceCount: o.Devices, BlockBytes: o.BlockBytes, CapacityBytes: 4*o.Bytes*int64(copies) + 256<<20, CacheBytes: -1,
		IOBytes: 512 << 20, Logger: o.Log}
	so.OpenDevice = func(_ int, _ string, _ bool, size int64) (device.Device, error) {
		f := device.NewFault(device.NewMemory(size), 1)
		r.faults = append(r.faults, f)
		return device.NewThrottled(f, device.Model{ReadBandwidth: bps, WriteBandwidth: bps, Latency: 100 * time.Microsecond})
	}
	if change != nil {
		change(&so)
	}
	s, err := store.Open(ctx, so)
	if err != nil {
		return nil, err
	}
	r.s = s
	ns, err := s.OpenNamespace(ctx, skep.NamespaceSpec{Tenant: "bench", Name: "n", Shape: skep.Shape{Kind: skep.Opaque, BlockTokens: 1, Bytes: o.BlockBytes},
		Class: skep.Durable, Copies: copies, Chained: true})
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	r.scope = skep.Scope{Namespace: ns.ID}
	return r, nil
}

// fill stores chains of random bytes, and makes them known in r.chains.
func (r *modelRig) fill(ctx context.Context) error {
	n := int(r.o.Bytes / r.o.BlockBytes / int64(r.o.ChainLen))
	data := make([]byte, r.o.BlockBytes)
	rng := rand.NewChaCha8([32]byte{7})
	for c := range max(1, n) {
		keys := make([]skep.Key, r.o.ChainLen)
		req := &skep.PutRequest{Scope: r.scope}
		for i := range keys {
			keys[i] = skep.KeyOf(binary.LittleEndian.AppendUint64(nil, uint64(c)<<20|uint64(i)))
			rng.Read(data[:4096])
			req.Blocks = append(req.Blocks, skep.Block{Key: keys[i], Parts: []skep.Part{{Bytes: append([]byte(nil), data...)}}})
		}
		res, err := r.s.Put(ctx, req)
		if err != nil {
			return err
		}
		for _, x := range res {
			if x.Outcome != skep.Committed {
				return fmt.Errorf("bench: a block was %v: %w", x.Outcome, x.Reason)
			}
		}
		r.chains = append(r.chains, keys)
	}
	return nil
}

// restored is one restore of the open loop.
type restored struct {
	took   time.Duration // from when it was due
	bytes  int64
	misses int
}

// openLoop restores random chains at a steady mean rate of bytes a second, due at random
// times whether or not the earlier ones have ended, for a while.
func (r *modelRig) openLoop(ctx context.Context, bps float64, length time.Duration, seed uint64) ([]restored, error) {
	rng := rand.New(rand.NewPCG(seed, 1))
	each := float64(r.o.ChainLen) * float64(r.o.BlockBytes)
	var mu sync.Mutex
	var out []restored
	var first error
	var wg sync.WaitGroup
	began := time.Now()
	for at := time.Duration(0); at < length && ctx.Err() == nil; at += time.Duration(rng.ExpFloat64() * each / bps * 1e9) {
		time.Sleep(time.Until(began.Add(at)))
		keys := r.chains[rng.IntN(len(r.chains))]
		due := began.Add(at)
		wg.Go(func() {
			x, err := r.restore(ctx, keys)
			x.took = time.Since(due)
			mu.Lock()
			defer mu.Unlock()
			out = append(out, x)
			if err != nil && first == nil {
				first = err
			}
		})
	}
	wg.Wait()
	return out, first
}

// restore restores one chain into the store's memory and lets go of it.
func (r *modelRig) restore(ctx context.Context, keys []skep.Key) (x restored, err error) {
	err = skep.Load(ctx, r.s, &skep.RestoreRequest{Chains: []skep.Chain{{Scope: r.scope, Keys: keys}}}, func(c *skep.Chunk) error {
		if c.Err != nil {
			x.misses++
		}
		x.bytes += c.Bytes
		return nil
	})
	return x, err
}

// deviceBytes is what the drives have moved.
func (r *modelRig) deviceBytes(ctx context.Context) (n int64, a About) {
	st, err := r.s.Stats(ctx)
	if err != nil {
		return 0, a
	}
	for _, d := range st.Devices {
		n += d.BytesRead + d.BytesWritten
	}
	return n, about(st)
}

// quantile of latencies, in milliseconds.
func quantileMs(list []restored, q float64) float64 {
	if len(list) == 0 {
		return 0
	}
	v := make([]time.Duration, len(list))
	for i := range list {
		v[i] = list[i].took
	}
	slices.Sort(v)
	return float64(v[min(len(v)-1, int(q*float64(len(v))))]) / 1e6
}
