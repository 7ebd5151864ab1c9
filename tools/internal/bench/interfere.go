package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store"
)

// InterfereOptions of bench interfere.
type InterfereOptions struct {
	Common
	Devices    int
	DeviceMBps int64
	Bytes      int64
	BlockBytes int64
	ChainLen   int
	Seconds    float64 // of each phase
	Share      float64 // of the drives' bandwidth that the background is to move
	Works      []string
}

// InterfereRow is restores beside one kind of background work.
type InterfereRow struct {
	Work       string  `json:"work"`         // move or scrub
	P50Ms      float64 `json:"p50_ms"`       // of restores with the work, all rounds (ms)
	P99Ms      float64 `json:"p99_ms"`       // 99th percentile with the work (ms)
	AloneP50Ms float64 `json:"alone_p50_ms"` // without it (ms)
	AloneP99Ms float64 `json:"alone_p99_ms"` // 99th percentile without it (ms)
	Ratio      float64 `json:"ratio"`        // median over the rounds of p99 with the work ÷ without
	// of the drives' bandwidth that restores moved, with the work
	Foreground float64 `json:"foreground_share"`
	// of the drives' bandwidth that the work moved, reads and writes
	Background      float64   `json:"background_share"`
	Restores        int       `json:"restores"`             // whole restores, with the work
	Misses          int       `json:"misses"`               // chunks not delivered, with the work
	RatioSamples    []float64 `json:"ratio_samples"`        // ratio by round
	P99Samples      []float64 `json:"p99_ms_samples"`       // p99_ms by round (ms)
	AloneP99Samples []float64 `json:"alone_p99_ms_samples"` // alone_p99_ms by round (ms)
}

// InterfereResult is bench interfere.
type InterfereResult struct {
	About
	Bench      string         `json:"bench"`       // interfere
	Rounds     int            `json:"rounds"`      // rounds
	Devices    int            `json:"devices"`     // drives of the store
	DeviceMBps int64          `json:"device_mbps"` // of each drive (10⁶ bytes/s)
	Method     string         `json:"method"`      // what was measured, in words
	Rows       []InterfereRow `json:"rows"`        // by background work
}

// Interfere measures how long restores take while blocks are moved in the background.
func Interfere(ctx context.Context, o InterfereOptions) (*InterfereResult, error) {
	o.EnsureDefaults()
	m := modelOptions{Common: o.Common, Devices: o.Devices, DeviceMBps: o.DeviceMBps, Bytes: o.Bytes, BlockBytes: o.BlockBytes, ChainLen: o.ChainLen}
	if err := m.validate(); err != nil {
		return nil, err
	}
	if o.Share <= 0 || o.Share > 0.5 {
		return nil, skep.Invalidf("bench", "--share", o.Share, "above 0, to 0.5")
	}
	dir, remove, err := o.Workspace("interfere")
	if err != nil {
		return nil, err
	}
	defer remove()
	r, err := m.open(ctx, dir, 1, nil)
	if err != nil {
		return nil, err
	}
	defer func() { _ = r.s.Close() }()
	if err := r.fill(ctx); err != nil {
		return nil, err
	}
	res := &InterfereResult{Bench: "interfere", Rounds: o.Rounds, Devices: o.Devices, DeviceMBps: o.DeviceMBps, Rows: []InterfereRow{},
		Method: fmt.Sprintf("simulated drives of %d MB/s each; restores of chains of %d blocks of %d bytes, due at random times at half of all drives' bandwidth (open loop, latency from when due), %.0f s without and %.0f s with the work in turns; the work is told a rate that makes it move %.0f %% of the drives' bandwidth; shares are of device bytes, reads and writes",
			o.DeviceMBps, o.ChainLen, o.BlockBytes, o.Seconds, o.Seconds, 100*o.Share)}
	length := time.Duration(o.Seconds * float64(time.Second))
	total := float64(o.Devices) * float64(o.DeviceMBps) * 1e6
	for _, name := range o.Works {
		row := InterfereRow{Work: name}
		var with, alone []restored
		for round := range o.Rounds {
			o.Note("%s: round %d of %d", name, round+1, o.Rounds)
			seed := uint64(round + 1)
			a, err := r.openLoop(ctx, total/2, length, seed)
			if err != nil {
				return res, err
			}
			before, _ := r.deviceBytes(ctx)
			workCtx, stop := context.WithCancel(ctx)
			done := make(chan error, 1)
			go func() { done <- r.work(workCtx, name, total*o.Share) }()
			began := time.Now()
			w, err := r.openLoop(ctx, total/2, length, seed)
			took := time.Since(began).Seconds()
			after, about := r.deviceBytes(ctx)
			stop()
			if e := <-done; e != nil && err == nil {
				err = e
			}
			if err != nil {
				return res, err
			}
			res.About = about
			var fg int64
			for _, x := range w {
				fg += x.bytes
				row.Misses += x.misses
			}
			row.Foreground += float64(fg) / took / total / float64(o.Rounds)
			row.Background += float64(after-before-fg) / took / total / float64(o.Rounds)
			row.RatioSamples = append(row.RatioSamples, Div(quantileMs(w, 0.99), quantileMs(a, 0.99)))
			row.P99Samples = append(row.P99Samples, quantileMs(w, 0.99))
			row.AloneP99Samples = append(row.AloneP99Samples, quantileMs(a, 0.99))
			with, alone = append(with, w...), append(alone, a...)
		}
		row.P50Ms, row.P99Ms = quantileMs(with, 0.5), quantileMs(with, 0.99)
		row.AloneP50Ms, row.AloneP99Ms = quantileMs(alone, 0.5), quantileMs(alone, 0.99)
		sorted := slices.Clone(row.RatioSamples)
		slices.Sort(sorted)
		row.Ratio = sorted[(len(sorted)-1)/2]
		row.Restores = len(with)
		res.Rows = append(res.Rows, row)
	}
	return res, nil
}

// Works of bench interfere.
var InterfereWorks = []string{"move", "scrub"}

// work moves blocks until ctx ends, at deviceBps bytes a second of the drives' bandwidth.
func (r *modelRig) work(ctx context.Context, name string, deviceBps float64) error {
	for ctx.Err() == nil {
		var err error
		switch name {
		case "move": // each byte is read and written
			_, err = r.s.Compact(ctx, store.MoveOptions{All: true, Rate: int64(deviceBps / 2)})
		case "scrub":
			_, err = r.s.Scrub(ctx, store.ScrubOptions{Rate: int64(deviceBps)})
		default:
			return skep.Invalidf("bench", "--work", name, "move or scrub")
		}
		if err != nil && ctx.Err() == nil && !errors.Is(err, context.Canceled) {
			return err
		}
	}
	return nil
}
