package catalog

import (
	"fmt"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/skepkv/skep"
)

// pebbleLogger takes Pebble's own words.
type pebbleLogger struct{ g *guard }

var _ pebble.Logger = pebbleLogger{}

func (l pebbleLogger) Infof(format string, args ...any) {
	l.g.log.Debug(fmt.Sprintf(format, args...), "from", "pebble")
}

func (l pebbleLogger) Errorf(format string, args ...any) {
	l.g.log.Error(fmt.Sprintf(format, args...), "from", "pebble")
}

// Fatalf must not return, and must not end the process either.
func (l pebbleLogger) Fatalf(format string, args ...any) {
	l.g.fail(fmt.Errorf("pebble: "+format, args...))
	park()
}

// listener follows Pebble's background work. The handlers may be called with
// Pebble's locks held and must not call it.
func (g *guard) listener() *pebble.EventListener {
	return &pebble.EventListener{
		BackgroundError: g.backgroundError,
		// The default calls Fatalf. Damage is returned to the reader as skep.Damaged.
		DataCorruption: func(i pebble.DataCorruptionInfo) {
			g.log.Error("catalog table is damaged", "path", i.Path, "err", i.Details)
		},
		DiskSlow: func(i vfs.DiskSlowInfo) {
			g.log.Warn("catalog drive is slow", "path", i.Path, "op", i.OpType.String(), "for", i.Duration)
		},
		LowDiskSpace: func(i pebble.LowDiskSpaceInfo) {
			g.log.Warn("catalog filesystem is nearly full", "available", i.AvailBytes, "total", i.TotalBytes)
		},
		WriteStallBegin: func(i pebble.WriteStallBeginInfo) {
			g.health.stalled.Store(true)
			g.log.Warn("catalog commits wait", "why", i.Reason)
		},
		WriteStallEnd: func() {
			g.health.stalled.Store(false)
			g.log.Info("catalog commits go on")
		},
		FlushEnd: func(i pebble.FlushInfo) {
			if i.Err == nil {
				g.backgroundOK()
			}
		},
		CompactionEnd: func(i pebble.CompactionInfo) {
			if i.Err == nil {
				g.backgroundOK()
			}
		},
	}
}

// backgroundError takes note of a failed flush or compaction, which Pebble will try
// again. One that goes on for longer than the timeout fails the catalog, lest
// it die silently; a full disk does not (it may be made room on, and commits are
// refused meanwhile), and damage does not (other tables are fine).
func (g *guard) backgroundError(err error) {
	h := &g.health
	h.mu.Lock()
	if h.mu.err == nil {
		h.mu.since = time.Now()
	}
	h.mu.err = err
	lasted := time.Since(h.mu.since)
	h.mu.Unlock()
	g.log.Error("catalog flush or compaction failed; it will be tried again", "err", err, "failing_for", lasted)
	if lasted > g.timeout && !vfs.IsNoSpaceError(err) && !pebble.IsCorruptionError(err) {
		g.fail(fmt.Errorf("flushes or compactions have failed for %v: %w", lasted.Round(time.Second), err))
	}
}

func (g *guard) backgroundOK() {
	g.health.tableErrors.Store(0)
	g.health.mu.Lock()
	g.health.mu.err = nil
	g.health.mu.Unlock()
}

// refuse says why a commit should not even try: commits wait for a flush that
// cannot happen for want of space.
func (g *guard) refuse(op string) error {
	if !g.health.stalled.Load() {
		return nil
	}
	g.health.mu.Lock()
	err := g.health.mu.err
	g.health.mu.Unlock()
	if err == nil || !vfs.IsNoSpaceError(err) {
		return nil
	}
	return &skep.Error{Op: op, Kind: skep.Full, Field: "catalog filesystem", Err: err}
}
