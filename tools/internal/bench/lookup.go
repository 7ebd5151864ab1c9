package bench

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/dchest/siphash"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/index"
	"github.com/skepkv/skep/store"
	"github.com/skepkv/skep/store/device"
	"github.com/skepkv/skep/tools/internal/hist"
)

// LookupOptions are those of Lookup.
type LookupOptions struct {
	Common
	Blocks      int // in the index row
	StoreBlocks int // real ones, in the store row
	Keys        int // of a lookup
	Lookups     int // a round
	Seed        uint64
	Self        []string // command that runs LookupIndex in a process of its own
}

// LookupSample is one round of lookups.
type LookupSample struct {
	Lookups int     `json:"lookups"`    // lookups of one round
	UsP50   float64 `json:"us_p50"`     // median of the round (µs)
	UsP99   float64 `json:"us_p99"`     // 99th percentile of the round (µs)
	Found   float64 `json:"found_mean"` // found by a lookup of the round (blocks)
}

// LookupRow is one line of bench lookup.
type LookupRow struct {
	What         string  `json:"what"`          // index, store, names still or names change
	BlocksStored int64   `json:"blocks_stored"` // at the end (blocks)
	Keys         int     `json:"keys"`          // keys of a lookup
	UsP50        float64 `json:"us_p50"`        // median over all rounds (µs)
	UsP99        float64 `json:"us_p99"`        // 99th percentile over all rounds (µs)
	// index: growth of the process's peak resident memory ÷ blocks; store: what the memory table says of the index ÷
	// blocks (bytes)
	BytesPerBlock float64 `json:"bytes_per_block"`
	FoundMean     float64 `json:"found_mean"` // found by a lookup (blocks)
	// put and removed by others during the rounds; names change: namespaces made and purged (blocks)
	Changed int64          `json:"blocks_changed_meanwhile"`
	Wrong   int64          `json:"wrong"`   // lookups whose answer cannot be right
	Samples []LookupSample `json:"samples"` // a round each
}

// LookupResult is bench lookup.
type LookupResult struct {
	About
	Bench  string      `json:"bench"`  // lookup
	Limit  string      `json:"limit"`  // what it is to be compared with
	Seed   uint64      `json:"seed"`   // gives the same chains again
	Rounds int         `json:"rounds"` // rounds
	Method string      `json:"method"` // how it was measured
	Rows   []LookupRow `json:"rows"`   // what was looked up in
}

// Lookup measures the longest-prefix lookup: of the index alone with Blocks blocks, and
// through a Store with StoreBlocks real ones.
func Lookup(ctx context.Context, o LookupOptions) (*LookupResult, error) {
	o.ensureDefaults()
	if err := o.validate(); err != nil {
		return nil, err
	}
	res := &LookupResult{Bench: "lookup", Seed: o.Seed, Rounds: o.Rounds, Rows: []LookupRow{},
		Limit:  "none: a lookup does no I/O; the goal is 20 µs for 2,000 keys among 10 M blocks",
		Method: "random chains of mixed depth, 1 to twice the keys of a lookup; each lookup leases what it finds and gives the lease back, both timed; other goroutines put and clean all the while. index: package index alone, in a process of its own; bytes_per_block is the growth of that process's peak resident memory ÷ blocks. store: through the Store interface, with real blocks on devices. names still, names change: the same without puts, in turns: while nobody makes a namespace, and while 100 a second are made and purged"}
	o.Note("index: %d blocks", o.Blocks)
	row := LookupRow{}
	if err := runSelf(ctx, o.Self, &row, "lookup-index", "--blocks", strconv.Itoa(o.Blocks), "--keys", strconv.Itoa(o.Keys),
		"--lookups", strconv.Itoa(o.Lookups), "--rounds", strconv.Itoa(o.Rounds), "--seed", strconv.FormatUint(o.Seed, 10)); err != nil {
		return nil, err
	}
	res.Rows = append(res.Rows, row)
	if o.StoreBlocks > 0 {
		o.Note("store: %d blocks of 4 KiB", o.StoreBlocks)
		rows, about, err := o.lookupStore(ctx)
		if err != nil {
			return res, err
		}
		res.About = about
		res.Rows = append(res.Rows, rows...)
	}
	return res, nil
}

