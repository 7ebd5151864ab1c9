package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"

	"github.com/zeebo/xxh3"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store"
	"github.com/skepkv/skep/store/device"
	"github.com/skepkv/skep/tools/internal/payload"
)

// ChainOptions are those of Restore and Put.
type ChainOptions struct {
	Common
	Devices []int // how many devices; a row each
	// Paths are block devices to use in place of file devices, the first so many a row.
	// They must be blank and are blank again afterwards.
	Paths      []string
	ChainBytes int64
	BlockBytes int64
}

// regionBytes is the largest piece of memory a store lends; regions of them are in
// use at once, one session or put each, so that the drives never wait for us.
const (
	regionBytes = 64 << 20
	regions     = 3
)

func (o *ChainOptions) ensureDefaults() {
	o.Common.EnsureDefaults()
	if len(o.Devices) == 0 {
		o.Devices = []int{4}
	}
}

func (o *ChainOptions) validate() error {
	const op = "bench"
	for _, n := range o.Devices {
		if n < 1 || n > 64 {
			return skep.Invalidf(op, "--file-devices", n, "1 to 64")
		}
		if len(o.Paths) > 0 && n > len(o.Paths) {
			return skep.Invalidf(op, "--file-devices", n, fmt.Sprintf("at most the %d named by --device", len(o.Paths)))
		}
	}
	if o.BlockBytes < device.Align || o.BlockBytes > regionBytes || o.BlockBytes%device.Align != 0 {
		return skep.Invalidf(op, "--block-size", o.BlockBytes, fmt.Sprintf("a multiple of %d up to %d", device.Align, regionBytes))
	}
	if o.ChainBytes < o.BlockBytes || o.ChainBytes > 1<<44 {
		return skep.Invalidf(op, "--chain-size", o.ChainBytes, fmt.Sprintf("%d to %d", o.BlockBytes, int64(1)<<44))
	}
	return o.Common.Validate()
}

// shapeOf is the geometry of a block of n bytes: an 8B model's (32 layers of 8 KV heads
// of 128 in bf16, 128 KiB a token) where that divides n, else bytes without layers.
func shapeOf(n int64) skep.Shape {
	const token = 32 * 2 * 8 * 128 * 2
	if n%token == 0 && n/token <= skep.MaxBlockTokens {
		return skep.Shape{Kind: skep.Attention, Layers: 32, KVHeads: 8, HeadDim: 128, Element: skep.BF16, BlockTokens: int(n / token)}
	}
	return skep.Shape{Kind: skep.Opaque, BlockTokens: 16, Bytes: n}
}

// chainStore is a store with one chain in it.
type chainStore struct {
	st    skep.Store
	scope skep.Scope
	keys  []skep.Key
	size  int64 // of a block
	mem   [regions][]byte
	lent  []skep.Memory
	raw   []string // block devices to be left blank
}

func (o *ChainOptions) open(ctx context.Context, dir string, devices int) (_ *chainStore, err error) {
	var paths []string
	if len(o.Paths) > 0 {
		paths = o.Paths[:devices]
	}
	st, err := store.Open(ctx, store.Options{Dir: dir, DeviceCount: devices, Devices: paths, BlockBytes: o.BlockBytes,
		CacheBytes: -1, IOBytes: regions*regionBytes + 256<<20, Device: device.Options{Backend: o.Backend}, Logger: o.Log})
	if err != nil {
		return nil, err
	}
	c := &chainStore{st: st, size: o.BlockBytes, raw: paths}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.close())
		}
	}()
	shape := shapeOf(o.BlockBytes)
	ns, err := st.OpenNamespace(ctx, skep.NamespaceSpec{Tenant: "bench", Name: "bench", Model: "payload-1", Shape: shape, Chained: true})
	if err != nil {
		return c, err
	}
	c.scope.Namespace = ns.ID
	for i := range regions {
		m, err := st.Alloc(ctx, regionBytes)
		if err != nil {
			return c, err
		}
		c.lent = append(c.lent, m)
		c.mem[i] = m.Bytes()
	}
	for i := range o.ChainBytes / o.BlockBytes {
		c.keys = append(c.keys, skep.KeyOf(fmt.Appendf(nil, "bench chain %d", i)))
	}
	return c, nil
}

