package store

import (
	"context"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/device"
	"github.com/skepkv/skep/store/segment"
)

// readStored reads one whole copy of a block into buf, which holds its stored pages
// and is aligned. On an error of kind Deadline a drive may still write to buf: the
// caller must let it go.
func (s *Store) readStored(ctx context.Context, g *group, p segment.Place, buf []byte) error {
	loc := layout.Location{Group: p.Group, Page: p.Page, Device: p.Device, Sub: p.Sub}
	extents := layout.Extents(nil, loc, int64(len(buf)), len(g.drives))
	w := newWaiter(len(extents))
	for _, e := range extents {
		d := g.drives[e.Device]
		w.submit(d, &device.Op{Kind: device.Read, Bufs: [][]byte{buf[e.Off : e.Off+e.Len]},
			Offset: d.segmentOffset(g.segments[e.Device]) + int64(e.Page)*layout.PageSize})
	}
	return w.wait(ctx, s.options.OpTimeout)
}

// checkStored compares every granule of every part with the record.
func checkStored(shape skep.Shape, rec *segment.Record, buf []byte) error {
	var off int64
	for i := range rec.Parts {
		p := &rec.Parts[i]
		data := p.Inline
		if data == nil {
			padded := int64(pagesOf(p.Size)) * layout.PageSize
			if off+padded > int64(len(buf)) {
				return damagedRecord("stored bytes", len(buf))
			}
			data = buf[off : off+p.Size]
			off += padded
		}
		g, err := layout.GranulesOf(shape, p.Name, p.Size)
		if err != nil {
			return err
		}
		if g.N() != len(p.Sums) {
			return damagedRecord("granule checksums", len(p.Sums))
		}
		seed := segment.NewSeed(rec.Instance, rec.SaltTag, rec.Key, p.Name, rec.Version)
		for j, sum := range p.Sums {
			sp := g.Span(j)
			if seed.Sum(j, data[sp.Off:sp.End()]) != sum {
				return damagedRecord("granule of part "+p.Name, j)
			}
		}
	}
	return nil
}

func damagedRecord(field string, value any) error {
	return &skep.Error{Op: "verify", Kind: skep.Damaged, Field: field, Value: value}
}

// readVerified reads a block from the first copy whose bytes are right.
func (s *Store) readVerified(ctx context.Context, g *group, shape skep.Shape, rec *segment.Record, buf []byte) error {
	if len(rec.Copies) == 0 {
		return checkStored(shape, rec, nil)
	}
	var first error
	for _, p := range rec.Copies {
		err := s.readStored(ctx, g, p, buf)
		if err == nil {
			err = checkStored(shape, rec, buf)
		}
		if err == nil {
			return nil
		}
		if first == nil {
			first = err
		}
		if skep.KindOf(err) == skep.Deadline {
			return err // buf may still be written to
		}
	}
	return first
}

// damaged forgets a block no copy of which has the right bytes.
func (s *Store) damaged(ch *chunk) {
	f, c := ch.at, ch.chain
	s.count.damaged.Add(1)
	s.log.Error("damaged block", "key", c.Keys[f.block].Short(), "location", f.loc.String(), "drive", f.group.drives[int(f.loc.Device)%len(f.group.drives)].path)
	ev := skep.Event{Kind: skep.EventDamaged, Namespace: c.ns.info.ID, Key: c.Keys[f.block], Depth: f.block, Tier: skep.TierDevice, Reason: skep.Damaged}
	s.saltEvent(&ev, c.tag)
	s.events.emit(ev)
}

// readFailed takes note of a copy that could not be read or was wrong.
func (s *Store) readFailed(ch *chunk, err error) {
	f := ch.at
	if skep.KindOf(err) != skep.Damaged {
		return
	}
	s.damaged(ch)
	if ch.copyNo+1 < len(f.copies) {
		return
	}
	fp, loc := f.fp, f.loc
	go0(&s.background, func() { // not on a worker: it commits to the catalog
		s.changes.Lock()
		defer s.changes.Unlock()
		if _, ok := s.index.Remove(fp, loc.Pack()); ok {
			s.count.blockBytes.Add(-f.size)
			s.forgetCached(fp, nil)
			s.deleteRow(locOf(loc))
		}
	})
}
