package space

import (
	"context"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/catalog"
	"github.com/skepkv/skep/store/internal/segio"
	"github.com/skepkv/skep/store/segment"
)

// HeaderOf is the header of g's segment at position i.
func (t *Table) HeaderOf(g *Group, i int) segment.Header {
	id, _ := t.Identity()
	h := segment.Header{
		Store: id, Device: g.Drives[i].ID, Group: g.Num, Generation: g.Generation, Segment: g.Segments[i], Position: i,
		SegmentBytes: t.SegmentBytes, Copies: max(1, g.Row.Copies), Seq: g.Generation,
	}
	for j, d := range g.Drives {
		h.Devices = append(h.Devices, segment.Slot{Device: d.Index, Segment: g.Segments[j]})
	}
	return h
}

func (t *Table) markFreed(ctx context.Context, g *Group) error {
	if g.untold() {
		return &skep.Error{Op: "free group", Kind: skep.Missing, Field: "drives that answer", Value: 0, Limit: 1}
	}
	g.heading.Lock()
	defer g.heading.Unlock()
	var first error
	done := 0
	for i, d := range g.Drives {
		if d.Away() {
			continue
		}
		h := t.HeaderOf(g, i)
		err := t.writeFreed(ctx, d, &h)
		if err == nil {
			done++
		} else if first == nil {
			first = err
		}
	}
	if done > 0 {
		return nil
	}
	return first // nil when all its drives are gone for good: there is nobody to tell
}

// writeFreed overwrites a segment's header with the same, freed, flushes it and reads it again: the catalog is about
// to forget the group, and a header that a drive only said to have written would call the catalog older than the
// devices.
func (t *Table) writeFreed(ctx context.Context, d *Drive, h *segment.Header) error {
	h.Flags |= segment.HeaderFreed
	if err := t.WriteHeader(ctx, d, h); err != nil {
		return err
	}
	err := error(&skep.Error{Op: "free group", Kind: skep.DeviceFailed, Field: "header of segment " +
		strconv.Itoa(int(h.Segment)) + " of " + d.Path,
		Value: "as it was before it was written", Limit: "marked as freed"})
	t.ReadHeaders(ctx, d, []uint32{h.Segment}, func(_ uint32, o *segment.Header, wrong error) {
		if wrong != nil {
			err = wrong
		} else if o.Group == h.Group && o.Flags&segment.HeaderFreed != 0 {
			err = nil
		}
	})
	return err
}

// RewriteHeader writes a header of g again, unless the group is being freed: who holds on to it may
// look at it until then, and a header that is not marked as freed would tell the next open of a group
// that the catalog has lost.
func (t *Table) RewriteHeader(ctx context.Context, g *Group, i int) (gone bool, err error) {
	g.heading.Lock()
	defer g.heading.Unlock()
	if g.Life.State() >= Emptied {
		return true, nil
	}
	h := t.HeaderOf(g, i)
	return false, t.WriteHeader(ctx, g.Drives[i], &h)
}

// WriteHeader writes a segment's header and flushes it. Who is answered with an error before the drive has answered
// leaves the segment to the write: headWrite.
func (t *Table) WriteHeader(ctx context.Context, d *Drive, h *segment.Header) error {
	op, err := segio.WriteHeader(d.IO(), h)
	if err != nil {
		return err
	}
	w, err := t.headOf(ctx, d, h.Segment)
	if err != nil {
		return err
	}
	since := FailedFlushes([]*Drive{d})
	d.Hand(w, op)
	if err := w.Wait(ctx, t.Timeout); err != nil {
		return err
	}
	return t.FlushWritten(ctx, []*Drive{d}, since)
}

// headWrite is the write of a segment's header, from before the drive is given it until it has come back, however long
// ago its caller was answered. The segment is its own for as long: no other write of the header is given to the drive,
// which would choose the last of them, and no group is opened there, whose header it would land on.
type headWrite struct {
	*segio.Batch
	free bool // the segment is free once it has come back; guarded by the lock of the table
}

