package store

import (
	"context"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/device"
	"github.com/skepkv/skep/store/segment"
)

// readVerified reads a whole block into buf, which holds its stored pages and is aligned:
// every unit from the best drive that has it, and from another where bytes are wrong or
// a drive fails. On an error of kind Deadline a drive may still write to buf: the caller
// must let it go.
func (s *Store) readVerified(ctx context.Context, g *group, shape skep.Shape, rec *segment.Record, buf []byte) error {
	if len(rec.Copies) == 0 {
		return checkStored(shape, rec, nil)
	}
	w := wholeRead{s: s, g: g, units: unitsOf(rec.Copies, int64(len(buf)), len(g.drives)), buf: buf}
	w.from, w.tried = make([]int, len(w.units)), make([]uint8, len(w.units))
	for i := range w.from {
		w.from[i] = -1
	}
	var first error
	for {
		err := w.read(ctx)
		if err == nil {
			if err = checkStored(shape, rec, buf); err == nil {
				return nil
			}
			w.distrust(wrongBytes(shape, rec, buf))
		}
		if skep.KindOf(err) == skep.Deadline {
			return err
		}
		if err == errNoDrive || err == errNoCopy {
			if first != nil {
				err = first
			}
			return err
		}
		if first == nil {
			first = err
		}
	}
}

// wholeRead is a block being read, unit by unit.
type wholeRead struct {
	s     *Store
	g     *group
	units []unitPlace
	from  []int   // the copy a unit was read from; -1: not read
	tried []uint8 // copies that were no use, a bit each
	buf   []byte
}

// read reads every unit that is not read. Units whose drive failed are to be tried
// elsewhere.
func (w *wholeRead) read(ctx context.Context) error {
	var todo []int
	for i := range w.units {
		if w.from[i] >= 0 {
			continue
		}
		best, cost := -1, noPlace
		for c := range w.units[i].drives {
			if w.tried[i]&(1<<c) != 0 {
				continue
			}
			if n := (*troubles)(nil).costOf(w.g.drives[w.units[i].drives[c]]); n < cost {
				best, cost = c, n
			}
		}
		if best < 0 {
			if w.tried[i] == 1<<len(w.units[i].drives)-1 {
				return errNoCopy
			}
			return errNoDrive
		}
		w.from[i] = best
		todo = append(todo, i)
	}
	ops := make([]device.Op, len(todo))
	wait := newWaiter(len(todo))
	for k, i := range todo {
		u, c := &w.units[i], w.from[i]
		d := w.g.drives[u.drives[c]]
		n := layout.Padded(u.n)
		ops[k] = device.Op{Kind: device.Read, Bufs: [][]byte{w.buf[u.off : u.off+n]},
			Offset: d.segmentOffset(w.g.segments[u.drives[c]]) + int64(u.pages[c])*layout.PageSize}
		wait.submit(d, &ops[k])
	}
	err := wait.wait(ctx, w.s.options.OpTimeout)
	if skep.KindOf(err) == skep.Deadline && err != nil {
		return err
	}
	for _, i := range todo {
		u := &w.units[i]
		toFront(w.buf[u.off:min(u.off+layout.PageSize, int64(len(w.buf)))], u.subs[w.from[i]])
	}
	if err == nil {
		return nil
	}
	for k, i := range todo {
		if ops[k].Err != nil || ops[k].End == 0 { // failed, or not even taken
			w.tried[i] |= 1 << w.from[i]
			w.from[i] = -1
		}
	}
	return err
}

// distrust takes back the units that touch wrong bytes. With none of them known all are.
func (w *wholeRead) distrust(wrong []layout.Span) {
	for i := range w.units {
		u := layout.Span{Off: w.units[i].off, Len: w.units[i].n}
		hit := len(wrong) == 0
		for _, s := range wrong {
			hit = hit || s.Off < u.End() && u.Off < s.End()
		}
		if hit {
			w.tried[i] |= 1 << w.from[i]
			w.from[i] = -1
		}
	}
}

// wrongBytes are the ranges of a block's stored form that do not match their checksums.
func wrongBytes(shape skep.Shape, rec *segment.Record, buf []byte) []layout.Span {
	var out []layout.Span
	var off int64
	for i := range rec.Parts {
		p := &rec.Parts[i]
		if p.Inline != nil {
			continue
		}
		padded := int64(pagesOf(p.Size)) * layout.PageSize
		g, err := layout.GranulesOf(shape, p.Name, p.Size)
		if err != nil || g.N() != len(p.Sums) || off+padded > int64(len(buf)) {
			return nil
		}
		seed := segment.NewSeed(rec.Instance, rec.SaltTag, rec.Key, p.Name, rec.Version)
		for j, sum := range p.Sums {
			sp := g.Span(j)
			if seed.Sum(j, buf[off+sp.Off:off+sp.End()]) != sum {
				out = append(out, layout.Span{Off: off + sp.Off, Len: sp.Len})
			}
		}
		off += padded
	}
	return out
}
