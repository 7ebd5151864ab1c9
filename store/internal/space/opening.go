package space

import (
	"context"
	"errors"
	"slices"
	"syscall"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/catalog"
	"github.com/skepkv/skep/store/device"
	"github.com/skepkv/skep/store/internal/locks"
	"github.com/skepkv/skep/store/internal/segio"
)

// ErrFull says that no group can be opened now; cleaning may change that.
var ErrFull = &skep.Error{Op: "put", Kind: skep.Full}

// ErrDown says that every drive is fenced.
var ErrDown = &skep.Error{Op: "put", Kind: skep.DeviceFailed, Field: "drives", Value: "all fenced"}

// freeGroupsLocked is how many groups could be opened now, or once the segments of some more are free. REQUIRES: t.mu.
func (t *Table) freeGroupsLocked(and ...*Group) int {
	n := -1
	for _, d := range t.Drives() {
		if d.Failed != nil {
			continue
		}
		if f := d.roomLocked(and); n < 0 || f < n {
			n = f
		}
	}
	return max(n, 0) + len(t.mu.Spares)
}

// roomLocked is how many groups d has a segment for, or will have. REQUIRES: the table's lock.
func (d *Drive) roomLocked(and []*Group) int {
	n := len(d.Free) + d.Limit - d.Segments
	for _, g := range and {
		if g.Has(d) {
			n++
		}
	}
	return n
}

// Relieves says whether a group lies on a drive that has, or will have, room for the fewest: while others have more to
// spare, as one that has just come back, emptying what only they hold opens nothing.
func (t *Table) Relieves(num uint32) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	soon := t.soonLocked()
	g, least := t.mu.Groups.Get(num), t.freeGroupsLocked(soon...)-len(t.mu.Spares)
	return g != nil && slices.ContainsFunc(g.Drives, func(d *Drive) bool {
		return d.Failed == nil && d.roomLocked(soon) <= least
	})
}

// openGroup opens a group for st, or returns errFull. REQUIRES: t.opening held, not t.mu.
func (t *Table) openGroup(ctx context.Context, st Stream) (*Group, error) {
	t.mu.Lock()
	reserve := 0
	if st != Kept {
		reserve = t.KeptFree
	}
	down := !slices.ContainsFunc(t.Drives(), func(d *Drive) bool { return d.Failed == nil })
	full := t.freeGroupsLocked() <= reserve
	var g *Group
	if !down && !full {
		g = t.takeSpareLocked()
	}
	t.mu.Unlock()
	switch {
	case down:
		return nil, ErrDown
	case full:
		return nil, ErrFull
	}
	if g == nil {
		var err error
		if g, err = t.NewGroup(ctx, reserve); err != nil {
			return nil, err
		}
	}
	t.mu.Lock()
	t.openLocked(st, g)
	t.mu.Unlock()
	t.makeSpares()
	return g, nil
}

// openLocked makes a spare st's open group. REQUIRES: t.mu.
func (t *Table) openLocked(st Stream, g *Group) {
	g.Life.Become(Open)
	t.mu.Groups.Add(g)
	t.mu.Open[st] = g
}

