package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/device"
	"github.com/skepkv/skep/tools/internal/payload"
)

// PutRow is one line of bench put.
type PutRow struct {
	Devices    int     `json:"devices"`               // file devices
	BlockBytes int64   `json:"block_bytes"`           // payload of a block (bytes)
	ChainBytes int64   `json:"chain_bytes"`           // payload of the chain (bytes)
	GBps       float64 `json:"gbps"`                  // median (GB/s)
	LimitGBps  float64 `json:"limit_gbps"`            // median of the limit (GB/s)
	Ratio      float64 `json:"ratio"`                 // gbps ÷ limit_gbps
	CPU        float64 `json:"cpu_s_per_gb"`          // CPU of this process (s/GB)
	LimitCPU   float64 `json:"limit_cpu_s_per_gb"`    // fio's CPU and that of checksumming as many bytes (s/GB)
	FioCPU     float64 `json:"fio_cpu_s_per_gb"`      // of these, fio's (s/GB)
	SumCPU     float64 `json:"checksum_cpu_s_per_gb"` // of these, checksumming's (s/GB)
	CPURatio   float64 `json:"cpu_ratio"`             // cpu_s_per_gb ÷ limit_cpu_s_per_gb
	Written    int64   `json:"device_bytes_written"`  // by the store in the last round (bytes)
	// size of the store's device writes, which the limit uses too (bytes)
	IOBytes int64 `json:"io_bytes"`
	Depth   int   `json:"depth"` // writes under way on each device, of the limit

	Samples         []Sample `json:"samples"`          // the store's, a round each
	LimitSamples    []Sample `json:"limit_samples"`    // the limit's, a round each
	ChecksumSamples []Sample `json:"checksum_samples"` // checksumming's, a round each
}

// PutResult is bench put.
type PutResult struct {
	About
	Bench  string   `json:"bench"`  // put
	Limit  string   `json:"limit"`  // who measured the limit, and how
	Rounds int      `json:"rounds"` // rounds
	Method string   `json:"method"` // how it was measured
	Rows   []PutRow `json:"rows"`   // by number of devices and size of a block
}

// Put measures how fast a chain is stored in a new store, acknowledged as committed.
func Put(ctx context.Context, o ChainOptions) (*PutResult, error) {
	o.ensureDefaults()
	if err := o.validate(); err != nil {
		return nil, err
	}
	dir, remove, err := o.Workspace("put")
	if err != nil {
		return nil, err
	}
	defer remove()
	limit := newLimiter(dir)
	res := &PutResult{Bench: "put", Limit: limit.Name(), Rounds: o.Rounds, Rows: []PutRow{},
		Method: fmt.Sprintf("one chain into a new store each round, by %d puts of %d MiB at a time from registered memory, each acknowledged as committed (class cache); the limit writes as many bytes sequentially to fresh preallocated files in the same directory at the same size and depth; neither flushes", regions, regionBytes>>20)}
	for _, n := range o.Devices {
		r := PutRow{Devices: n, BlockBytes: o.BlockBytes}
		for round := range o.Rounds {
			o.Note("%d devices: round %d of %d", n, round+1, o.Rounds)
			if err := o.putRound(ctx, dir, n, limit, &r, &res.About); err != nil {
				return res, err
			}
		}
		r.GBps, r.LimitGBps = median(r.Samples, Sample.GBps), median(r.LimitSamples, Sample.GBps)
		r.Ratio = Div(r.GBps, r.LimitGBps)
		r.CPU, r.FioCPU, r.SumCPU = median(r.Samples, Sample.CPUPerGB), median(r.LimitSamples, Sample.CPUPerGB), median(r.ChecksumSamples, Sample.CPUPerGB)
		r.LimitCPU = r.FioCPU + r.SumCPU
		r.CPURatio = Div(r.CPU, r.LimitCPU)
		res.Rows = append(res.Rows, r)
	}
	return res, nil
}

func (o *ChainOptions) putRound(ctx context.Context, dir string, devices int, limit limiter, r *PutRow, a *About) (err error) {
	sub := filepath.Join(dir, "store")
	defer os.RemoveAll(sub)
	c, err := o.open(ctx, sub, devices)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.close()) }()
	r.ChainBytes = c.bytes()
	// Every piece is put from the same bytes: what they are costs the drives nothing.
	for _, mem := range c.mem {
		payload.Fill(mem, c.keys[0])
	}
	before, err := c.st.Stats(ctx)
	if err != nil {
		return err
	}
	ours, err := timed(func() (int64, int64, error) { return c.bytes(), int64(len(c.keys)), c.pieces(ctx, c.put) })
	if err != nil {
		return err
	}
	after, err := c.st.Stats(ctx)
	if err != nil {
		return err
	}
	*a = about(after)
	r.Written, r.IOBytes, r.Depth = writesOf(before, after)
	if err := c.checkPut(ctx); err != nil {
		return err
	}
	sums := checksum(c)
	theirs, err := o.writeLimit(ctx, dir, devices, c.bytes(), limit, r)
	r.Samples = append(r.Samples, ours)
	r.LimitSamples = append(r.LimitSamples, theirs)
	r.ChecksumSamples = append(r.ChecksumSamples, sums)
	return err
}

// writeLimit has the limit write as much to fresh files.
func (o *ChainOptions) writeLimit(ctx context.Context, dir string, devices int, bytes int64, limit limiter, r *PutRow) (Sample, error) {
	l := load{RW: "write", Size: r.IOBytes, Depth: r.Depth, Bytes: bytes / int64(devices) / r.IOBytes * r.IOBytes}
	for i := range devices {
		path := filepath.Join(dir, fmt.Sprintf("limit-%d", i))
		defer os.Remove(path)
		d, err := device.Create(path, max(l.Bytes, device.Align), device.Options{Backend: device.Pool})
		if err != nil {
			return Sample{}, err
		}
		if err := d.Close(); err != nil {
			return Sample{}, err
		}
		l.Files = append(l.Files, path)
	}
	return limit.run(ctx, l)
}

// writesOf is what the devices were written, at which size and depth, between two moments.
func writesOf(before, after skep.Stats) (bytes, size int64, depth int) {
	var ops int64
	for i := range after.Devices {
		bytes += after.Devices[i].BytesWritten - before.Devices[i].BytesWritten
		ops += after.Devices[i].Writes - before.Devices[i].Writes
	}
	size = device.Align
	for ops > 0 && size*3/2 < bytes/ops {
		size *= 2
	}
	return bytes, size, int(min(max(driveBytes/size, 1), 128))
}

// checkPut restores the last piece and compares it with what was put.
func (c *chainStore) checkPut(ctx context.Context) error {
	per := int(regionBytes / c.size)
	from := (len(c.keys) - 1) / per * per
	p := skep.Range{From: from, To: len(c.keys)}
	mem := c.mem[0]
	clear(mem)
	if err := c.load(ctx, mem, p, skep.HeadFirst); err != nil {
		return err
	}
	if n := payload.Check(mem[:int64(p.Len())*c.size], c.keys[0]); n > 0 {
		return &skep.Error{Op: "bench put", Kind: skep.Damaged, Field: "wrong bytes in what was put", Value: n, Limit: 0}
	}
	return nil
}
