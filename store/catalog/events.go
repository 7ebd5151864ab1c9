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

// lowDisk is what is left of a file system, in bytes, when there is reason to say so: a few times what
// the catalog keeps free.
const lowDisk = 1 << 30

// listener follows Pebble's background work. The handlers may be called with
// Pebble's locks held and must not call it.
func (g *guard) listener() *pebble.EventListener {
	return &pebble.EventListener{
		BackgroundError: g.backgroundError,
		// The default calls Fatalf. Damage is returned to the reader as skep.Damaged.
		DataCorruption: func(i pebble.DataCorruptionInfo) {
			g.log.Error("catalog table is damaged", "path", i.Path, "err", fmt.Sprint(i.Details))
		},
		DiskSlow: func(i vfs.DiskSlowInfo) {
			g.log.Warn("catalog drive is slow", "path", i.Path, "op", i.OpType.String(), "for", i.Duration)
		},
		LowDiskSpace: func(i pebble.LowDiskSpaceInfo) {
			if i.AvailBytes < lowDisk { // Pebble speaks of parts of the whole
				g.log.Warn("catalog filesystem is nearly full", "available", i.AvailBytes, "total", i.TotalBytes)
			}
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
// refused meanwhile), nor does a want of descriptors, and damage does not (other tables are fine).
func (g *guard) backgroundError(err error) {
	h, now := &g.health, time.Now()
	ends := !noSpace(err) && !isScarce(err) && !pebble.IsCorruptionError(err)
	h.mu.Lock()
	if h.mu.err == nil {
		h.mu.since, h.mu.ends = now, time.Time{}
	}
	if !ends && now.Sub(h.mu.last) > g.timeout { // others have taken its place
		h.mu.ends = time.Time{}
	}
	if ends {
		if h.mu.last = now; h.mu.ends.IsZero() { // others may have gone on for long before
			h.mu.ends = now
		}
	}
	h.mu.err = err
	lasted, ending := now.Sub(h.mu.since), now.Sub(h.mu.ends)
	h.mu.Unlock()
	g.log.Error("catalog flush or compaction failed; it will be tried again", "err", err.Error(), "failing_for", lasted)
	if ends && ending > g.timeout {
		g.fail(fmt.Errorf("flushes or compactions have failed for %v: %w", ending.Round(time.Second), err))
	}
}

func (g *guard) backgroundOK() {
	g.health.tableErrors.Store(0)
	g.health.mu.Lock()
	defer g.health.mu.Unlock()
	if noSpace(g.health.mu.err) {
		g.spares.waited.Add(1) // commits may have, for a flush: each has its whole timeout now
	}
	g.health.mu.err = nil
}

// unflushed is why commits wait for a flush that finds no space; nil when they do not.
func (g *guard) unflushed() error {
	if !g.health.stalled.Load() {
		return nil
	}
	g.health.mu.Lock()
	defer g.health.mu.Unlock()
	if !noSpace(g.health.mu.err) {
		return nil
	}
	return g.health.mu.err
}

// Refuses says why a commit that has not begun would be refused; nil: it would not. Who commits under a lock asks
// before taking it: the commit that is the first to wait for the file system may hold it. Who asked before that one
// waited, and wants the lock now, waits as long as it does, whatever its context says: locks know no contexts.
func (c *Catalog) Refuses(op string) error { return c.refuse(op) }

// refuse says why a commit should not even try: a change waits for a descriptor,
// or commits wait for a flush that cannot happen for want of space.
func (g *guard) refuse(op string) error {
	if g.refusal != nil {
		if err := g.refusal(); err != nil {
			return err
		}
	}
	if err := g.unwritable(op); err != nil {
		return err
	}
	if g.spares.waiting.Load() > 0 {
		return &skep.Error{Op: op, Kind: skep.Full, Field: "catalog's descriptors or space"}
	}
	if err := g.unflushed(); isReadOnlyFS(err) {
		return &skep.Error{Op: op, Kind: skep.ReadOnly, Field: "catalog filesystem", Err: err}
	} else if err != nil {
		return &skep.Error{Op: op, Kind: skep.Full, Field: "catalog filesystem", Err: err}
	}
	return nil
}
