package bench

import (
	"context"
	"path/filepath"

	"github.com/skepkv/skep"
)

// What benches in packages of their own have of this one.

// Tail keeps the end of what a process says, for errors.
type Tail = tail

// Timed runs f and measures it, with the CPU of this process.
func Timed(f func() (bytes, ops int64, err error)) (Sample, error) { return timed(f) }

// Median of f over samples; the lower middle of an even number.
func Median(samples []Sample, f func(Sample) float64) float64 { return median(samples, f) }

// Middle is the median; the lower of two.
func Middle(v []float64) float64 { return middle(v) }

// AboutStats says what moves the bytes of a store.
func AboutStats(s skep.Stats) About { return about(s) }

// Limit does to a file what the machine allows: fio, or goroutines where there is none.
type Limit struct{ l limiter }

// NewLimit finds fio, which keeps to dir.
func NewLimit(dir string) Limit { return Limit{newLimiter(dir)} }

// Name says who does it and with what buffers.
func (l Limit) Name() string { return l.l.Name() }

// Run writes or reads (fio's words: write, read) bytes of a file, so many at a time, depth at once.
func (l Limit) Run(ctx context.Context, path, rw string, size, bytes int64, depth int) (Sample, error) {
	return l.l.run(ctx, load{Files: []string{path}, RW: rw, Size: size, Depth: depth, Bytes: bytes})
}

// Serve starts skep serve on a new store of one file in dir, with so large a DRAM tier, and says which Unix socket it
// listens on. program is what it is run by: see self.Command.
func Serve(
	ctx context.Context, c Common, program []string, dir string, dram int64,
) (socket string, stop func() error, err error) {
	w := &wireBench{WireOptions: WireOptions{Common: c, Devices: 1, Self: program}, dir: filepath.Dir(dir)}
	s, err := w.serve(ctx, filepath.Base(dir), dram, false)
	if err != nil {
		_ = w.stop()
		return "", nil, err
	}
	return s.unix, w.stop, nil
}
