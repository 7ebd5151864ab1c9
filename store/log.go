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
	segPages := int(s.segBytes / layout.PageSize)
	for _, l := range a.logs {
		buf := device.AlignedBuffer(a.logPages * layout.PageSize)
		to := s.logOf(a.g, l.device)
		first := segPages - int(l.page) - a.logPages
		err := a.err
		if err == nil && w.Pages() != a.logPages {
			err = &skep.Error{Op: "append", Kind: skep.Other, Field: "log pages", Value: w.Pages(), Limit: a.logPages}
		}
		if err == nil {
			err = w.Encode(buf, to.ID, first, a.seq)
		}
		if err != nil {
			a.err = err
			a.writes.End(err)
			continue
		}
		d := a.g.drives[l.device]
		d.submit(a.writes, &device.Op{Kind: device.Write, Bufs: [][]byte{buf},
			Offset: d.segmentOffset(a.g.segments[l.device]) + int64(l.page)*layout.PageSize})
	}
}

// markEntry is what an append's mark takes of its log pages.
var markEntry = segment.EntrySize(segment.MarkSize)

// beginLog begins an append's entries with its mark.
func (s *Store) beginLog(w *segment.LogWriter) error {
	return w.Mark(&segment.Mark{Flushed: s.root.Marked()})
}

// nameCopies is on how many drives stands what is nobody's block: names, purges and
// deletions. One drive may be lost.
const nameCopies = 2

// logTries is how often entries are tried in another place.
const logTries = 8

// logEntries writes entries that are no blocks to the log of an open group, on two of
// its drives where there are two, and returns when they are flushed. A rebuild from the
// devices alone needs them. Where users find no room, the cleaner's group has some, as
// long as it can open another; who may wait has cleaning make room, and when even that
// does not help, takes a page from what cleaning needs.
//
// Errors: skep.Full when no group has room for them and none can be opened.
func (s *Store) logEntries(ctx context.Context, st stream, wait time.Duration, entries []byte) error {
	var w segment.LogWriter
	if err := s.beginLog(&w); err != nil {
		return err
	}
	if err := w.Add(entries); err != nil {
		return err
	}
	var last error
	for range logTries {
		g, err := s.current(ctx, st, time.Now())
		if skep.KindOf(err) == skep.Full && st == streamUser {
			switch {
			case s.keptToSpare():
				st = streamKept
				continue
			case wait > 0:
				if g, err = s.current(ctx, st, time.Now().Add(wait)); skep.KindOf(err) == skep.Full {
					st, wait = streamKept, 0
					continue
				}
			}
		}
		if err != nil {
			return err
		}
		a := s.placeEntries(g, w.Pages())
		if a == nil {
			continue
		}
		s.writes(a, len(a.logs), int64(a.logPages*len(a.logs))*layout.PageSize, func() {})
		a.flushes = failedFlushes(a.drives())
		s.submitLog(a, &w)
		if last = a.writes.Wait(ctx, s.options.OpTimeout); last == nil {
			last = s.flushWritten(ctx, a.drives(), a.flushes)
		}
		if last != nil {
			s.giveWritesUp(a)
		}
		if last == nil || ctx.Err() != nil {
			return last
		}
		s.giveUp(g)
	}
	if last == nil {
		last = &skep.Error{Op: "write log entries", Kind: skep.Full, Field: "pages", Value: w.Pages(), Limit: "an open group with as many"}
	}
	return last
}

// keptToSpare says whether the cleaner's open group has room to spare.
func (s *Store) keptToSpare() bool {
	sp := &s.space
	sp.mu.Lock()
	defer sp.mu.Unlock()
	return sp.mu.open[streamKept] != nil && s.freeGroupsLocked() >= s.reserve
}

// placeEntries takes log pages in g, or seals it when it has none.
func (s *Store) placeEntries(g *group, pages int) *appending {
	a := &appending{g: g}
	sp := &s.space
	sp.mu.Lock()
	defer sp.mu.Unlock()
	if g.life.State() != space.Open {
		return nil
	}
	mark := g.filler.Mark()
	if !s.takeLogLocked(g, a, pages, min(nameCopies, len(g.drives))) {
		g.filler.Rollback(mark)
		// Few pages are refused where hardly any is left: what g holds is what fits into it.
		// Otherwise its cleaning would seem to gain the rest, and fill the next one as far, for ever.
		g.full = g.full || pages*gains[0] <= int(s.segBytes/layout.PageSize)
		s.sealLocked(g)
		s.recordSealedLocked(g)
		return nil
	}
	g.entries++
	g.pending++
	a.seq = s.root.Begin()
	return a
}

// drives are those an append's log goes to.
func (a *appending) drives() []*drive {
	out := make([]*drive, len(a.logs))
	for i, l := range a.logs {
		out[i] = a.g.drives[l.device]
	}
	return out
}
