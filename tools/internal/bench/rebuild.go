package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store"
	"github.com/skepkv/skep/store/device"
	"github.com/skepkv/skep/tools/internal/payload"
)

// RebuildOptions are those of Rebuild.
type RebuildOptions struct {
	Common
	Blocks     int
	BlockBytes int64
	ChainLen   int
	Devices    int
	Seed       uint64
}

// RebuildResult is bench rebuild.
type RebuildResult struct {
	About
	Bench       string   `json:"bench"`             // rebuild
	Limit       string   `json:"limit"`             // what it is to be compared with
	Method      string   `json:"method"`            // how it was measured
	Blocks      int64    `json:"blocks"`            // in the store (blocks)
	BlockBytes  int64    `json:"block_bytes"`       // payload of a block (bytes)
	Devices     int      `json:"devices"`           // file devices
	Rounds      int      `json:"rounds"`            // of both
	Groups      int      `json:"groups"`            // stripe groups found
	NeededBytes int64    `json:"needed_bytes"`      // of headers and logs (bytes)
	RebuildSecs float64  `json:"rebuild_seconds"`   // median (s)
	ReadSecs    float64  `json:"read_seconds"`      // median of the plain read (s)
	Ratio       float64  `json:"ratio"`             // rebuild_seconds ÷ read_seconds
	BlocksPerS  float64  `json:"blocks_per_second"` // blocks ÷ rebuild_seconds
	CPUSecs     float64  `json:"cpu_seconds"`       // of the process, median (s)
	Lost        int64    `json:"lost"`              // not whole (blocks)
	Rebuild     []Sample `json:"rebuild_samples"`   // of the rebuild, a round each
	Read        []Sample `json:"read_samples"`      // of the plain read, a round each
}

func (o *RebuildOptions) ensureDefaults() {
	o.Common.EnsureDefaults()
	if o.Blocks == 0 {
		o.Blocks = 1_000_000
	}
	if o.BlockBytes == 0 {
		o.BlockBytes = 4096
	}
	if o.ChainLen == 0 {
		o.ChainLen = 100
	}
	if o.Devices == 0 {
		o.Devices = 4
	}
	if o.Seed == 0 {
		o.Seed = 1
	}
}

func (o *RebuildOptions) validate() error {
	const op = "bench rebuild"
	switch {
	case o.Blocks < o.ChainLen || o.Blocks > 1<<31:
		return skep.Invalidf(op, "--blocks", o.Blocks, fmt.Sprintf("%d (one chain) to %d", o.ChainLen, 1<<31))
	case o.BlockBytes < 1 || o.BlockBytes > 1<<24:
		return skep.Invalidf(op, "--block-size", o.BlockBytes, "1 to 16777216")
	case o.Devices < 1 || o.Devices > 64:
		return skep.Invalidf(op, "--file-devices", o.Devices, "1 to 64")
	}
	return o.Common.Validate()
}

// Rebuild measures how long a catalog takes to be made anew from the devices, beside a
// plain read of what that needs.
func Rebuild(ctx context.Context, o RebuildOptions) (*RebuildResult, error) {
	o.ensureDefaults()
	if err := o.validate(); err != nil {
		return nil, err
	}
	dir, remove, err := o.Workspace("rebuild")
	if err != nil {
		return nil, err
	}
	defer remove()
	so := store.Options{Dir: filepath.Join(dir, "store"), DeviceCount: o.Devices, BlockBytes: o.BlockBytes, CacheBytes: -1, IOBytes: 64 << 20,
		Device: device.Options{Backend: o.Backend}, Logger: o.Log}
	res := &RebuildResult{Bench: "rebuild", BlockBytes: o.BlockBytes, Devices: o.Devices, Rounds: o.Rounds,
		Limit:  "raw O_DIRECT preads of the headers and logs a rebuild needs, at the sizes and depth it reads them with, all devices at once",
		Method: "a store is filled with chains and closed; in turns the same ranges are read raw, and the catalog is removed and made anew; medians. Nothing is left in doubt, so no payload is read"}
	if err := o.fill(ctx, so, res); err != nil {
		return nil, err
	}
	for round := range o.Rounds {
		dropCaches()
		sample, reads, err := o.rebuild(ctx, so, res)
		if err != nil {
			return nil, err
		}
		dropCaches()
		raw, err := readRanges(ctx, reads)
		if err != nil {
			return nil, err
		}
		res.Rebuild, res.Read = append(res.Rebuild, sample), append(res.Read, raw)
		o.Note("round %d: rebuild %.2f s, plain read %.2f s", round+1, sample.Seconds, raw.Seconds)
	}
	seconds := func(s Sample) float64 { return s.Seconds }
	res.RebuildSecs, res.ReadSecs = median(res.Rebuild, seconds), median(res.Read, seconds)
	res.CPUSecs = median(res.Rebuild, func(s Sample) float64 { return s.CPUSeconds })
	res.Ratio, res.BlocksPerS = Div(res.RebuildSecs, res.ReadSecs), Div(float64(res.Blocks), res.RebuildSecs)
	return res, nil
}