func (c *chainStore) close() error {
	for _, m := range c.lent {
		m.Release()
	}
	err := c.st.Close()
	for _, path := range c.raw {
		err = errors.Join(err, wipe(path))
	}
	return err
}

// wipe takes the store's superblocks off a device that was blank before.
func wipe(path string) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(make([]byte, 64<<10), 0)
	return errors.Join(err, f.Sync(), f.Close())
}

func (c *chainStore) bytes() int64 { return int64(len(c.keys)) * c.size }

// pieces cuts the chain into runs of blocks that fill a region and has a worker for
// each region take them in order; several are under way at once.
func (c *chainStore) pieces(ctx context.Context, f func(ctx context.Context, mem []byte, piece skep.Range) error) error {
	per := int(regionBytes / c.size)
	var next atomic.Int64
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wg sync.WaitGroup
	for _, mem := range c.mem {
		wg.Go(func() {
			for ctx.Err() == nil {
				from := int(next.Add(int64(per))) - per
				if from >= len(c.keys) {
					return
				}
				if err := f(ctx, mem, skep.Range{From: from, To: min(from+per, len(c.keys))}); err != nil {
					cancel(err)
					return
				}
			}
		})
	}
	wg.Wait()
	return context.Cause(ctx)
}

// put stores one piece, with the bytes in mem.
func (c *chainStore) put(ctx context.Context, mem []byte, p skep.Range) error {
	req := &skep.PutRequest{Scope: c.scope, Depth: p.From, Blocks: make([]skep.Block, p.Len())}
	if p.From > 0 {
		req.Parent = &c.keys[p.From-1]
	}
	for i := range req.Blocks {
		at := int64(i) * c.size
		req.Blocks[i] = skep.Block{Key: c.keys[p.From+i], Parts: []skep.Part{{Bytes: mem[at : at+c.size]}}}
	}
	results, err := c.st.Put(ctx, req)
	if err != nil {
		return err
	}
	for i, r := range results {
		if r.Outcome != skep.Committed {
			return &skep.Error{Op: "bench put", Kind: r.Reason, Field: "block", Value: p.From + i, Limit: "committed; it was " + r.Outcome.String()}
		}
	}
	return nil
}

// load restores one piece into mem; every block must come.
func (c *chainStore) load(ctx context.Context, mem []byte, p skep.Range, d skep.Direction) (err error) {
	r := &skep.RestoreRequest{Chains: []skep.Chain{{Scope: c.scope, Keys: c.keys, Blocks: p.Subset(), Direction: d,
		Dest: skep.Destination{Memory: mem, Stride: c.size}}}}
	return skep.Load(ctx, c.st, r, func(ch *skep.Chunk) error {
		if ch.Err != nil {
			return fmt.Errorf("block %d did not come: %w", ch.Block, ch.Err)
		}
		return nil
	})
}

// fill puts the whole chain with payload made of its keys, untimed.
func (c *chainStore) fill(ctx context.Context) error {
	err := c.pieces(ctx, func(ctx context.Context, mem []byte, p skep.Range) error {
		for i := range p.Len() {
			payload.Fill(mem[int64(i)*c.size:int64(i+1)*c.size], c.keys[p.From+i])
		}
		return c.put(ctx, mem, p)
	})
	if err != nil {
		return err
	}
	return c.st.Flush(ctx)
}

// check restores the whole chain once and compares every byte.
func (c *chainStore) check(ctx context.Context, d skep.Direction) error {
	return c.pieces(ctx, func(ctx context.Context, mem []byte, p skep.Range) error {
		clear(mem)
		if err := c.load(ctx, mem, p, d); err != nil {
			return err
		}
		for i := range p.Len() {
			if n := payload.Check(mem[int64(i)*c.size:int64(i+1)*c.size], c.keys[p.From+i]); n > 0 {
				return &skep.Error{Op: "bench restore", Kind: skep.Damaged, Field: fmt.Sprintf("block %d, %s", p.From+i, d), Value: fmt.Sprintf("%d wrong bytes", n), Limit: "0"}
			}
		}
		return nil
	})
}

