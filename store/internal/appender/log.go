package appender

import (
	"context"
	"time"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/device"
	"github.com/skepkv/skep/store/internal/segio"
	"github.com/skepkv/skep/store/internal/space"
	"github.com/skepkv/skep/store/segment"
)

// submitLog writes an append's entries to the log pages taken for it, one set a copy.
func (w *Appender) submitLog(a *Append, lw *segment.LogWriter) {
	segPages := int(w.Space.SegmentBytes / layout.PageSize)
	for _, l := range a.Logs {
		buf := device.AlignedBuffer(a.LogPages * layout.PageSize)
		to := w.Space.LogOf(a.Group, l.Device)
		first := segPages - int(l.Page) - a.LogPages
		err := a.err
		if err == nil && lw.Pages() != a.LogPages {
			err = &skep.Error{Op: "append", Kind: skep.Other, Field: "log pages", Value: lw.Pages(), Limit: a.LogPages}
		}
		if err == nil {
			err = lw.Encode(buf, to.ID, first, a.Seq)
		}
		if err != nil {
			a.err = err
			a.writes.End(err)
			continue
		}
		d := a.Group.Drives[l.Device]
		d.Hand(a.writes, &device.Op{Kind: device.Write, Bufs: [][]byte{buf},
			Offset: d.SegmentOffset(a.Group.Segments[l.Device]) + int64(l.Page)*layout.PageSize})
	}
}

// beginLog begins an append's entries with its mark.
func (w *Appender) beginLog(lw *segment.LogWriter) error {
	return lw.Mark(&segment.Mark{Flushed: w.Root.Marked()})
}

// fillLog repeats an append's mark until all pages that were taken for it are used: room was taken for tombstones
// that were not written, and a page left out would be a hole in the log.
func (w *Appender) fillLog(a *Append, lw *segment.LogWriter) error {
	for lw.Pages() < a.LogPages {
		if err := w.beginLog(lw); err != nil {
			return err
		}
	}
	return nil
}

// logTries is how often entries are tried in another place.
const logTries = 8

// Entries writes entries that are no blocks to the log of an open group, on as many of
// its drives as namespaces.Drives says, or all, and returns when they are flushed. A rebuild from the
// devices alone needs them. Where users find no room, the cleaner's group has some, as
// long as it can open another; who may wait has cleaning make room, and when even that
// does not help, takes a page from what cleaning needs.
//
// Errors: skep.Full when no group has room for them and none can be opened.
func (w *Appender) Entries(ctx context.Context, st space.Stream, wait time.Duration, entries []byte) error {
	var lw segment.LogWriter
	if err := w.beginLog(&lw); err != nil {
		return err
	}
	if err := lw.Add(entries); err != nil {
		return err
	}
	drives := w.Rows.Names.Drives(entries)
	var last error
	for range logTries {
		g, err := w.Space.Current(ctx, st, time.Now())
		if skep.KindOf(err) == skep.Full && st == space.User {
			switch {
			case w.Space.KeptToSpare():
				st = space.Kept
				continue
			case wait > 0:
				if g, err = w.Space.Current(ctx, st, time.Now().Add(wait)); skep.KindOf(err) == skep.Full {
					st, wait = space.Kept, 0
					continue
				}
			}
		}
		if err != nil {
			return err
		}
		r, ok := w.Space.PlaceEntries(g, lw.Pages(), drives)
		if !ok {
			continue
		}
		a := &Append{Reservation: r}
		a.writes = w.Space.BeginWrites(&a.Reservation, len(a.Logs), int64(a.LogPages*len(a.Logs))*layout.PageSize, func() {})
		a.flushes = space.FailedFlushes(a.LogDrives())
		w.submitLog(a, &lw)
		if last = a.writes.WaitOr(ctx, w.OpTimeout, g.Lost); last == nil {
			last = w.Space.FlushWritten(ctx, a.LogDrives(), a.flushes)
		}
		if last != nil {
			w.Space.GiveUp(g, a.writes)
		}
		if last == nil || ctx.Err() != nil {
			return last
		}
		w.Space.Seal(g)
	}
	if last == nil {
		last = &skep.Error{Op: "write log entries", Kind: skep.Full, Field: "pages", Value: lw.Pages(),
			Limit: "an open group with as many"}
	}
	return last
}

// logBlocks gives an append's entries: its mark, its records, and tombstones of the
// blocks they replace by name.
func (w *Appender) logBlocks(a *Append, lw *segment.LogWriter) error {
	if err := w.beginLog(lw); err != nil {
		return err
	}
	for _, in := range a.blocks {
		if !a.ns.Info.Chained && !in.Moved {
			if _, older := w.Index.Resolve(in.FP); older || w.Puts.Rivals.Contended(in.FP) {
				in.Record.Flags |= segment.RecordSuccessor
			}
		}
		if err := lw.Record(&in.Record); err != nil {
			return err
		}
		// A whole block stays. Of what is not there nothing says what it will be: a tombstone would
		// have a rebuild forget a whole block whose put began before.
		if in.Replaces != nil {
			in.DropCovers = 0
			if old, ok := w.Index.Resolve(*in.Replaces); ok && old.Partial {
				// Not what is put meanwhile, in this put too: it may stay.
				in.DropCovers = w.Puts.Rivals.Before(*in.Replaces, a.Seq)
			}
		}
		if in.DropCovers > 0 {
			t := segment.Tombstone{Seq: a.Seq, Covers: in.DropCovers, Instance: in.Record.Instance,
				SaltTag: in.Record.SaltTag, Key: *in.Record.Replaces}
			if err := lw.Tombstone(&t); err != nil {
				return err
			}
		}
	}
	return w.fillLog(a, lw)
}

// LastMark reserves a page for the mark of an orderly end and gives what writes it, to be
// called once the catalog has it. What fails is no harm: the mark before stands.
func (w *Appender) LastMark() func(ctx context.Context, flushed uint64) {
	r, ok := w.Space.PlaceLast()
	if !ok {
		return func(context.Context, uint64) {}
	}
	return func(ctx context.Context, flushed uint64) {
		var lw segment.LogWriter
		if lw.Mark(&segment.Mark{Flushed: flushed}) != nil {
			return
		}
		a := &Append{Reservation: r}
		a.writes = segio.NewBatch(len(a.Logs))
		w.submitLog(a, &lw)
		if a.writes.Wait(ctx, w.OpTimeout) == nil {
			_ = w.Space.FlushDrives(ctx, a.LogDrives())
		}
	}
}
