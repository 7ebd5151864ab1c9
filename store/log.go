package store

import (
	"context"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/device"
	"github.com/skepkv/skep/store/segment"
)

// submitLog writes an append's entries to the log pages taken for it, one set a copy.
func (s *Store) submitLog(a *appending, w *segment.LogWriter) {
	segPages := int(s.segBytes / layout.PageSize)
	for _, l := range a.logs {
		buf := device.AlignedBuffer(a.logPages * layout.PageSize)
		id := segment.LogID{Store: s.id, Secret: s.secret, Group: a.g.num, Generation: a.g.generation, Position: uint16(l.device)}
		first := segPages - int(l.page) - a.logPages
		err := a.err
		if err == nil && w.Pages() != a.logPages {
			err = &skep.Error{Op: "append", Kind: skep.Other, Field: "log pages", Value: w.Pages(), Limit: a.logPages}
		}
		if err == nil {
			err = w.Encode(buf, id, first, a.seq)
		}
		if err != nil {
			a.err = err
			a.writes.end(err)
			continue
		}
		d := a.g.drives[l.device]
		a.writes.submit(d, &device.Op{Kind: device.Write, Bufs: [][]byte{buf},
			Offset: d.segmentOffset(a.g.segments[l.device]) + int64(l.page)*layout.PageSize})
	}
}

// logEntries appends entries that are no blocks to the open group's log, so that a
// rebuild from the devices alone does not resurrect what was deleted or purged. It
// returns when they are flushed.
func (s *Store) logEntries(ctx context.Context, write func(w *segment.LogWriter) error) error {
	var w segment.LogWriter
	if err := write(&w); err != nil {
		return err
	}
	for {
		g, err := s.current(ctx, streamUser, s.now())
		if err != nil {
			if skep.KindOf(err) == skep.Full {
				// No group can be opened. The catalog has the deletion; only a rebuild that
				// has lost the catalog would bring the block back.
				s.log.Warn("deletion not logged on the devices: no room", "pages", w.Pages())
				return nil
			}
			return err
		}
		a := &appending{g: g, logPages: w.Pages()}
		s.space.mu.Lock()
		if g.filler == nil {
			s.space.mu.Unlock()
			continue
		}
		dev := g.shortestLog(nil)
		page, ok := g.filler.Log(dev, a.logPages)
		if !ok {
			s.sealLocked(g)
			s.space.mu.Unlock()
			continue
		}
		g.logged[dev] += a.logPages
		a.logs = []logPlace{{dev, page}}
		g.pending++
		a.seq = s.beginSeq()
		s.space.mu.Unlock()
		a.writes = newWaiter(1)
		a.writes.after(func() {
			s.marks.end(a.seq, int64(a.logPages)*layout.PageSize)
			s.endAppend(g)
		})
		s.submitLog(a, &w)
		if err := a.writes.wait(ctx, s.options.OpTimeout); err != nil {
			return err
		}
		return s.flushDrives(ctx, g.drives[dev:dev+1])
	}
}

func (s *Store) logTombstones(ctx context.Context, list []segment.Tombstone) error {
	for len(list) > 0 {
		n := min(len(list), tombstonesAtOnce)
		part := list[:n]
		list = list[n:]
		err := s.logEntries(ctx, func(w *segment.LogWriter) error {
			for i := range part {
				if err := w.Tombstone(&part[i]); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// tombstonesAtOnce keeps one append of tombstones to a few pages.
const tombstonesAtOnce = 200

func (s *Store) logPurges(ctx context.Context, list []segment.Purge) error {
	return s.logEntries(ctx, func(w *segment.LogWriter) error {
		for i := range list {
			if err := w.Purge(&list[i]); err != nil {
				return err
			}
		}
		return nil
	})
}