func (o *LookupOptions) ensureDefaults() {
	o.Common.EnsureDefaults()
	if o.Seed == 0 {
		o.Seed = 1
	}
}

func (o *LookupOptions) validate() error {
	const op = "bench lookup"
	switch {
	case o.Blocks < 1 || o.Blocks > 1<<31:
		return skep.Invalidf(op, "--blocks", o.Blocks, fmt.Sprintf("1 to %d", 1<<31))
	case o.StoreBlocks < 0 || o.StoreBlocks > 1<<24:
		return skep.Invalidf(op, "--store-blocks", o.StoreBlocks, fmt.Sprintf("0 to %d", 1<<24))
	case o.Keys < 1 || o.Keys > skep.MaxChainKeys:
		return skep.Invalidf(op, "--keys", o.Keys, fmt.Sprintf("1 to %d", skep.MaxChainKeys))
	case o.Lookups < 1 || o.Lookups > 1e6:
		return skep.Invalidf(op, "--lookups", o.Lookups, "1 to 1000000")
	}
	return o.Common.Validate()
}

// chainDepth is how deep chain c is: 1 to twice keys, mixed.
func chainDepth(seed uint64, c, keys int) int {
	p := rand.NewPCG(seed, uint64(c))
	return 1 + int(p.Uint64()%uint64(2*keys))
}

// chainKey is block i of chain c.
func chainKey(seed uint64, c, i int) (k skep.Key) {
	h0, h1 := siphash.Hash128(seed, uint64(c), binary.LittleEndian.AppendUint64(make([]byte, 0, 8), uint64(i)))
	binary.LittleEndian.PutUint64(k[0:], h0)
	binary.LittleEndian.PutUint64(k[8:], h1)
	binary.LittleEndian.PutUint64(k[16:], uint64(c))
	binary.LittleEndian.PutUint64(k[24:], uint64(i))
	return k
}

// fingerprint is a keyed hash of a key, over as many bytes as the engine hashes.
func fingerprint(k skep.Key) (fp index.Fingerprint) {
	var b [4 + 16 + skep.KeySize]byte
	copy(b[20:], k[:])
	lo, hi := siphash.Hash128(1, 2, b[:])
	binary.LittleEndian.PutUint64(fp[:8], lo)
	binary.LittleEndian.PutUint32(fp[8:], uint32(hi))
	return fp
}

// indexChains fills and changes an index chain by chain.
type indexChains struct {
	x     *index.Index
	seed  uint64
	keys  int
	first int // chains [first, next) are in
	next  int
	held  int // blocks in them
	moved int64
}

// add inserts the next chain.
func (ic *indexChains) add() error {
	c := ic.next
	depth := chainDepth(ic.seed, c, ic.keys)
	var parent index.Fingerprint
	for i := range depth {
		fp := fingerprint(chainKey(ic.seed, c, i))
		e := index.Entry{FP: fp, Parent: parent, HasParent: i > 0, Depth: uint32(i), Location: loc(c, i), Pages: 1, Namespace: 1, Tenant: 1}
		if _, existed, err := ic.x.Insert(e); err != nil || existed {
			return errors.Join(err, fmt.Errorf("insert chain %d block %d: existed %v", c, i, existed))
		}
		parent = fp
	}
	ic.next++
	ic.held += depth
	ic.moved += int64(depth)
	return nil
}

// drop removes the oldest chain, from its end.
func (ic *indexChains) drop() {
	c := ic.first
	depth := chainDepth(ic.seed, c, ic.keys)
	for i := depth - 1; i >= 0; i-- {
		// A leased block stays until its lease is given back.
		for {
			_, err := ic.x.Evict(fingerprint(chainKey(ic.seed, c, i)), loc(c, i))
			if !errors.Is(err, index.ErrProtected) {
				break
			}
			ic.x.Tick(time.Now())
			time.Sleep(time.Millisecond)
		}
	}
	ic.first++
	ic.held -= depth
	ic.moved += int64(depth)
}