// RestoreRow is one line of bench restore.
type RestoreRow struct {
	Devices    int     `json:"devices"`            // file devices
	BlockBytes int64   `json:"block_bytes"`        // payload of a block (bytes)
	ChainBytes int64   `json:"chain_bytes"`        // payload of the chain (bytes)
	Order      string  `json:"order"`              // whole or layers-up
	GBps       float64 `json:"gbps"`               // median (GB/s)
	LimitGBps  float64 `json:"limit_gbps"`         // median of the limit (GB/s)
	Ratio      float64 `json:"ratio"`              // gbps ÷ limit_gbps
	CPU        float64 `json:"cpu_s_per_gb"`       // CPU of this process (s/GB)
	LimitCPU   float64 `json:"limit_cpu_s_per_gb"` // fio's CPU and that of checksumming as many bytes (s/GB)
	FioCPU     float64 `json:"fio_cpu_s_per_gb"`   // of these, fio's (s/GB)
	// of these, xxh3-64 over as many bytes, 32 KiB at a time, in the memory they land in (s/GB)
	SumCPU   float64 `json:"checksum_cpu_s_per_gb"`
	CPURatio float64 `json:"cpu_ratio"` // cpu_s_per_gb ÷ limit_cpu_s_per_gb
	// size of the store's device reads, which the limit uses too (bytes)
	IOBytes int64 `json:"io_bytes"`
	Depth   int   `json:"depth"` // reads under way on each device, of the limit

	Samples         []Sample `json:"samples"`          // the store's, a round each
	LimitSamples    []Sample `json:"limit_samples"`    // the limit's, a round each
	ChecksumSamples []Sample `json:"checksum_samples"` // checksumming's, a round each
}

// RestoreResult is bench restore.
type RestoreResult struct {
	About
	Bench  string       `json:"bench"`  // restore
	Limit  string       `json:"limit"`  // who measured the limit, and how
	Rounds int          `json:"rounds"` // rounds
	Method string       `json:"method"` // how it was measured
	Rows   []RestoreRow `json:"rows"`   // by number of devices, size of a block and order
}

// Restore measures how fast a chain that no cache holds comes back.
func Restore(ctx context.Context, o ChainOptions) (*RestoreResult, error) {
	o.ensureDefaults()
	if err := o.validate(); err != nil {
		return nil, err
	}
	dir, remove, err := o.Workspace("restore")
	if err != nil {
		return nil, err
	}
	defer remove()
	limit := newLimiter(dir)
	res := &RestoreResult{Bench: "restore", Limit: limit.Name(), Rounds: o.Rounds, Rows: []RestoreRow{},
		Method: fmt.Sprintf("one chain on O_DIRECT devices, no DRAM tier, restored back to back by %d overlapping sessions of %d MiB each into registered memory; compared byte by byte once before the rounds; the limit reads the same device files sequentially at the same size and depth; the checksum beside it sums as many bytes as they come from plain reads of those files (Linux), counting the summing only", regions, regionBytes>>20)}
	for _, n := range o.Devices {
		if err := o.restoreOn(ctx, filepath.Join(dir, fmt.Sprintf("store-%d", n)), n, limit, res); err != nil {
			return res, err
		}
	}
	return res, nil
}

func (o *ChainOptions) restoreOn(ctx context.Context, dir string, devices int, limit limiter, res *RestoreResult) (err error) {
	c, err := o.open(ctx, dir, devices)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.close()) }()
	o.Note("%d devices: putting %.1f GB", devices, float64(c.bytes())/1e9)
	if err := c.fill(ctx); err != nil {
		return err
	}
	orders := []skep.Direction{skep.HeadFirst}
	if shapeOf(o.BlockBytes).Kind == skep.Attention {
		orders = append(orders, skep.LayersUp)
	}
	before, err := c.st.Stats(ctx)
	if err != nil {
		return err
	}
	res.About = about(before)
	rows := make([]RestoreRow, len(orders))
	var last skep.Stats
	for i, d := range orders {
		if err := c.check(ctx, d); err != nil {
			return err
		}
		after, err := c.st.Stats(ctx)
		if err != nil {
			return err
		}
		r := &rows[i]
		r.Devices, r.BlockBytes, r.ChainBytes, r.Order = devices, c.size, c.bytes(), orderName(d)
		r.IOBytes, r.Depth = ioOf(before, after)
		before, last = after, after
	}
	files := used(&last)
	for round := range o.Rounds {
		o.Note("%d devices: round %d of %d", devices, round+1, o.Rounds)
		for i, d := range orders {
			if err := o.restoreRound(ctx, c, d, &rows[i], limit, files); err != nil {
				return err
			}
		}
	}
	for i := range rows {
		rows[i].sum()
	}
	res.Rows = append(res.Rows, rows...)
	return nil
}

