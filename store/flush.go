package store

import (
	"context"
	"time"
)

// advanceMark flushes every drive and moves the flushed-up-to mark: an unclean open
// trusts what lies at or below it and verifies what lies above.
func (s *Store) advanceMark(ctx context.Context) error {
	return s.root.Advance(ctx, s.catalog, func(ctx context.Context) error {
		return s.space.FlushDrives(ctx,
			s.space.Unfenced())
	})
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