// loc is a made-up place: 4,096 blocks a group.
func loc(c, i int) uint64 { return uint64(c/4+1)<<32 | uint64((c%4)*1024+i%1024+1) }

// LookupIndex is the index row, for a process of its own: its peak memory is the measure.
func LookupIndex(ctx context.Context, o LookupOptions) (*LookupRow, error) {
	o.ensureDefaults()
	if err := o.validate(); err != nil {
		return nil, err
	}
	x, err := index.New(index.Config{CapacityPages: int64(o.Blocks)})
	if err != nil {
		return nil, err
	}
	defer x.Close()
	runtime.GC()
	before, err := peakRSS()
	if err != nil {
		return nil, err
	}
	ic := &indexChains{x: x, seed: o.Seed, keys: o.Keys}
	for ic.held < o.Blocks {
		if err := ic.add(); err != nil {
			return nil, err
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
	}
	row := &LookupRow{What: "index", Keys: o.Keys}
	stop := make(chan struct{})
	var wg sync.WaitGroup
	var changeErr error
	// Chains from asked on are never cleaned during the rounds: what is looked up is there.
	asked := ic.next - max(1, min(ic.next/2, o.Rounds*o.Lookups))
	base, last := asked, ic.next
	put := ic.moved
	wg.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			for ic.held > o.Blocks && ic.first < base {
				ic.drop()
			}
			if ic.first >= base {
				return // nothing left that may be cleaned
			}
			if changeErr = ic.add(); changeErr != nil {
				return
			}
		}
	})
	rng := rand.New(rand.NewPCG(o.Seed, 2))
	keys := make([]skep.Key, o.Keys)
	all := hist.Hist{}
	for range o.Rounds {
		var h hist.Hist
		found := 0
		for range o.Lookups {
			c := base + rng.IntN(last-base)
			for i := range keys {
				keys[i] = chainKey(o.Seed, c, i)
			}
			start := time.Now()
			n, deepest := x.Lookup(len(keys), func(i int) index.Fingerprint { return fingerprint(keys[i]) })
			var id skep.LeaseID
			if n > 0 {
				id, err = x.Grant(index.LeaseRequest{Deepest: deepest, FP: fingerprint(keys[n-1]), Bytes: int64(n) << 12, Tenant: 1, Until: start.Add(10 * time.Second)})
				x.Release(id)
			}
			took := time.Since(start)
			h.Record(took)
			all.Record(took)
			found += n
			if n != min(chainDepth(o.Seed, c, o.Keys), o.Keys) || err != nil {
				row.Wrong++
			}
		}
		row.Samples = append(row.Samples, LookupSample{o.Lookups, us(h.Quantile(.5)), us(h.Quantile(.99)), float64(found) / float64(o.Lookups)})
		row.FoundMean += float64(found) / float64(o.Lookups) / float64(o.Rounds)
	}
	close(stop)
	wg.Wait()
	after, err := peakRSS()
	if err != nil {
		return nil, err
	}
	row.Changed = ic.moved - put
	row.BlocksStored = int64(x.Stats().Blocks)
	row.UsP50, row.UsP99 = us(all.Quantile(.5)), us(all.Quantile(.99))
	row.BytesPerBlock = float64(after-before) / float64(row.BlocksStored)
	return row, changeErr
}

func us(d time.Duration) float64 { return float64(d) / 1e3 }

// peakRSS is the most memory this process ever had resident, in bytes.
func peakRSS() (int64, error) {
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) >= 2 && f[0] == "VmHWM:" {
			n, err := strconv.ParseInt(f[1], 10, 64)
			return n << 10, err
		}
	}
	return 0, errors.New("/proc/self/status has no VmHWM")
}

