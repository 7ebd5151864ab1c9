package store

import (
	"context"
	"sync"
	"time"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/device"
)

// flusher lets any number of callers wait for one flush of a drive. A caller joins
// the round that starts after it asked, since a flush under way may have begun
// before the caller's write was done.
type flusher struct {
	mu      sync.Mutex
	running *flushRound
	next    *flushRound
}

type flushRound struct {
	done chan struct{}
	err  error
	op   device.Op
}

// start returns a round that covers every write completed before the call.
func (f *flusher) start(d device.Device) *flushRound {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.next == nil {
		f.next = &flushRound{done: make(chan struct{})}
	}
	r := f.next
	if f.running == nil {
		f.launchLocked(d)
	}
	return r
}

// launchLocked makes next the running round. REQUIRES: f.mu.
func (f *flusher) launchLocked(d device.Device) {
	r := f.next
	f.running, f.next = r, nil
	r.op = device.Op{Kind: device.Flush, Done: func(o *device.Op) { f.end(d, o.Err) }}
	if err := d.Submit([]*device.Op{&r.op}); err != nil {
		f.finishLocked(d, err)
	}
}

func (f *flusher) end(d device.Device, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.finishLocked(d, err)
}

// finishLocked ends the running round and starts the next. REQUIRES: f.mu.
func (f *flusher) finishLocked(d device.Device, err error) {
	r := f.running
	r.err = err
	close(r.done)
	f.running = nil
	if f.next != nil {
		f.launchLocked(d)
	}
}

// flushDrives makes everything durable that was completely written to drives before
// the call.
func (s *Store) flushDrives(ctx context.Context, drives []*drive) error {
	rounds := make([]*flushRound, len(drives))
	downs := s.downs(drives)
	for i, d := range drives {
		rounds[i] = d.flush.start(d.dev)
	}
	ctx, cancel := context.WithTimeout(ctx, s.options.OpTimeout)
	defer cancel()
	for i, r := range rounds {
		select {
		case <-r.done:
			if r.err != nil {
				return &skep.Error{Op: "flush", Kind: skep.DeviceFailed, Err: r.err}
			}
		case <-downs[i]:
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
		if d.failed == nil || d.retired.Load() && d.condition() == healthy {
			out = append(out, d)
		}
	}
	return out
}

// marks knows which appends are under way, so that a flush knows up to which
// sequence number everything is on the drives.
type marks struct {
	mu        sync.Mutex
	underway  map[uint64]struct{}
	unflushed int64
}

func (m *marks) end(seq uint64, bytes int64) {
	m.mu.Lock()
	delete(m.underway, seq)
	m.unflushed += bytes
	m.mu.Unlock()
}

// low is the highest sequence number such that no append at or below it is under
// way, given that none above top has begun.
func (m *marks) low(top uint64) uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	for seq := range m.underway {
		if seq <= top {
			top = seq - 1
		}
	}
	return top
}

func (m *marks) pending() int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.unflushed
}

// advanceMark flushes every drive and moves the flushed-up-to mark: an unclean open
// trusts what lies at or below it and verifies what lies above.
func (s *Store) advanceMark(ctx context.Context) error {
	s.markMu.Lock()
	defer s.markMu.Unlock()
	s.marks.mu.Lock()
	top := s.seq.Load()
	bytes := s.marks.unflushed
	s.marks.mu.Unlock()
	to := max(s.marks.low(top), s.flushed.Load()) // what was said once stays said
	if err := s.flushDrives(ctx, s.standing()); err != nil {
		return err
	}
	s.marks.mu.Lock()
	s.marks.unflushed -= bytes
	s.marks.mu.Unlock()
	s.flushed.Store(to)
	if err := s.saveSeq(ctx, s.catalog.NewBatch(), true); err != nil {
		return err
	}
	s.marked.Store(to) // the devices' logs never say more than the catalog
	return nil
}

// wantHardened has harden sync the catalog soon.
func (s *Store) wantHardened() {
	select {
	case s.unsynced <- struct{}{}:
	default:
	}
}

// harden syncs the catalog a hundredth of FlushInterval after rows of Cache blocks were
// committed: Pebble keeps up to 32 KiB of its log in the memory of the process, and what
// ends the process (kill -9) would lose them. It takes a quarter of the time at most, so
// that a slow drive is left to others. The blocks' bytes are not flushed, so after a crash
// of the machine the marks decide, as ever, what is verified.
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
		if err := s.catalog.Commit(s.ctx, s.catalog.NewBatch(), true); err != nil && s.ctx.Err() == nil {
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
