package appender

import (
	"context"

	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/device"
	"github.com/skepkv/skep/store/internal/space"
	"github.com/skepkv/skep/store/memory"
)

// Small values share pages. A block of one page and at most layout.MaxPacked bytes takes
// as many 512-byte slots as it needs of a page that other blocks of the same append have
// the rest of. A page is written once, whole, by the append that placed its blocks, so
// they are of one namespace; and it is free when its group is, as any page is. Every read
// brings the whole page to memory of the store's own, and of that only the block's bytes
// go any further.

func (in *Block) packed() bool { return layout.Packed(in.Pages, in.Size) }

// packedWrites adds the writes of the pages that an append's packed blocks share: each is
// put together from all its blocks, and zero where there is none.
func (w *Appender) packedWrites(ctx context.Context, a *Append, patient bool, ops []driveOp) ([]driveOp, error) {
	type place struct {
		device uint8
		page   uint32
	}
	pages := map[place][]byte{}
	for _, in := range a.blocks {
		if !in.packed() || in.At.Device == space.InlineDevice {
			continue
		}
		for _, l := range in.copies {
			at := place{l.Device, l.Page}
			if pages[at] == nil {
				o := driveOp{drive: a.Group.Drives[l.Device], of: a, patient: patient}
				mem, err := w.tempFor(ctx, layout.PageSize, &o)
				if err != nil {
					return ops, err
				}
				clear(mem)
				o.op = &device.Op{Kind: device.Write, Bufs: [][]byte{mem},
					Offset: o.drive.SegmentOffset(a.Group.Segments[l.Device]) + int64(l.Page)*layout.PageSize}
				ops = append(ops, o)
				pages[at] = mem
			}
			w.Count.Copied.Add(int64(in.pack(pages[at][int(l.Sub)*layout.SlotSize:])))
		}
	}
	return ops, nil
}

// takesMost notes that a takes n more bytes, and says whether that is more than half of all I/O buffers, with what it
// has. Then it takes other memory: it gives none back before it has all, and would come to wait for itself.
func (w *Appender) takesMost(a *Append, lens ...int) bool {
	for _, n := range lens {
		a.taken += int64(layout.PagesOf(int64(n))) * layout.PageSize // buffers are of whole pages
	}
	return a.taken > w.IOBytes/2
}

// tempFor gives memory of whole pages, an I/O buffer mostly, that goes back when o has ended. memory.ErrScarce: there
// is none now, and o does not wait for any.
func (w *Appender) tempFor(ctx context.Context, n int, o *driveOp) ([]byte, error) {
	if w.takesMost(o.of, n) {
		return device.AlignedBuffer(n), nil
	}
	b, err := w.Arena.TryAlloc(n, memory.BudgetIO)
	if err != nil && !o.patient {
		return nil, memory.ErrScarce
	}
	if err != nil {
		b, err = w.Arena.Alloc(ctx, n, memory.BudgetIO)
	}
	if err != nil {
		return nil, noMemory("put", err)
	}
	o.temp = append(o.temp, b)
	return b.Bytes()[:n], nil
}

// pack copies the bytes of a packed block to its slots, and says how many. What its parts
// have beyond its size is padding.
func (in *Block) pack(slots []byte) int {
	n := 0
	for _, p := range in.stored() {
		n += copy(slots[n:in.Size], p.Bytes)
	}
	return n
}
