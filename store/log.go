package store

import (
	"context"
	"time"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/device"
	"github.com/skepkv/skep/store/internal/space"
	"github.com/skepkv/skep/store/segment"
)

// submitLog writes an append's entries to the log pages taken for it, one set a copy.
func (s *Store) submitLog(a *appending, w *segment.LogWriter) {
	segPages := int(s.space.SegmentBytes / layout.PageSize)
	for _, l := range a.Logs {
		buf := device.AlignedBuffer(a.LogPages * layout.PageSize)
		to := s.space.LogOf(a.Group, l.Device)
		first := segPages - int(l.Page) - a.LogPages
		err := a.err
		if err == nil && w.Pages() != a.LogPages {
			err = &skep.Error{Op: "append", Kind: skep.Other, Field: "log pages", Value: w.Pages(), Limit: a.LogPages}
		}
		if err == nil {
			err = w.Encode(buf, to.ID, first, a.Seq)
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
func (s *Store) beginLog(w *segment.LogWriter) error {
	return w.Mark(&segment.Mark{Flushed: s.root.Marked()})
}

// logTries is how often entries are tried in another place.
const logTries = 8

// logEntries writes entries that are no blocks to the log of an open group, on two of
// its drives where there are two, and returns when they are flushed. A rebuild from the
// devices alone needs them. Where users find no room, the cleaner's group has some, as
// long as it can open another; who may wait has cleaning make room, and when even that
// does not help, takes a page from what cleaning needs.
//
// Errors: skep.Full when no group has room for them and none can be opened.
func (s *Store) logEntries(ctx context.Context, st space.Stream, wait time.Duration, entries []byte) error {
	var w segment.LogWriter
	if err := s.beginLog(&w); err != nil {
		return err
	}
	if err := w.Add(entries); err != nil {
		return err
	}
	var last error
	for range logTries {
		g, err := s.space.Current(ctx, st, time.Now())
		if skep.KindOf(err) == skep.Full && st == space.User {
			switch {
			case s.space.KeptToSpare():
				st = space.Kept
				continue
			case wait > 0:
				if g, err = s.space.Current(ctx, st, time.Now().Add(wait)); skep.KindOf(err) == skep.Full {
					st, wait = space.Kept, 0
					continue
				}
			}
		}
		if err != nil {
			return err
		}
		r, ok := s.space.PlaceEntries(g, w.Pages(), gains[0])
		if !ok {
			continue
		}
		a := &appending{Reservation: r}
		a.writes = s.space.BeginWrites(&a.Reservation, len(a.Logs), int64(a.LogPages*len(a.Logs))*layout.PageSize, func() {})
		a.flushes = space.FailedFlushes(a.LogDrives())
		s.submitLog(a, &w)
		if last = a.writes.Wait(ctx, s.options.OpTimeout); last == nil {
			last = s.space.FlushWritten(ctx, a.LogDrives(), a.flushes)
		}
		if last != nil {
			s.space.GiveUp(g, a.writes)
		}
		if last == nil || ctx.Err() != nil {
			return last
		}
		s.space.Seal(g)
	}
	if last == nil {
		last = &skep.Error{Op: "write log entries", Kind: skep.Full, Field: "pages", Value: w.Pages(), Limit: "an open group with as many"}
	}
	return last
}
