package commit

import (
	"context"
	"time"

	"github.com/skepkv/skep/store/internal/limits"
)

// SyncSoon counts a commit of rows of Cache blocks, side rows among them, and has KeepSynced sync the catalog.
func (r *Rows) SyncSoon() {
	r.soft.Add()
	select {
	case r.unsynced <- struct{}{}:
	default:
	}
}

// Sync syncs the catalog unless all rows of Cache blocks have been.
func (r *Rows) Sync(ctx context.Context) error {
	return r.soft.Settle(func() error { return r.Catalog.Commit(ctx, r.Catalog.NewBatch(), true) })
}

// KeepSynced syncs the catalog a while, Harden, after rows of Cache blocks were committed, until the store closes:
// Pebble keeps up to 32 KiB of its log in the memory of the process, and what ends the process (kill -9) would lose
// them. It takes a quarter of the time at most, so that a slow drive is left to others: a Flush waits for it. The
// blocks' bytes are not flushed, so after a crash of the machine the marks decide, as ever, what is verified.
func (r *Rows) KeepSynced() {
	for {
		select {
		case <-r.Closing:
			return
		case <-r.unsynced:
		}
		if !limits.Pause(r.Closing, r.Harden) {
			return
		}
		began := time.Now()
		if err := r.Sync(r.Context); err != nil && r.Context.Err() == nil {
			r.log.Warn("catalog not synced", "error", err)
		}
		if !limits.Pause(r.Closing, 3*time.Since(began)) {
			return
		}
	}
}
