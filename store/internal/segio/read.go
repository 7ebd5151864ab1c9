package segio

import (
	"cmp"
	"context"
	"time"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/device"
	"github.com/skepkv/skep/store/segment"
)

// Group is a stripe group: segments of different drives.
type Group interface {
	Len() int
	// Segment is the i-th: its device, and where on that it begins.
	Segment(i int) (dev device.Device, off int64)
}

// Policy says how a block is read: which copies of its units, in which order, and who is told.
type Policy struct {
	// Only, where it is not 0, is a bit for each copy that may be read.
	Only uint8
	// Rank is how good it is to read from a segment of the group: least first; NoPlace and above: it is
	// not read. Nil: all are alike, and the first copy comes first.
	Rank func(segment int) int
	// Timeout is how long drives have to answer. What one does not is read from another copy, into
	// other memory.
	Timeout time.Duration
	// Silent is told of a segment whose drive did not answer in time, Wrong of one whose drive gave
	// wrong bytes. They may be nil.
	Silent, Wrong func(segment int)
}

// ReadBlock reads a whole block into buf, which holds its stored pages and is aligned: every unit
// from the best copy of it, and from another where bytes are wrong, a drive fails or does not
// answer. got is where the block is: buf, or other memory where a drive may still write to buf, which
// the caller lets go of then, as after an error of kind Deadline: see Lent.
//
// Errors: Damaged, where every copy of some bytes was read and is wrong; Deadline or DeviceFailed, of a drive that may
// have the right ones.
func ReadBlock(ctx context.Context, g Group, shape skep.Shape, rec *segment.Record, buf []byte, p Policy) (got []byte, err error) {
	if len(rec.Copies) == 0 {
		_, err := Verify(shape, rec, nil)
		return buf, err
	}
	r := blockRead{g: g, policy: p, units: UnitsOf(rec.Copies, int64(len(buf)), g.Len()), buf: buf}
	r.from, r.tried = make([]int, len(r.units)), make([]uint8, len(r.units))
	for i := range r.from {
		r.from[i] = -1
		if p.Only != 0 {
			r.tried[i] = ^p.Only
		}
	}
	// What a drive does not give now may be right: then the block is not Damaged, whatever the other copies are.
	var drive, wrong error
	for {
		err := r.read(ctx)
		switch {
		case err == ErrNoDrive:
			return r.buf, cmp.Or(drive, err)
		case err == ErrNoCopy:
			return r.buf, cmp.Or(drive, wrong, err)
		case skep.KindOf(err) == skep.Deadline && ctx.Err() != nil:
			return r.buf, err
		case err != nil:
			drive = cmp.Or(drive, err)
			continue
		}
		spans, err := Verify(shape, rec, r.buf)
		if err == nil {
			return r.buf, nil
		}
		wrong = cmp.Or(wrong, err)
		r.distrust(spans)
	}
}

// Lent says that a drive may still write to buf, which ReadBlock read a block into.
func Lent(buf, got []byte, err error) bool {
	return err != nil && skep.KindOf(err) == skep.Deadline || len(buf) > 0 && len(got) > 0 && &got[0] != &buf[0]
}

// blockRead is a block being read, unit by unit.
type blockRead struct {
	g      Group
	policy Policy
	units  Units
	from   []int   // the copy a unit was read from; -1: not read
	tried  []uint8 // copies that were no use, a bit each
	buf    []byte
}

// read reads every unit that is not read. Units whose drive failed are to be tried
// elsewhere.
func (r *blockRead) read(ctx context.Context) (err error) {
	var todo []int
	for i := range r.units {
		if r.from[i] >= 0 {
			continue
		}
		segments := r.units[i].Segments
		bad := func(c int) bool { return r.tried[i]&(1<<c) != 0 }
		rank := func(c int) int {
			if r.policy.Rank == nil {
				return 0
			}
			return r.policy.Rank(segments[c])
		}
		if r.from[i], err = Best(len(segments), bad, rank); err != nil {
			r.from[i] = -1
			return err
		}
		todo = append(todo, i)
	}
	return r.readEach(ctx, todo)
}

// readEach reads units, each of which is waited for by itself: those of drives that do not answer are
// to be read elsewhere, into other memory.
func (r *blockRead) readEach(ctx context.Context, todo []int) (first error) {
	ops, waits := make([]device.Op, len(todo)), make([]*Batch, len(todo))
	for k, i := range todo {
		u, c := &r.units[i], r.from[i]
		dev, at := r.g.Segment(u.Segments[c])
		ops[k] = device.Op{Kind: device.Read, Bufs: [][]byte{r.buf[u.Off : u.Off+layout.Padded(u.N)]}, Offset: at + int64(u.pages[c])*layout.PageSize}
		waits[k] = NewBatch(1)
		waits[k].Submit(dev, &ops[k])
	}
	late := false
	end := time.Now().Add(r.policy.Timeout)
	for k, i := range todo {
		u := &r.units[i]
		err := waits[k].Wait(ctx, max(0, time.Until(end)))
		if err == nil {
			toFront(r.buf[u.Off:min(u.Off+layout.PageSize, int64(len(r.buf)))], u.subs[r.from[i]])
			continue
		}
		if skep.KindOf(err) == skep.Deadline {
			late = true
			if ctx.Err() == nil && r.policy.Silent != nil {
				r.policy.Silent(u.Segments[r.from[i]])
			}
		}
		first = cmp.Or(first, err)
		r.tried[i] |= 1 << r.from[i]
		r.from[i] = -1
	}
	if late {
		fresh := device.AlignedBuffer(len(r.buf))
		for i := range r.units {
			if u := &r.units[i]; r.from[i] >= 0 {
				copy(fresh[u.Off:u.Off+u.N], r.buf[u.Off:u.Off+u.N])
			}
		}
		r.buf = fresh
	}
	return first
}

// toFront moves what begins at slot sub of a page to the page's start, and clears the rest.
func toFront(page []byte, sub uint8) {
	if sub > 0 {
		clear(page[copy(page, page[int(sub)*layout.SlotSize:]):])
	}
}

// distrust takes back the units that touch wrong bytes. With none of them known all are.
func (r *blockRead) distrust(wrong []layout.Span) {
	for i := range r.units {
		u := r.units[i].span()
		hit := len(wrong) == 0
		for _, s := range wrong {
			hit = hit || s.Off < u.End() && u.Off < s.End()
		}
		if !hit {
			continue
		}
		if r.policy.Wrong != nil {
			r.policy.Wrong(r.units[i].Segments[r.from[i]])
		}
		r.tried[i] |= 1 << r.from[i]
		r.from[i] = -1
	}
}