// fill puts the blocks.
func (o *RebuildOptions) fill(ctx context.Context, so store.Options, res *RebuildResult) (err error) {
	st, err := store.Open(ctx, so)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, st.Close()) }()
	ns, err := st.OpenNamespace(ctx, skep.NamespaceSpec{Tenant: "bench", Name: "rebuild", Model: "payload-1",
		Shape: skep.Shape{Kind: skep.Opaque, BlockTokens: 16, Bytes: o.BlockBytes}, Chained: true})
	if err != nil {
		return err
	}
	const writers = 4
	var next atomic.Int64
	var wg sync.WaitGroup
	errs := make([]error, writers)
	for k := range writers {
		wg.Go(func() {
			mem := make([]byte, int64(o.ChainLen)*o.BlockBytes)
			for c := int(next.Add(1) - 1); c < o.Blocks/o.ChainLen && errs[k] == nil && ctx.Err() == nil; c = int(next.Add(1) - 1) {
				req := &skep.PutRequest{Scope: skep.Scope{Namespace: ns.ID}}
				for i := range o.ChainLen {
					b := mem[int64(i)*o.BlockBytes:][:o.BlockBytes]
					key := chainKey(o.Seed, c, i)
					payload.Fill(b, key)
					req.Blocks = append(req.Blocks, skep.Block{Key: key, Parts: []skep.Part{{Bytes: b}}})
				}
				_, errs[k] = st.Put(ctx, req)
			}
		})
	}
	wg.Wait()
	if err := errors.Join(append(errs, ctx.Err())...); err != nil {
		return err
	}
	s, err := st.Stats(ctx)
	res.About, res.Blocks = about(s), s.Blocks
	return err
}

// rebuild removes the catalog and makes it anew.
func (o *RebuildOptions) rebuild(ctx context.Context, so store.Options, res *RebuildResult) (Sample, []store.RebuildRead, error) {
	if err := os.RemoveAll(filepath.Join(so.Dir, "catalog")); err != nil {
		return Sample{}, nil, err
	}
	var rep store.RebuildReport
	sample, err := timed(func() (int64, int64, error) {
		var err error
		rep, err = store.Rebuild(ctx, so, false, nil)
		return rep.LogBytes, rep.Blocks, err
	})
	if err != nil {
		return sample, nil, err
	}
	sample.Seconds = rep.Seconds // opening and closing the devices is in neither
	res.NeededBytes, res.Groups, res.Lost = rep.LogBytes, rep.Groups, rep.Lost
	if rep.Blocks != res.Blocks {
		return sample, nil, &skep.Error{Op: "bench rebuild", Kind: skep.Damaged, Field: "blocks", Value: rep.Blocks, Limit: res.Blocks}
	}
	return sample, rep.Reads, nil
}

// Of a plain read: what a rebuild reads with at once on each device.
const (
	rangePiece = 1 << 20
	rangeDepth = 32
)

// readRanges reads ranges of files, every file at once.
func readRanges(ctx context.Context, list []store.RebuildRead) (Sample, error) {
	files := map[string]chan store.RebuildRead{}
	pieces := 0
	for _, r := range list {
		pieces += int(r.Bytes/rangePiece) + 1
	}
	for _, r := range list {
		if files[r.Path] == nil {
			files[r.Path] = make(chan store.RebuildRead, pieces)
		}
		for at := int64(0); at < r.Bytes; at += rangePiece {
			files[r.Path] <- store.RebuildRead{Path: r.Path, Off: r.Off + at, Bytes: min(rangePiece, r.Bytes-at)}
		}
	}
	return timed(func() (int64, int64, error) {
		var bytes, ops atomic.Int64
		var wg sync.WaitGroup
		var mu sync.Mutex
		var errs []error
		for path, queue := range files {
			close(queue)
			f, err := os.OpenFile(path, os.O_RDONLY|directFlag, 0)
			if err != nil {
				return 0, 0, err
			}
			defer f.Close()
			for range rangeDepth {
				wg.Go(func() {
					buf := device.AlignedBuffer(rangePiece)
					for r := range queue {
						if ctx.Err() != nil {
							return
						}
						n, err := f.ReadAt(buf[:r.Bytes], r.Off)
						if err != nil {
							mu.Lock()
							errs = append(errs, err)
							mu.Unlock()
							return
						}
						bytes.Add(int64(n))
						ops.Add(1)
					}
				})
			}
		}
		wg.Wait()
		return bytes.Load(), ops.Load(), errors.Join(append(errs, ctx.Err())...)
	})
}
