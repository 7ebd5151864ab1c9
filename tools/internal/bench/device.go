package bench

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"time"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/device"
)

// DeviceOptions are those of Device.
type DeviceOptions struct {
	Common
	FileBytes int64
	Sizes     []int64 // of a read
	Depth     int
	Seconds   float64 // a run
}

// DeviceRow is one line of bench device.
type DeviceRow struct {
	Backend       string  `json:"backend"`             // of this row
	BackendReason string  `json:"backend_reason"`      // what this backend had to give up
	IOBytes       int64   `json:"io_bytes"`            // of a read (bytes)
	Depth         int     `json:"depth"`               // reads under way
	GBps          float64 `json:"gbps"`                // median (GB/s)
	IOPS          float64 `json:"iops"`                // median (1/s)
	LimitGBps     float64 `json:"limit_gbps"`          // median of the limit (GB/s)
	LimitIOPS     float64 `json:"limit_iops"`          // median of the limit (1/s)
	Ratio         float64 `json:"ratio"`               // iops ÷ limit_iops
	CPUUs         float64 `json:"cpu_us_per_op"`       // CPU of this process for a read (µs)
	LimitCPUUs    float64 `json:"limit_cpu_us_per_op"` // of the limit (µs)

	Samples      []Sample `json:"samples"`       // a round each
	LimitSamples []Sample `json:"limit_samples"` // the limit's, a round each
}

// DeviceResult is bench device.
type DeviceResult struct {
	About
	Bench     string      `json:"bench"`      // device
	Limit     string      `json:"limit"`      // who measured the limit, and how
	Rounds    int         `json:"rounds"`     // rounds
	FileBytes int64       `json:"file_bytes"` // size of the file (bytes)
	Method    string      `json:"method"`     // how it was measured
	Rows      []DeviceRow `json:"rows"`       // by backend, size of a read and depth
}

// Device measures random reads of one file through package store/device.
func Device(ctx context.Context, o DeviceOptions) (*DeviceResult, error) {
	o.EnsureDefaults()
	if err := o.validate(); err != nil {
		return nil, err
	}
	dir, remove, err := o.Workspace("device")
	if err != nil {
		return nil, err
	}
	defer remove()
	limit := newLimiter(dir)
	res := &DeviceResult{Bench: "device", Limit: limit.Name(), Rounds: o.Rounds, FileBytes: o.FileBytes, Rows: []DeviceRow{},
		Method: "random reads of one fully written file, O_DIRECT, into registered huge-page buffers, each resubmitted from its completion; the limit reads the same file at the same size and depth"}
	path := filepath.Join(dir, "device")
	if err := o.makeFile(ctx, path); err != nil {
		return nil, err
	}
	var rows []DeviceRow
	backends := []string{device.IOUring, device.Pool}
	if o.Backend == device.IOUring || o.Backend == device.Pool {
		backends = []string{o.Backend}
	}
	for _, b := range backends {
		d, err := o.open(path, b)
		if errors.Is(err, device.ErrUnavailable) && len(backends) > 1 {
			res.BackendReason = err.Error()
			o.Note("%v", err)
			continue
		}
		if err != nil {
			return nil, err
		}
		info := d.Info()
		if res.Backend == "" {
			res.Backend, res.Simulated = info.Backend, info.Simulated
		}
		for _, size := range o.Sizes {
			rows = append(rows, DeviceRow{Backend: info.Backend, BackendReason: info.Reason, IOBytes: size, Depth: o.Depth})
		}
		if err := d.Close(); err != nil {
			return nil, err
		}
	}
	for round := range o.Rounds {
		o.Note("round %d of %d", round+1, o.Rounds)
		for i := range rows {
			if err := o.round(ctx, path, &rows[i], limit); err != nil {
				return nil, err
			}
		}
	}
	for i := range rows {
		r := &rows[i]
		r.GBps, r.LimitGBps = median(r.Samples, Sample.GBps), median(r.LimitSamples, Sample.GBps)
		r.IOPS, r.LimitIOPS = median(r.Samples, Sample.IOPS), median(r.LimitSamples, Sample.IOPS)
		r.Ratio = Div(r.IOPS, r.LimitIOPS)
		perOp := func(s Sample) float64 { return Div(s.CPUSeconds*1e6, float64(s.Ops)) }
		r.CPUUs, r.LimitCPUUs = median(r.Samples, perOp), median(r.LimitSamples, perOp)
	}
	res.Rows = append(res.Rows, rows...)
	return res, nil
}

