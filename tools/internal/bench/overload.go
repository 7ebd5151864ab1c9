package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store"
	"github.com/skepkv/skep/store/device"
	"github.com/skepkv/skep/tools/internal/hist"
)

// OverloadOptions are those of Overload.
type OverloadOptions struct {
	Common
	Devices     int
	BlockBytes  int64
	ChainLen    int     // blocks of a request
	Chains      int     // different requests
	Clients     int     // that make the peak, one request after the other each
	Times       float64 // what is offered in the overload, × the peak
	Seconds     float64 // of the overload
	PeakSeconds float64
	MemoryBytes int64
	Seed        uint64
}

// OverloadResult is bench overload.
type OverloadResult struct {
	About
	Bench   string `json:"bench"`   // overload
	Limit   string `json:"limit"`   // what it is compared with
	Method  string `json:"method"`  // how it was measured
	Devices int    `json:"devices"` // file devices
	Seed    uint64 `json:"seed"`    // gives the same requests again

	MemoryCap   int64   `json:"memory_cap_bytes"`  // the store's (bytes)
	MemoryPeak  int64   `json:"memory_peak_bytes"` // growth of the peak resident size since before the open (bytes)
	MemoryRatio float64 `json:"memory_ratio"`      // of the two

	Peak         float64          `json:"peak_per_second"`    // requests served whole, of the clients (1/s)
	Offered      float64          `json:"offered_per_second"` // in the overload, as they arrived (1/s)
	Goodput      float64          `json:"goodput_per_second"` // served whole in the overload (1/s)
	GoodputRatio float64          `json:"goodput_ratio"`      // of the peak
	Seconds      float64          `json:"seconds"`            // of the overload (s)
	Done         int64            `json:"done"`               // served whole within it
	Refused      int64            `json:"refused"`            // as overloaded
	Failed       map[string]int64 `json:"failed"`             // otherwise, by reason
	RefusalP99   float64          `json:"refusal_ms_p99"`     // from the call to its refusal (ms)
	RefusalMax   float64          `json:"refusal_ms_max"`     // the slowest (ms)
	MostUnderway int64            `json:"most_under_way"`     // requests at one time
	// until a second of the clients came to 0.9 of the peak; -1: not within 30 (s)
	NormalAfter float64   `json:"normal_after_seconds"`
	GoodputEach []float64 `json:"goodput_each_second"` // served whole in each second of the overload (1/s)
}

func (o *OverloadOptions) ensureDefaults() {
	o.Common.EnsureDefaults()
	for _, d := range []struct {
		v *int
		d int
	}{{&o.Devices, 4}, {&o.ChainLen, 16}, {&o.Chains, 4000}, {&o.Clients, 16}} {
		if *d.v == 0 {
			*d.v = d.d
		}
	}
	if o.BlockBytes == 0 {
		o.BlockBytes = 128 << 10
	}
	if o.Times == 0 {
		o.Times = 10
	}
	if o.Seconds == 0 {
		o.Seconds = 60
	}
	if o.PeakSeconds == 0 {
		o.PeakSeconds = 10
	}
	if o.MemoryBytes == 0 {
		o.MemoryBytes = 512 << 20
	}
	if o.Seed == 0 {
		o.Seed = 1
	}
}

func (o *OverloadOptions) validate() error {
	const op = "bench overload"
	switch {
	case o.Devices < 1 || o.Devices > 64:
		return skep.Invalidf(op, "--file-devices", o.Devices, "1 to 64")
	case o.BlockBytes < 4096 || o.BlockBytes > 64<<20 || o.BlockBytes%4096 != 0:
		return skep.Invalidf(op, "--block-size", o.BlockBytes, "a multiple of 4096 up to 67108864")
	case o.ChainLen < 1 || o.ChainLen > 1000 || o.Chains < 1 || o.Chains > 1<<20 || o.Clients < 1 || o.Clients > 1000:
		return skep.Invalidf(op, "--chain-blocks, --chains, --clients", [3]int{o.ChainLen, o.Chains, o.Clients}, "1 to 1000, 1048576, 1000")
	case !(o.Times >= 1 && o.Times <= 1000):
		return skep.Invalidf(op, "--times", o.Times, "1 to 1000")
	case !(o.Seconds >= 1 && o.Seconds <= 3600) || !(o.PeakSeconds >= 1 && o.PeakSeconds <= 3600):
		return skep.Invalidf(op, "--seconds", o.Seconds, "1 to 3600")
	case o.MemoryBytes < 256<<20:
		return skep.Invalidf(op, "--memory", o.MemoryBytes, fmt.Sprintf("at least %d", 256<<20))
	}
	return o.Common.Validate()
}

// overloadCalls bounds what is under way in the benchmark's store: some hundred requests.
const overloadCalls = 8 << 20