func orderName(d skep.Direction) string {
	if d == skep.HeadFirst {
		return "whole"
	}
	return d.String()
}

// file is a device and how much of it is written.
type file struct {
	path string
	span int64
}

// used is what to read of each device for the limit: all of it that was written.
func used(s *skep.Stats) []file {
	var out []file
	for _, d := range s.Devices {
		if d.BytesWritten > 0 {
			out = append(out, file{d.Path, min(d.Size, d.BytesWritten)})
		}
	}
	return out
}

// driveBytes is what the store keeps under way on a drive.
const driveBytes = 32 << 20

// ioOf is the size of the device reads between two moments, rounded to a power of two,
// and the depth at which as many bytes are under way as the store keeps.
func ioOf(before, after skep.Stats) (size int64, depth int) {
	var bytes, ops int64
	for i := range after.Devices {
		bytes += after.Devices[i].BytesRead - before.Devices[i].BytesRead
		ops += after.Devices[i].Reads - before.Devices[i].Reads
	}
	size = device.Align
	for ops > 0 && size*3/2 < bytes/ops {
		size *= 2
	}
	return size, int(min(max(driveBytes/size, 1), 128))
}

func (o *ChainOptions) restoreRound(ctx context.Context, c *chainStore, d skep.Direction, r *RestoreRow, limit limiter, files []file) error {
	ours, err := timed(func() (int64, int64, error) {
		return c.bytes(), int64(len(c.keys)), c.pieces(ctx, func(ctx context.Context, mem []byte, p skep.Range) error { return c.load(ctx, mem, p, d) })
	})
	if err != nil {
		return err
	}
	l := load{RW: "read", Size: r.IOBytes, Depth: r.Depth}
	for _, f := range files {
		l.Files = append(l.Files, f.path)
		if s := f.span / r.IOBytes * r.IOBytes; l.Span == 0 || s < l.Span {
			l.Span = s
		}
	}
	l.Bytes = min(l.Span, c.bytes()/int64(len(files))/r.IOBytes*r.IOBytes)
	theirs, err := limit.run(ctx, l)
	if err != nil {
		return err
	}
	r.Samples = append(r.Samples, ours)
	r.LimitSamples = append(r.LimitSamples, theirs)
	sums, err := freshChecksum(files, c.mem[:], c.bytes())
	if err != nil {
		sums = checksum(c)
	}
	r.ChecksumSamples = append(r.ChecksumSamples, sums)
	return nil
}

// checksum sums as many bytes as the chain has, in memory nobody writes to meanwhile.
func checksum(c *chainStore) Sample {
	s, _ := timed(func() (n, ops int64, _ error) {
		for n < c.bytes() {
			for _, mem := range c.mem {
				for at := 0; at < len(mem) && n < c.bytes(); at += sumBytes {
					sink.Store(xxh3.Hash(mem[at : at+sumBytes]))
					n += sumBytes
				}
			}
		}
		return n, n / sumBytes, nil
	})
	return s
}

// sumBytes is what one checksum covers: a granule of the usual shape, a layer's K or V.
const sumBytes = 32 << 10

var sink atomic.Uint64

func (r *RestoreRow) sum() {
	r.GBps, r.LimitGBps = median(r.Samples, Sample.GBps), median(r.LimitSamples, Sample.GBps)
	r.Ratio = Div(r.GBps, r.LimitGBps)
	r.CPU, r.FioCPU, r.SumCPU = median(r.Samples, Sample.CPUPerGB), median(r.LimitSamples, Sample.CPUPerGB), median(r.ChecksumSamples, Sample.CPUPerGB)
	r.LimitCPU = r.FioCPU + r.SumCPU
	r.CPURatio = Div(r.CPU, r.LimitCPU)
}