func (o *DeviceOptions) validate() error {
	const op = "bench device"
	if len(o.Sizes) == 0 {
		o.Sizes = []int64{4 << 10, 64 << 10}
	}
	for _, s := range o.Sizes {
		if s < device.Align || s > device.MaxIO || s%device.Align != 0 || s > o.FileBytes {
			return skep.Invalidf(op, "--io-bytes", s, fmt.Sprintf("a multiple of %d up to %d and the file", device.Align, device.MaxIO))
		}
	}
	if o.FileBytes%device.Align != 0 || o.FileBytes < device.Align {
		return skep.Invalidf(op, "--file-size", o.FileBytes, fmt.Sprintf("a multiple of %d", device.Align))
	}
	if o.Depth < 1 || o.Depth > 4096 {
		return skep.Invalidf(op, "--depth", o.Depth, "1 to 4096")
	}
	if !(o.Seconds > 0) || o.Seconds > 3600 {
		return skep.Invalidf(op, "--seconds", o.Seconds, "more than 0, up to 3600")
	}
	return o.Common.Validate()
}

func (o *DeviceOptions) open(path, backend string) (device.Device, error) {
	return device.Open(path, device.Options{Backend: backend, QueueDepth: o.Depth, Workers: o.Depth})
}

// makeFile writes the file in full, with bytes no drive can compress.
func (o *DeviceOptions) makeFile(ctx context.Context, path string) (err error) {
	o.Note("writing a file of %.1f GB", float64(o.FileBytes)/1e9)
	d, err := device.Create(path, o.FileBytes, device.Options{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	buf := device.AlignedBuffer(4 << 20)
	rng := rand.NewChaCha8([32]byte{1})
	for off := int64(0); off < o.FileBytes; off += int64(len(buf)) {
		b := buf[:min(int64(len(buf)), o.FileBytes-off)]
		rng.Read(b)
		if err := device.WriteAt(ctx, d, b, off); err != nil {
			return err
		}
	}
	return device.Sync(ctx, d)
}

func (o *DeviceOptions) round(ctx context.Context, path string, r *DeviceRow, limit limiter) error {
	d, err := o.open(path, r.Backend)
	if err != nil {
		return err
	}
	mem, unmap, err := hugeMemory(r.IOBytes * int64(r.Depth))
	if err != nil {
		return errors.Join(err, d.Close())
	}
	if err := device.RegisterArena(d, mem); err != nil && !errors.Is(err, errors.ErrUnsupported) {
		o.Note("buffers not registered: %v", err)
	}
	ours, err := timed(func() (int64, int64, error) { return RandomReads(ctx, d, mem, r.IOBytes, r.Depth, o.Seconds) })
	if cerr := d.Close(); cerr != nil {
		return errors.Join(err, cerr) // the memory may still be written to: it stays mapped
	}
	unmap()
	if err != nil {
		return err
	}
	theirs, err := limit.run(ctx, load{Files: []string{path}, RW: "randread", Size: r.IOBytes, Depth: r.Depth, Span: o.FileBytes, Seconds: o.Seconds})
	r.Samples = append(r.Samples, ours)
	r.LimitSamples = append(r.LimitSamples, theirs)
	return err
}

// RandomReads keeps depth reads under way for a time; each is submitted anew from its
// completion.
func RandomReads(ctx context.Context, d device.Device, mem []byte, size int64, depth int, seconds float64) (bytes, count int64, err error) {
	type lane struct {
		op   device.Op
		rng  rand.PCG
		n    int64
		done chan error
		bufs [1][]byte
	}
	places := uint64(d.Size() / size)
	end := time.Now().Add(time.Duration(seconds * float64(time.Second)))
	lanes := make([]*lane, depth)
	for i := range lanes {
		l := &lane{done: make(chan error, 1)}
		l.rng.Seed(uint64(i), uint64(time.Now().UnixNano()))
		l.bufs[0] = mem[int64(i)*size:][:size:size]
		l.op = device.Op{Kind: device.Read, Bufs: l.bufs[:], Offset: int64(l.rng.Uint64()%places) * size}
		one := []*device.Op{&l.op}
		l.op.Done = func(op *device.Op) {
			if op.Err == nil {
				l.n++
			}
			if op.Err != nil || time.Now().After(end) || ctx.Err() != nil {
				l.done <- op.Err
				return
			}
			op.Offset = int64(l.rng.Uint64()%places) * size
			if err := d.Submit(one); err != nil {
				l.done <- err
			}
		}
		lanes[i] = l
		if err := d.Submit(one); err != nil {
			l.done <- err
		}
	}
	var errs []error
	for _, l := range lanes {
		errs = append(errs, <-l.done)
		count += l.n
	}
	return count * size, count, errors.Join(errs...)
}