func (o *OverloadOptions) open(ctx context.Context, dir string) (skep.Store, skep.Scope, error) {
	capacity := int64(o.Chains) * int64(o.ChainLen) * o.BlockBytes / 2 // half of them fit: puts go on and cleaning with them
	st, err := store.Open(ctx, store.Options{Dir: dir, DeviceCount: o.Devices, BlockBytes: o.BlockBytes, CapacityBytes: capacity,
		IOBytes: 128 << 20, CacheBytes: 32 << 20, CatalogCacheBytes: 8 << 20, EventBuffer: 4096, CallBytes: overloadCalls, WriterBytes: 1 << 20,
		MemoryBytes: o.MemoryBytes, Device: device.Options{Backend: o.Backend}, Logger: o.Log})
	if err != nil {
		return nil, skep.Scope{}, err
	}
	ns, err := st.OpenNamespace(ctx, skep.NamespaceSpec{Tenant: "bench", Name: "overload", Model: "payload-1",
		Shape: skep.Shape{Kind: skep.Opaque, BlockTokens: 16, Bytes: o.BlockBytes}, Chained: true})
	if err != nil {
		return nil, skep.Scope{}, errors.Join(err, st.Close())
	}
	return st, skep.Scope{Namespace: ns.ID}, nil
}

// Overload measures a store that is asked for more than it can do.
func Overload(ctx context.Context, o OverloadOptions) (res *OverloadResult, err error) {
	o.ensureDefaults()
	if err := o.validate(); err != nil {
		return nil, err
	}
	dir, remove, err := o.Workspace("overload")
	if err != nil {
		return nil, err
	}
	defer remove()
	res = &OverloadResult{Bench: "overload", Devices: o.Devices, Seed: o.Seed, MemoryCap: o.MemoryBytes, Seconds: o.Seconds, Failed: map[string]int64{},
		Limit: fmt.Sprintf("the peak of the same run: %d clients, one request after the other each", o.Clients),
		Method: fmt.Sprintf("a request looks a chain of %d blocks of %d bytes up, restores what is found into memory the store lends and puts the rest; chains are drawn by Zipf's law, half of them fit on the devices. "+
			"In the overload %g times the peak's requests arrive evenly, each on its own; good is one that was served whole. Memory is the growth of the process's peak resident size from before the store was opened, load generator included. "+
			"A refusal is timed from the call", o.ChainLen, o.BlockBytes, o.Times)}
	payload := device.AlignedBuffer(o.ChainLen * int(o.BlockBytes))
	rng := rand.New(rand.NewPCG(o.Seed, 9))
	for i := range payload {
		payload[i] = byte(rng.Uint32())
	}
	before, err := peakRSS()
	if err != nil {
		return nil, err
	}
	st, scope, err := o.open(ctx, filepath.Join(dir, "store"))
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, st.Close()) }()
	l := &overload{o: &o, st: st, scope: scope, payload: payload, failed: map[string]int64{}}
	o.Note("finding the peak")
	l.closed(ctx, o.PeakSeconds/2) // devices and caches fill up
	l.reset()
	res.Peak = l.closed(ctx, o.PeakSeconds)
	l.reset()
	res.Offered = res.Peak * o.Times
	o.Note("%.0f requests a second at the peak; offering %.0f", res.Peak, res.Offered)
	l.open(ctx, res)
	l.reset()
	res.NormalAfter = l.normalAgain(ctx, res.Peak)
	after, err := peakRSS()
	if err != nil {
		return nil, err
	}
	res.MemoryPeak = after - before
	res.MemoryRatio = float64(res.MemoryPeak) / float64(res.MemoryCap)
	s, err := st.Stats(ctx)
	res.About = about(s)
	return res, errors.Join(err, ctx.Err())
}

// overload is the load and what became of it.
type overload struct {
	o       *OverloadOptions
	st      skep.Store
	scope   skep.Scope
	payload []byte

	done, refused, underway, most atomic.Int64

	mu       sync.Mutex
	refusals hist.Hist
	slowest  time.Duration
	failed   map[string]int64
}

func (l *overload) reset() {
	l.done.Store(0)
	l.refused.Store(0)
	l.mu.Lock()
	l.refusals, l.slowest, l.failed = hist.Hist{}, 0, map[string]int64{}
	l.mu.Unlock()
}

// overloadPatience is how long a request may take.
const overloadPatience = 10 * time.Second

// request plays one request and counts what became of it.
func (l *overload) request(ctx context.Context, chain int) {
	ctx, cancel := context.WithTimeout(ctx, overloadPatience)
	defer cancel()
	n := l.underway.Add(1)
	defer l.underway.Add(-1)
	for most := l.most.Load(); n > most && !l.most.CompareAndSwap(most, n); most = l.most.Load() {
	}
	at, err := l.play(ctx, chain)
	switch {
	case err == nil:
		l.done.Add(1)
	case skep.KindOf(err) == skep.Overloaded:
		took := time.Since(at)
		l.refused.Add(1)
		l.mu.Lock()
		l.refusals.Record(took)
		l.slowest = max(l.slowest, took)
		l.mu.Unlock()
	default:
		l.mu.Lock()
		l.failed[skep.KindOf(err).Error()]++
		l.mu.Unlock()
	}
}

