package store

import (
	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/segment"
)

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
//
// lost says that no copy has the right bytes.
func (s *Store) readFailed(ch *chunk, err error, lost bool) {
	f := ch.at
	if skep.KindOf(err) != skep.Damaged {
		return
	}
	s.damaged(ch)
	fp, loc, ns := f.fp, f.loc, ch.chain.ns
	if !lost {
		s.repairSoon(fp, loc)
		return
	}
	s.suspect(f.group)
	go0(&s.background, func() { // not on a worker: it commits to the catalog
		s.changes.Lock()
		defer s.changes.Unlock()
		if _, ok := s.index.Remove(fp, loc.Pack()); ok {
			ns.stored.Add(-f.size)
			s.forgetCached(fp, nil)
			s.deleteRow(locOf(loc))
		}
	})
}

// setParts points a block's parts into its stored form.
func (in *incoming) setParts(mem []byte) {
	in.parts = make([]skep.Part, len(in.rec.Parts))
	var off int64
	for i := range in.rec.Parts {
		p := &in.rec.Parts[i]
		in.parts[i].Name = p.Name
		if p.Inline != nil {
			in.parts[i].Bytes = p.Inline
			continue
		}
		in.parts[i].Bytes = mem[off : off+p.Size]
		off += int64(pagesOf(p.Size)) * layout.PageSize
	}
}
