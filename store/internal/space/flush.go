package space

import (
	"context"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/device"
	"github.com/skepkv/skep/store/internal/health"
	"github.com/skepkv/skep/store/internal/segio"
)

// FailedFlushes is how many flushes of drives have failed so far. Who is to flush takes it before
// the first write.
func FailedFlushes(drives []*Drive) (n uint64) {
	for _, d := range drives {
		n += d.Flush.Failures()
	}
	return n
}

var errUnconfirmed = &skep.Error{Op: "flush", Kind: skep.DeviceFailed, Field: "an earlier flush", Value: "failed",
	Limit: "none since it was written"}

// FlushWritten is FlushDrives for what was written since so many flushes had failed: when one
// has failed meanwhile, it is not known to be durable, whatever this one says.
func (t *Table) FlushWritten(ctx context.Context, drives []*Drive, since uint64) error {
	if err := t.FlushDrives(ctx, drives); err != nil {
		return err
	}
	if FailedFlushes(drives) != since {
		return errUnconfirmed
	}
	return nil
}

// writeDurably writes buf at off of a drive and flushes it.
func (t *Table) writeDurably(ctx context.Context, d *Drive, buf []byte, off int64) error {
	since := FailedFlushes([]*Drive{d})
	if err := device.WriteAt(ctx, d.Dev, buf, off); err != nil {
		return err
	}
	return t.FlushWritten(ctx, []*Drive{d}, since)
}

// Durably gives what writes to a drive and flushes it.
func (t *Table) Durably(d *Drive) segio.WriteDurably {
	return func(ctx context.Context, buf []byte, off int64) error { return t.writeDurably(ctx, d, buf, off) }
}

// FlushDrives makes everything durable that was completely written to drives before
// the call, unless a flush has failed since it was written: FlushWritten.
func (t *Table) FlushDrives(ctx context.Context, drives []*Drive) error {
	rounds := make([]*segio.Flush, len(drives))
	downs := t.downs(drives)
	for i, d := range drives {
		rounds[i] = d.Flush.Start()
	}
	ctx, cancel := context.WithTimeout(ctx, t.Timeout)
	defer cancel()
	for i, r := range rounds {
		select {
		case <-r.Done():
			if err := r.Err(); err != nil && !drives[i].Removed.Load() {
				return &skep.Error{Op: "flush", Kind: skep.DeviceFailed, Err: err}
			}
		case <-downs[i]:
			if drives[i].Removed.Load() {
				continue // meanwhile: nothing of it is the store's
			}
			return &skep.Error{Op: "flush", Kind: skep.DeviceFailed, Field: drives[i].Path, Value: "dead"}
		case <-ctx.Done():
			return &skep.Error{Op: "flush", Kind: skep.Deadline, Err: ctx.Err()}
		}
	}
	return nil
}

// downs gives what is closed when a drive is dead.
func (t *Table) downs(drives []*Drive) []chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	out := make([]chan struct{}, len(drives))
	for i, d := range drives {
		out[i] = d.down
	}
	return out
}

// FlushAll flushes every drive that is not fenced.
func (t *Table) FlushAll(ctx context.Context) error { return t.FlushDrives(ctx, t.unfenced()) }

// unfenced are the drives that are not fenced. What was on one that is has been flushed
// when it was promised, or is a Cache block that a crash may cost: the mark does not
// wait for it, and every read is checked in any case.
func (t *Table) unfenced() []*Drive {
	t.mu.Lock()
	defer t.mu.Unlock()
	var out []*Drive
	for _, d := range t.Drives() {
		if d.Failed == nil || !d.Removed.Load() && d.Retired.Load() && d.Condition() == health.Healthy {
			out = append(out, d)
		}
	}
	return out
}
