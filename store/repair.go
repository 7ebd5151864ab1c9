package store

import (
	"context"
	"sync"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/index"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/device"
	"github.com/skepkv/skep/store/segment"
)

// Repair: a block one copy of which is wrong is written again, whole, to a new place,
// by the same way the cleaner moves blocks: payload, log, flush, catalog, index. Nothing
// is mended in place: a write over what is there could be torn, and the same spot of a
// drive would be trusted again.

// repairs are blocks that wait for repair.
type repairs struct {
	mu   sync.Mutex
	m    map[index.Fingerprint]layout.Location
	wake chan struct{}
}

// maxRepairs bounds those that wait. What does not fit is found again, by the next read
// or scrub.
const maxRepairs = 1024

// repairSoon asks for a block to be repaired behind the caller's back.
func (s *Store) repairSoon(fp index.Fingerprint, loc layout.Location) {
	if s.options.ReadOnly {
		return
	}
	r := &s.repairs
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.m) < maxRepairs {
		r.m[fp] = loc
	}
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

func (r *repairs) next() (fp index.Fingerprint, loc layout.Location, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for fp, loc = range r.m {
		delete(r.m, fp)
		return fp, loc, true
	}
	return fp, loc, false
}

// repair works off what waits, until Close.
func (s *Store) repair() {
	v := &verifier{s: s}
	for {
		select {
		case <-s.closing:
			return
		case <-s.repairs.wake:
		}
		for s.ctx.Err() == nil && s.failure.Load() == nil {
			fp, loc, ok := s.repairs.next()
			if !ok {
				break
			}
			v.block(s.ctx, fp, loc, true)
		}
	}
}

// blockState is what verifying one block found.
type blockState int

const (
	blockSound    blockState = iota
	blockBadCopy             // one copy is wrong, and the bytes are there
	blockRepaired            // the same, and it lies elsewhere now
	blockLost                // no copy has the right bytes: it is forgotten
	blockUnread              // a drive did not answer: nothing is known
	blockMoved               // it is not there any more
)

// verifier reads blocks whole, every copy of them.
type verifier struct {
	s    *Store
	buf  []byte
	read int64 // bytes so far
}

// block verifies the block at loc in every copy, and with mend repairs or forgets it.
func (v *verifier) block(ctx context.Context, fp index.Fingerprint, loc layout.Location, mend bool) blockState {
	s := v.s
	g := s.space.pin(loc.Group)
	if g == nil {
		return blockMoved
	}
	defer s.unpin(g)
	if e, ok := s.index.Resolve(fp); !ok || e.Location != loc.Pack() {
		return blockMoved
	}
	row, err := s.catalog.Block(ctx, locOf(loc), nil)
	if err != nil {
		if skep.KindOf(err) == skep.NotFound {
			return blockMoved
		}
		return blockUnread
	}
	var rec segment.Record
	if segment.DecodeRecord(row, &rec) != nil {
		return blockUnread
	}
	return v.record(ctx, g, fp, loc, &rec, mend)
}

