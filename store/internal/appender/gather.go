package appender

import (
	"context"

	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/device"
	"github.com/skepkv/skep/store/internal/segio"
	"github.com/skepkv/skep/store/internal/space"
	"github.com/skepkv/skep/store/memory"
)

// driveOp is an operation and where it goes.
type driveOp struct {
	drive *space.Drive
	op    *device.Op
	of    *Append
	temp  []*memory.Buffer
	more  int // writes that op does beside its own
	// patient says that it may wait for memory while other operations hold some.
	patient bool
}

func (o *driveOp) free() {
	for _, b := range o.temp {
		b.Release()
	}
}

// submitAll hands ops to their drives, each drive's in one call.
func submitAll(w *segio.Batch, ops []driveOp) {
	byDrive := map[*space.Drive][]*device.Op{}
	for i := range ops {
		o := ops[i]
		o.op.Done = func(d *device.Op) {
			for range 1 + o.more { // a drive that refuses them is found out by as many as there were
				o.drive.Note(d)
			}
			o.free()
			w.EndOf(o.drive.Dev, d.Err)
		}
		byDrive[o.drive] = append(byDrive[o.drive], o.op)
	}
	for d, list := range byDrive {
		w.Owe(d.Dev, len(list))
		err := d.Dev.Submit(list)
		if err == nil {
			continue
		}
		for i := range ops { // none of them was taken
			if ops[i].drive == d {
				ops[i].free()
				w.EndOf(d.Dev, err)
			}
		}
	}
}

// mostMerged is the most bytes of a write that was made of several. From there on a drive's speed is that of its bytes,
// and a single buffer may be a registered one, which costs less.
const mostMerged = 64 * layout.PageSize

// merged makes one write of those that lie back to back on a drive, as small blocks of a chain do: a drive has done it
// sooner than as many as there are blocks, and it costs the processor less.
func merged(ops []driveOp) []driveOp {
	last := map[*space.Drive]int{} // in list
	list := ops[:0]
	for _, o := range ops {
		if i, ok := last[o.drive]; ok && list[i].take(&o) {
			continue
		}
		last[o.drive] = len(list)
		list = append(list, o)
	}
	clear(ops[len(list):])
	return list
}

// take adds what p writes to what o does, if it comes right behind that.
func (o *driveOp) take(p *driveOp) bool {
	n := o.op.Len()
	if o.op.Offset+int64(n) != p.op.Offset || n+p.op.Len() > mostMerged ||
		len(o.op.Bufs)+len(p.op.Bufs) > device.MaxBufs {
		return false
	}
	o.op.Bufs, o.temp = append(o.op.Bufs, p.op.Bufs...), append(o.temp, p.temp...)
	o.more++
	return true
}

// writesOf adds the writes of one copy of a block.
func (w *Appender) writesOf(ctx context.Context, a *Append, in *Block, l layout.Location, patient bool,
	ops []driveOp) ([]driveOp, error) {
	g := a.Group
	stored := int64(in.Pages) * layout.PageSize
	for _, e := range layout.Extents(nil, l, stored, len(g.Drives)) {
		o := driveOp{drive: g.Drives[e.Device], of: a, patient: patient}
		bufs, err := w.gather(ctx, in, e.Off, e.Len, &o)
		if err != nil {
			o.free()
			return ops, err
		}
		o.op = &device.Op{Kind: device.Write, Bufs: bufs,
			Offset: o.drive.SegmentOffset(g.Segments[e.Device]) + int64(e.Page)*layout.PageSize}
		ops = append(ops, o)
	}
	return ops, nil
}

// gather gives [off, off+n) of a block's stored form as buffers a drive takes: the
// caller's own memory where it is aligned, else a copy; a part's end is padded with
// zeros.
func (w *Appender) gather(ctx context.Context, in *Block, off, n int64, o *driveOp) (bufs [][]byte, err error) {
	temp := func(src []byte, padded int64) error {
		mem, err := w.tempFor(ctx, int(padded), o)
		if err != nil {
			return err
		}
		clear(mem[copy(mem, src):])
		bufs = append(bufs, mem)
		w.Count.Copied.Add(int64(len(src)))
		return nil
	}
	for _, p := range in.stored() {
		size := int64(len(p.Bytes))
		padded := int64(layout.PagesOf(size)) * layout.PageSize
		if off >= padded {
			off -= padded
			continue
		}
		for n > 0 && off < padded {
			take := min(n, padded-off)
			src := p.Bytes[off:min(off+take, size)]
			switch whole := int64(len(src)) &^ (layout.PageSize - 1); {
			case !device.AlignedAddress(src):
				take = min(take, maxTemp)
				src = src[:min(int64(len(src)), take)]
				if err := temp(src, take); err != nil {
					return nil, err
				}
			case whole > 0:
				take = whole
				bufs = append(bufs, src[:whole])
			default:
				if err := temp(src, take); err != nil {
					return nil, err
				}
			}
			off += take
			n -= take
		}
		off = 0
		if n == 0 {
			break
		}
	}
	return bufs, nil
}

// maxTemp is the largest single copy made for want of alignment.
const maxTemp = 1 << 20
