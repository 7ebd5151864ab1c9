package store

import (
	"context"
	"time"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/device"
	"github.com/skepkv/skep/store/internal/health"
	"github.com/skepkv/skep/store/internal/segio"
)

// failedFlushes is how many flushes of drives have failed so far. Who is to flush takes it before
// the first write.
func failedFlushes(drives []*drive) (n uint64) {
	for _, d := range drives {
		n += d.flush.Failures()
	}
	return n
}

var errUnconfirmed = &skep.Error{Op: "flush", Kind: skep.DeviceFailed, Field: "an earlier flush", Value: "failed", Limit: "none since it was written"}

// use gives d its device, which only its flusher flushes.
func (d *drive) use(dev device.Device) { d.dev = d.flush.Use(dev) }

// flushWritten is flushDrives for what was written since so many flushes had failed: when one
// has failed meanwhile, it is not known to be durable, whatever this one says.
func (s *Store) flushWritten(ctx context.Context, drives []*drive, since uint64) error {
	if err := s.flushDrives(ctx, drives); err != nil {
		return err
	}
	if failedFlushes(drives) != since {
		return errUnconfirmed
	}
	return nil
}

// writeDurably writes buf at off of a drive and flushes it.
func (s *Store) writeDurably(ctx context.Context, d *drive, buf []byte, off int64) error {
	since := failedFlushes([]*drive{d})
	if err := device.WriteAt(ctx, d.dev, buf, off); err != nil {
		return err
	}
	return s.flushWritten(ctx, []*drive{d}, since)
}

// durably gives what writes to a drive and flushes it.
func (s *Store) durably(d *drive) segio.WriteDurably {
	return func(ctx context.Context, buf []byte, off int64) error { return s.writeDurably(ctx, d, buf, off) }
}

// flushDrives makes everything durable that was completely written to drives before
// the call, unless a flush has failed since it was written: flushWritten.
func (s *Store) flushDrives(ctx context.Context, drives []*drive) error {
	rounds := make([]*segio.Flush, len(drives))
	downs := s.downs(drives)
	for i, d := range drives {
		rounds[i] = d.flush.Start()
	}
	ctx, cancel := context.WithTimeout(ctx, s.options.OpTimeout)
	defer cancel()
	for i, r := range rounds {
		select {
		case <-r.Done():
			if err := r.Err(); err != nil && !drives[i].removed.Load() {
				return &skep.Error{Op: "flush", Kind: skep.DeviceFailed, Err: err}
			}
		case <-downs[i]:
			if drives[i].removed.Load() {
				continue // meanwhile: nothing of it is the store's
			}
			return &skep.Error{Op: "flush", Kind: skep.DeviceFailed, Field: drives[i].path, Value: "dead"}
		case <-ctx.Done():
			return &skep.Error{Op: "flush", Kind: skep.Deadline, Err: ctx.Err()}
		}
	}
	return nil
}

// downs gives what is closed when a drive is dead.
func (s *Store) downs(drives []*drive) []chan struct{} {
	s.space.mu.Lock()
	defer s.space.mu.Unlock()
	out := make([]chan struct{}, len(drives))
	for i, d := range drives {
		out[i] = d.down
	}
	return out
}

// standing are the drives that are not fenced. What was on one that is has been flushed
// when it was promised, or is a Cache block that a crash may cost: the mark does not
// wait for it, and every read is checked in any case.
func (s *Store) standing() []*drive {
	s.space.mu.Lock()
	defer s.space.mu.Unlock()
	var out []*drive
	for _, d := range s.allDrives() {
		if d.failed == nil || !d.removed.Load() && d.retired.Load() && d.condition() == health.Healthy {
			out = append(out, d)
		}
	}
	return out
}

// advanceMark flushes every drive and moves the flushed-up-to mark: an unclean open
// trusts what lies at or below it and verifies what lies above.
func (s *Store) advanceMark(ctx context.Context) error {
	return s.root.Advance(ctx, s.catalog, func(ctx context.Context) error { return s.flushDrives(ctx, s.standing()) })
}

// wantHardened counts a commit of rows of Cache blocks, side rows among them, and has harden sync the catalog soon.
func (s *Store) wantHardened() {
	s.soft.Add()
	select {
	case s.unsynced <- struct{}{}:
	default:
	}
}

// harden syncs the catalog a hundredth of FlushInterval after rows of Cache blocks were
// committed: Pebble keeps up to 32 KiB of its log in the memory of the process, and what
// ends the process (kill -9) would lose them. It takes a quarter of the time at most, so
// that a slow drive is left to others: a Flush waits for it. The blocks' bytes are not flushed,
// so after a crash of the machine the marks decide, as ever, what is verified.
func (s *Store) harden() {
	after := max(s.options.FlushInterval/100, 5*time.Millisecond)
	for {
		select {
		case <-s.closing:
			return
		case <-s.unsynced:
		}
		if !s.pause(after) {
			return
		}
		began := time.Now()
		err := s.soft.Settle(func() error { return s.catalog.Commit(s.ctx, s.catalog.NewBatch(), true) })
		if err != nil && s.ctx.Err() == nil {
			s.log.Warn("catalog not synced", "error", err)
		}
		if !s.pause(3 * time.Since(began)) {
			return
		}
	}
}

// pause waits for d and says whether the store is not closing.
func (s *Store) pause(d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-s.closing:
		return false
	case <-t.C:
		return true
	}
}