// record is block with the record known and the group pinned.
func (v *verifier) record(ctx context.Context, g *group, fp index.Fingerprint, loc layout.Location, rec *segment.Record, mend bool) blockState {
	s := v.s
	ns := s.names.of(rec.Instance)
	if ns == nil {
		return blockMoved
	}
	n := int(rec.Pages) * layout.PageSize
	bad, unread := 0, 0
	for i := range rec.Copies {
		if len(v.buf) < n {
			v.buf = device.AlignedBuffer(n)
		}
		err := s.readCopy(ctx, g, rec.Copies[i], v.buf[:n])
		v.read += int64(n)
		if err == nil {
			err = checkStored(ns.info.Shape, rec, v.buf[:n])
		}
		switch k := skep.KindOf(err); {
		case err == nil:
		case k == skep.Damaged:
			bad++
		case k == skep.Deadline:
			v.buf = nil
			unread++
		default:
			unread++
		}
	}
	if len(rec.Copies) == 0 {
		if checkStored(ns.info.Shape, rec, nil) != nil {
			bad++
		}
	}
	switch {
	case bad == 0 && unread == 0:
		return blockSound
	case bad == 0:
		return blockUnread
	case len(rec.Copies) < 2 && unread > 0:
		return blockUnread
	}
	s.count.damaged.Add(1)
	ev := s.blockEvent(ns, rec, skep.EventDamaged)
	ev.Reason = skep.Damaged
	s.events.emit(ev)
	s.log.Error("damaged copy of a block", "key", rec.Key.Short(), "location", loc.String(), "bad_copies", bad, "of", len(rec.Copies))
	if len(v.buf) < n {
		v.buf = device.AlignedBuffer(n)
	}
	// Pieces of several bad copies may still make a whole block.
	err := s.readVerified(ctx, g, ns.info.Shape, rec, v.buf[:n])
	v.read += int64(n)
	switch {
	case err == nil && !mend:
		return blockBadCopy
	case err == nil:
		if err := s.rewriteBlock(ctx, ns, fp, loc, rec, v.buf[:n]); err != nil {
			v.buf = nil // writes may be under way
			s.log.Warn("damaged block not repaired; tried again when it is next read or scrubbed", "key", rec.Key.Short(), "error", err)
			return blockBadCopy
		}
		s.count.repaired.Add(1)
		return blockRepaired
	case skep.KindOf(err) == skep.Deadline:
		v.buf = nil
		return blockUnread
	case skep.KindOf(err) != skep.Damaged:
		return blockUnread
	}
	if mend {
		s.forgetBlock(g, fp, loc, rec)
	}
	return blockLost
}

// readCopy reads one whole copy of a block, from the drives it lies on.
func (s *Store) readCopy(ctx context.Context, g *group, p segment.Place, buf []byte) error {
	loc := layout.Location{Group: p.Group, Page: p.Page, Device: p.Device, Sub: p.Sub}
	extents := layout.Extents(nil, loc, int64(len(buf)), len(g.drives))
	w := newWaiter(len(extents))
	for _, e := range extents {
		d := g.drives[e.Device]
		w.submit(d, &device.Op{Kind: device.Read, Bufs: [][]byte{buf[e.Off : e.Off+e.Len]},
			Offset: d.segmentOffset(g.segments[e.Device]) + int64(e.Page)*layout.PageSize})
	}
	if err := w.wait(ctx, s.options.OpTimeout); err != nil {
		return err
	}
	toFront(buf[:min(len(buf), layout.PageSize)], p.Sub)
	return nil
}

// rewriteBlock writes a block, whose right bytes are in buf, to a new place.
func (s *Store) rewriteBlock(ctx context.Context, ns *namespace, fp index.Fingerprint, from layout.Location, rec *segment.Record, buf []byte) error {
	in := &incoming{fp: fp, rec: *rec, pages: int(rec.Pages), size: rec.Bytes(), moved: &move{fp: fp, from: from}, result: &skep.PutResult{}}
	// Its old record stays where it is: when this one goes, a tombstone must follow.
	in.rec.Flags |= segment.RecordMoved | segment.RecordSuccessor
	in.setParts(buf)
	st := streamUser
	a, _, err := s.place(ctx, ns, st, []*incoming{in})
	if skep.KindOf(err) == skep.Full && s.keptToSpare() {
		a, _, err = s.place(ctx, ns, streamKept, []*incoming{in})
	}
	if err != nil {
		return err
	}
	s.start(ctx, ns, a)
	if err := s.cleaner.finish(ctx, ns, a); err != nil {
		return err
	}
	s.log.Info("damaged block written again", "key", rec.Key.Short(), "from", from.String(), "to", in.loc.String())
	return nil
}

// forgetBlock takes a block out of the store no copy of which is right.
func (s *Store) forgetBlock(g *group, fp index.Fingerprint, loc layout.Location, rec *segment.Record) {
	s.changes.Lock()
	defer s.changes.Unlock()
	if _, ok := s.index.Remove(fp, loc.Pack()); ok {
		s.unstored(rec.Instance, rec.Bytes())
		s.forgetCached(fp, rec)
		s.deleteRow(locOf(loc))
		s.suspect(g)
	}
}
