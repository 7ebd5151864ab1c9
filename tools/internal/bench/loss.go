package bench

import (
	"context"
	"fmt"
	"time"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store"
	"github.com/skepkv/skep/store/device"
)

// LossOptions of bench loss.
type LossOptions struct {
	Common
	Devices    int
	DeviceMBps int64
	Bytes      int64
	BlockBytes int64
	ChainLen   int
	Faults     []string
}

// LossRow is the loss of one drive in one way.
type LossRow struct {
	Fault          string  `json:"fault"`         // what befell a drive
	Restores       int     `json:"restores"`      // restores after the loss
	Misses         int     `json:"misses"`        // chunks, after the loss
	ServiceSeconds float64 `json:"service_s"`     // the longest a restore took after the loss (s)
	BeforeP99Ms    float64 `json:"before_p99_ms"` // before the loss (ms)
	AfterP99Ms     float64 `json:"after_p99_ms"`  // once it was a second ago (ms)
	LostBytes      int64   `json:"lost_bytes"`    // of copies on the drive; 0 where they can still be read (bytes)
	// to make them again, from when that began; 0: the drive came back or was never unreadable (s)
	HealSeconds float64 `json:"heal_s"`
	HealMBps    float64 `json:"heal_mbps"`  // lost bytes ÷ that (10⁶ bytes/s)
	HealRatio   float64 `json:"heal_ratio"` // heal_mbps ÷ one drive's bandwidth
	Degraded    int64   `json:"degraded"`   // blocks without all copies at the end
}

// LossResult is bench loss.
type LossResult struct {
	About
	Bench      string    `json:"bench"`       // loss
	Devices    int       `json:"devices"`     // drives of the store
	DeviceMBps int64     `json:"device_mbps"` // of each drive (10⁶ bytes/s)
	Copies     int       `json:"copies"`      // of each block
	Method     string    `json:"method"`      // what was measured, in words
	Rows       []LossRow `json:"rows"`        // by fault
}

// LossFaults are the ways to lose a drive.
var LossFaults = []string{"gone", "eio", "read-only", "hung"}

// healAfter is shortened for the benchmark; a store's default is 15 s.
const healAfter = 4 * time.Second

// Loss measures what the loss of one drive costs a store with two copies.
func Loss(ctx context.Context, o LossOptions) (*LossResult, error) {
	o.EnsureDefaults()
	m := modelOptions{Common: o.Common, Devices: o.Devices, DeviceMBps: o.DeviceMBps, Bytes: o.Bytes, BlockBytes: o.BlockBytes, ChainLen: o.ChainLen}
	if err := m.validate(); err != nil {
		return nil, err
	}
	res := &LossResult{Bench: "loss", Devices: o.Devices, DeviceMBps: o.DeviceMBps, Copies: 2, Rows: []LossRow{},
		Method: fmt.Sprintf("simulated drives of %d MB/s each, two copies, class durable; chains of %d blocks of %d bytes restored at random times at a quarter of the drives' bandwidth, 2 s before and 3.5 s after drive 1 is lost; copies begin to be made again %v after the loss, when nothing is restored any more; hung: the drive runs what it has and gives nothing back",
			o.DeviceMBps, o.ChainLen, o.BlockBytes, healAfter)}
	for _, f := range o.Faults {
		o.Note("%s", f)
		row, about, err := m.loss(ctx, f)
		if err != nil {
			return res, err
		}
		res.About = about
		res.Rows = append(res.Rows, row)
	}
	return res, nil
}

func lossRule(name string) (device.Rule, error) {
	switch name {
	case "gone":
		return device.GoneRule(), nil
	case "eio":
		return device.Rule{Action: device.Fail}, nil
	case "read-only":
		return device.ReadOnlyRule(), nil
	case "hung":
		return device.Rule{Action: device.Withhold}, nil
	}
	return device.Rule{}, skep.Invalidf("bench", "--fault", name, "gone, eio, read-only or hung")
}

func (o modelOptions) loss(ctx context.Context, name string) (row LossRow, a About, err error) {
	row.Fault = name
	rule, err := lossRule(name)
	if err != nil {
		return row, a, err
	}
	dir, remove, err := o.Workspace("loss")
	if err != nil {
		return row, a, err
	}
	defer remove()
	r, err := o.open(ctx, dir, 2, func(so *store.Options) { so.HealAfter = healAfter })
	if err != nil {
		return row, a, err
	}
	defer func() {
		for _, f := range r.faults {
			f.Clear()
			f.Release()
		}
		_ = r.s.Close()
	}()
	if err := r.fill(ctx); err != nil {
		return row, a, err
	}
	rate := float64(o.Devices) * float64(o.DeviceMBps) * 1e6 / 4
	before, err := r.openLoop(ctx, rate, 2*time.Second, 1)
	if err != nil {
		return row, a, err
	}
	row.BeforeP99Ms = quantileMs(before, 0.99)
	lost := time.Now()
	if _, err := r.faults[1].Inject(rule); err != nil {
		return row, a, err
	}
	first, err := r.openLoop(ctx, rate, time.Second, 2)
	if err != nil {
		return row, a, err
	}
	then, err := r.openLoop(ctx, rate, 2500*time.Millisecond, 3)
	if err != nil {
		return row, a, err
	}
	row.AfterP99Ms = quantileMs(then, 0.99)
	for _, x := range append(first, then...) {
		row.Restores++
		row.Misses += x.misses
		row.ServiceSeconds = max(row.ServiceSeconds, x.took.Seconds())
	}
	_, a = r.deviceBytes(ctx)
	deg, err := r.s.Degraded(ctx)
	if err != nil {
		return row, a, err
	}
	row.LostBytes = deg.Bytes
	if deg.Blocks > 0 {
		err = r.waitHealed(ctx, lost, &row)
	}
	row.HealMBps = Div(float64(row.LostBytes)/1e6, row.HealSeconds)
	row.HealRatio = Div(row.HealMBps, float64(o.DeviceMBps))
	return row, a, err
}

// waitHealed waits until every block has its copies again.
func (r *modelRig) waitHealed(ctx context.Context, lost time.Time, row *LossRow) error {
	time.Sleep(time.Until(lost.Add(healAfter))) // as long as nothing is expected to happen
	limit := time.Now().Add(20*time.Duration(float64(row.LostBytes)/(float64(r.o.DeviceMBps)*1e6)*1e9) + time.Minute)
	began := time.Now()
	for {
		if len(r.s.Tasks()) == 0 {
			began = time.Now()
		}
		deg, err := r.s.Degraded(ctx)
		if err != nil {
			return err
		}
		row.Degraded = deg.Blocks
		if deg.Blocks == 0 {
			row.HealSeconds = time.Since(began).Seconds()
			return nil
		}
		if time.Now().After(limit) || ctx.Err() != nil {
			return ctx.Err()
		}
		time.Sleep(20 * time.Millisecond)
	}
}