// headOf waits until the drive has no write of a segment's header, and gives the waiter of the next, which has the
// segment from here on.
func (t *Table) headOf(ctx context.Context, d *Drive, seg uint32) (*segio.Batch, error) {
	w := &headWrite{Batch: segio.NewBatch(1)}
	for {
		t.mu.Lock()
		before := d.heads[seg]
		if before == nil {
			break
		}
		t.mu.Unlock()
		if err := before.Wait(ctx, t.Timeout); skep.KindOf(err) == skep.Deadline {
			return nil, err
		}
	}
	defer t.mu.Unlock()
	if i := slices.Index(d.Free, seg); i >= 0 {
		d.Free, w.free = slices.Delete(d.Free, i, i+1), true
	}
	if d.heads == nil {
		d.heads = map[uint32]*headWrite{}
	}
	d.heads[seg] = w
	w.After(func() { t.headBack(d, seg) })
	return w.Batch, nil
}

// headBack is called when the write of a segment's header has come back.
func (t *Table) headBack(d *Drive, seg uint32) {
	t.mu.Lock()
	defer t.mu.Unlock()
	free := d.heads[seg].free
	delete(d.heads, seg)
	if free {
		d.giveLocked(seg)
		t.freedLocked()
	}
}

// ReadHeaders reads the headers of the given segments of a drive, many at once: segio.ReadHeaders.
func (t *Table) ReadHeaders(ctx context.Context, d *Drive, segments []uint32,
	visit func(seg uint32, h *segment.Header, err error)) {
	id, _ := t.Identity()
	segio.ReadHeaders(ctx, d.IO(), id, segments, t.Timeout, visit)
}

// FreeLeftovers marks as freed what the last run did not get to: the headers of groups
// whose rows say so.
func (t *Table) FreeLeftovers(ctx context.Context, b *catalog.Batch, groups map[uint32]bool) {
	var wg sync.WaitGroup
	var failed atomic.Bool
	for _, d := range t.Drives() {
		if d.Away() {
			failed.Store(failed.Load() || !d.out())
			continue
		}
		wg.Go(func() {
			var mu sync.Mutex
			var left []segment.Header
			t.ReadHeaders(ctx, d, d.Free, func(_ uint32, h *segment.Header, err error) {
				if k := skep.KindOf(err); k == skep.DeviceFailed || k == skep.Deadline {
					failed.Store(true) // it may be one of them
				}
				if err == nil && h.Flags&segment.HeaderFreed == 0 && groups[h.Group] {
					mu.Lock()
					left = append(left, *h)
					mu.Unlock()
				}
			})
			for i := range left {
				if err := t.writeFreed(ctx, d, &left[i]); err != nil {
					t.Log.Warn("header of a group that is gone not marked as freed", "device", d.Path, "segment",
						left[i].Segment, "error", err)
					failed.Store(true)
					return
				}
			}
		})
	}
	wg.Wait()
	if failed.Load() {
		return // their rows stay
	}
	for num := range groups {
		b.DeleteGroup(num)
	}
}

// MendHeaders writes the headers that a crash, or an error after the row's commit, kept from
// the drives of groups that were just being opened. Where it cannot, a scrub does.
func (t *Table) MendHeaders(ctx context.Context, groups []*Group) {
	for _, g := range groups {
		for i, d := range g.Drives {
			if d.Away() {
				continue
			}
			want, whole := t.HeaderOf(g, i), false
			t.ReadHeaders(ctx, d, g.Segments[i:i+1], func(_ uint32, h *segment.Header, err error) {
				whole = err == nil && h.Group == want.Group && h.Generation == want.Generation
			})
			if whole {
				continue
			}
			if err := t.WriteHeader(ctx, d, &want); err != nil {
				t.Log.Warn("header of a group not written again", "device", d.Path, "segment", want.Segment, "error",
					err)
			}
		}
	}
}