// play is one request. at is when the last call began.
func (l *overload) play(ctx context.Context, chain int) (at time.Time, err error) {
	keys := make([]skep.Key, l.o.ChainLen)
	for i := range keys {
		keys[i] = chainKey(l.o.Seed, chain, i)
	}
	at = time.Now()
	found, err := l.st.Lookup(ctx, &skep.LookupRequest{Scope: l.scope, Keys: keys})
	if err != nil {
		return at, err
	}
	if found.Lease.ID != 0 {
		defer l.st.Release(context.WithoutCancel(ctx), found.Lease.ID)
	}
	n := found.Blocks
	if n > 0 {
		at = time.Now()
		if err := l.restore(ctx, keys[:n], found.Lease.ID); err != nil {
			return at, err
		}
	}
	if n == len(keys) {
		return at, nil
	}
	req := &skep.PutRequest{Scope: l.scope, Depth: n}
	if n > 0 {
		req.Parent = &keys[n-1]
	}
	for i := n; i < len(keys); i++ {
		req.Blocks = append(req.Blocks, skep.Block{Key: keys[i], Parts: []skep.Part{{Bytes: l.payload[int64(i)*l.o.BlockBytes:][:l.o.BlockBytes]}}})
	}
	at = time.Now()
	results, err := l.st.Put(ctx, req)
	for _, r := range results {
		if err == nil && r.Outcome == skep.Declined {
			err = r.Reason
		}
	}
	return at, err
}

func (l *overload) restore(ctx context.Context, keys []skep.Key, lease skep.LeaseID) (err error) {
	var first error // all of the chain is loaded, whatever is missing
	r := &skep.RestoreRequest{Chains: []skep.Chain{{Scope: l.scope, Keys: keys, Lease: lease}}}
	err = skep.Load(ctx, l.st, r, func(c *skep.Chunk) error {
		if first == nil {
			first = c.Err
		}
		return nil
	})
	return cmp.Or(err, first)
}

func (l *overload) chains(seed uint64) func() int {
	rng := rand.New(rand.NewPCG(l.o.Seed, seed))
	z := rand.NewZipf(rng, 1.05, 20, uint64(l.o.Chains-1))
	return func() int { return int(z.Uint64()) }
}

// closed has clients make requests, one after the other each, and says how many a second
// were good.
func (l *overload) closed(ctx context.Context, seconds float64) float64 {
	start := time.Now()
	end := start.Add(time.Duration(seconds * 1e9))
	var wg sync.WaitGroup
	for c := range l.o.Clients {
		wg.Go(func() {
			next := l.chains(uint64(100 + c))
			for time.Now().Before(end) && ctx.Err() == nil {
				l.request(ctx, next())
			}
		})
	}
	wg.Wait()
	return float64(l.done.Load()) / time.Since(start).Seconds()
}

// open has requests arrive at a rate, whatever becomes of those before.
func (l *overload) open(ctx context.Context, res *OverloadResult) {
	next := l.chains(7)
	start := time.Now()
	length := time.Duration(l.o.Seconds * 1e9)
	l.most.Store(0)
	var wg sync.WaitGroup
	arrived, second, before := 0, time.Second, int64(0)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for ctx.Err() == nil {
		at := time.Since(start)
		if at > length {
			break
		}
		if at > second {
			done := l.done.Load()
			res.GoodputEach = append(res.GoodputEach, float64(done-before))
			before, second = done, second+time.Second
		}
		for due := int(at.Seconds() * res.Offered); arrived < due; arrived++ {
			chain := next()
			wg.Go(func() { l.request(ctx, chain) })
		}
		<-tick.C
	}
	// Only what was done within the time counts.
	done := l.done.Load()
	seconds := time.Since(start).Seconds()
	wg.Wait()
	res.Done, res.Refused, res.MostUnderway = done, l.refused.Load(), l.most.Load()
	res.Goodput = float64(done) / seconds
	res.GoodputRatio = Div(res.Goodput, res.Peak)
	res.Offered = float64(arrived) / seconds
	l.mu.Lock()
	defer l.mu.Unlock()
	res.RefusalP99 = float64(l.refusals.Quantile(.99)) / 1e6
	res.RefusalMax = float64(l.slowest) / 1e6
	for k, n := range l.failed {
		res.Failed[k] = n
	}
}

// normalAgain is how many seconds after the overload a second's requests came to nine
// tenths of the peak; -1 when they did not within 30.
func (l *overload) normalAgain(ctx context.Context, peak float64) float64 {
	start := time.Now()
	for range 30 {
		l.reset()
		if l.closed(ctx, 1) >= .9*peak {
			return time.Since(start).Seconds()
		}
	}
	return -1
}