// lookupStore is the rows through the Store interface.
func (o *LookupOptions) lookupStore(ctx context.Context) (rows []LookupRow, a About, err error) {
	dir, remove, err := o.Workspace("lookup")
	if err != nil {
		return nil, a, err
	}
	defer remove()
	const size = 4096
	st, err := store.Open(ctx, store.Options{Dir: dir, DeviceCount: 4, BlockBytes: size, CacheBytes: -1,
		// Half as much again as is filled: the putter below makes the cleaner work.
		CapacityBytes: max(int64(o.StoreBlocks)*size*3/2, 256<<20), Device: device.Options{Backend: o.Backend}, Logger: o.Log})
	if err != nil {
		return nil, a, err
	}
	defer func() { err = errors.Join(err, st.Close()) }()
	ns, err := st.OpenNamespace(ctx, skep.NamespaceSpec{Tenant: "bench", Name: "lookup", Shape: skep.Shape{Kind: skep.Opaque, BlockTokens: 16, Bytes: size}, Chained: true})
	if err != nil {
		return nil, a, err
	}
	scope := skep.Scope{Namespace: ns.ID}
	next, held := 0, 0
	body := make([]byte, size)
	add := func(ctx context.Context) error {
		depth := chainDepth(o.Seed, next, o.Keys)
		for from := 0; from < depth; from += 1024 {
			to := min(from+1024, depth)
			req := &skep.PutRequest{Scope: scope, Depth: from, Blocks: make([]skep.Block, to-from)}
			if from > 0 {
				k := chainKey(o.Seed, next, from-1)
				req.Parent = &k
			}
			for i := range req.Blocks {
				req.Blocks[i] = skep.Block{Key: chainKey(o.Seed, next, from+i), Parts: []skep.Part{{Bytes: body}}}
			}
			if _, err := st.Put(ctx, req); err != nil {
				return err
			}
			held += to - from
		}
		next++
		return nil
	}
	for held < o.StoreBlocks {
		if err := add(ctx); err != nil {
			return nil, a, err
		}
	}
	filled := next
	names, err := o.lookupNames(ctx, st, scope, filled)
	if err != nil {
		return nil, a, err
	}
	before, err := st.Stats(ctx)
	if err != nil {
		return nil, a, err
	}
	stop := make(chan struct{})
	var wg sync.WaitGroup
	var putErr error
	wg.Go(func() {
		for putErr == nil {
			select {
			case <-stop:
				return
			default:
				putErr = add(ctx)
			}
		}
	})
	row := &LookupRow{What: "store", Keys: o.Keys}
	rng := rand.New(rand.NewPCG(o.Seed, 3))
	keys := make([]skep.Key, o.Keys)
	var all hist.Hist
	for range o.Rounds {
		var h hist.Hist
		found := 0
		for range o.Lookups {
			c := rng.IntN(filled)
			for i := range keys {
				keys[i] = chainKey(o.Seed, c, i)
			}
			start := time.Now()
			f, lerr := st.Lookup(ctx, &skep.LookupRequest{Scope: scope, Keys: keys})
			if lerr == nil && f.Lease.ID != 0 {
				lerr = st.Release(ctx, f.Lease.ID)
			}
			took := time.Since(start)
			h.Record(took)
			all.Record(took)
			if err = lerr; err != nil {
				break
			}
			found += f.Blocks
			if f.Blocks > chainDepth(o.Seed, c, o.Keys) { // fewer: the cleaner took some
				row.Wrong++
			}
		}
		row.Samples = append(row.Samples, LookupSample{o.Lookups, us(h.Quantile(.5)), us(h.Quantile(.99)), float64(found) / float64(o.Lookups)})
		row.FoundMean += float64(found) / float64(o.Lookups) / float64(o.Rounds)
	}
	close(stop)
	wg.Wait()
	if err = errors.Join(err, putErr); err != nil {
		return nil, a, err
	}
	after, err := st.Stats(ctx)
	if err != nil {
		return nil, a, err
	}
	row.BlocksStored = after.Blocks
	row.Changed = after.PutBlocks - before.PutBlocks + after.Evicted - before.Evicted
	row.UsP50, row.UsP99 = us(all.Quantile(.5)), us(all.Quantile(.99))
	for _, m := range after.Memory {
		if strings.HasPrefix(m.Name, "index") && after.Blocks > 0 {
			row.BytesPerBlock = float64(m.Used) / float64(after.Blocks)
		}
	}
	for i := range names {
		names[i].BlocksStored, names[i].BytesPerBlock = row.BlocksStored, row.BytesPerBlock
	}
	return append([]LookupRow{*row}, names...), about(after), nil
}