// NewGroup takes segments and writes their headers, unless no more than reserve groups
// are free: it gives a spare. REQUIRES: not t.mu.
func (t *Table) NewGroup(ctx context.Context, reserve int) (*Group, error) {
	g, err := t.takeSegments(reserve)
	if err != nil {
		return nil, err
	}
	filler, err := layout.NewFiller(len(g.Drives), int(t.SegmentBytes/layout.PageSize))
	if err == nil {
		err = t.writeHeaders(ctx, g)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.mu.Making = slices.DeleteFunc(t.mu.Making, func(o *Group) bool { return o == g })
	if err != nil {
		return nil, err
	}
	g.Filler, g.Logged = filler, make([]int, len(g.Drives))
	g.Life.Become(Spare)
	return g, nil
}

// takeSegments takes those of a new group. Nobody else takes some between the growing of drives and that: what they
// have allotted for the cleaner would go, too.
func (t *Table) takeSegments(reserve int) (*Group, error) {
	t.growing.Lock()
	defer t.growing.Unlock()
	t.growDrives()
	t.mu.Lock()
	defer t.mu.Unlock()
	locks.Requires(&t.growing)
	if t.freeGroupsLocked() <= reserve {
		return nil, ErrFull
	}
	g := &Group{Generation: t.Root.Next(), Lost: make(chan struct{})}
	for _, d := range t.Drives() {
		if d.Failed != nil || len(d.Free) == 0 {
			continue
		}
		g.Drives = append(g.Drives, d)
		g.Segments = append(g.Segments, d.Free[len(d.Free)-1])
		d.Free = d.Free[:len(d.Free)-1]
	}
	if len(g.Drives) == 0 {
		return nil, ErrFull
	}
	t.mu.Next++
	g.Num = t.mu.Next
	t.mu.Making = append(t.mu.Making, g)
	return g, nil
}

// writeHeaders makes the group's generation durable in the catalog and then writes
// it into each segment. In this order nothing written under an old generation can
// be taken for the new one's, whatever is lost.
func (t *Table) writeHeaders(ctx context.Context, g *Group) error {
	g.Row = catalog.GroupState{
		Group: g.Num, Generation: g.Generation, State: catalog.GroupOpen, Copies: 1,
		SegmentBytes: t.SegmentBytes, OpenedSeq: g.Generation,
	}
	for i, d := range g.Drives {
		g.Row.Devices = append(g.Row.Devices, catalog.Member{Device: d.Index, Segment: g.Segments[i]})
	}
	b := t.Catalog.NewBatch()
	b.PutGroup(&g.Row)
	// not under ctx: its segments would be lost with it
	if err := t.Root.Save(t.Context, t.Catalog, b, true); err != nil {
		t.mu.Lock()
		defer t.mu.Unlock()
		g.Life.Become(Failed)
		if catalog.Refused(err) {
			t.regainLocked(g)
		} else {
			t.mu.Doubted = append(t.mu.Doubted, g) // the row may be there: an open gives these segments back
		}
		return err
	}
	w := segio.NewBatch(len(g.Drives))
	for i, d := range g.Drives {
		h := t.HeaderOf(g, i)
		op, err := segio.WriteHeader(d.IO(), &h)
		if err != nil {
			w.End(err)
			continue
		}
		op.Done = func(o *device.Op) {
			if o.Err != nil && !errors.Is(o.Err, syscall.ENOSPC) {
				t.Fence(d, o.Err)
			}
		}
		w.Submit(d.Dev, op)
	}
	err := w.WaitOr(ctx, t.Timeout, g.Lost)
	if err == nil {
		return nil
	}
	if skep.KindOf(err) == skep.Deadline && ctx.Err() == nil {
		err = &skep.Error{Op: "open group", Kind: skep.DeviceFailed, Err: err}
	}
	// Its row goes first, or an open would find two groups that own these segments; and
	// they are free when no drive can write a header to them any more.
	w.After(func() {
		t.mu.Lock()
		t.unwantLocked(g)
		t.mu.Unlock()
		t.Kick()
	})
	return err
}

// unwantLocked has the cleaner take back a group that is not to be opened. REQUIRES: t.mu, and that no drive has a
// header of it to write.
func (t *Table) unwantLocked(g *Group) {
	g.Life.Become(Failed)
	t.mu.Unopened = append(t.mu.Unopened, g)
}

// regainLocked makes g's segments free, and tells who waits for some. REQUIRES: t.mu.
func (t *Table) regainLocked(g *Group) {
	g.Life.Become(Gone)
	for i, d := range g.Drives {
		d.giveLocked(g.Segments[i])
	}
	t.freedLocked()
}
