package store

import (
	"context"

	"github.com/skepkv/skep/store/internal/locks"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/index"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/device"
	"github.com/skepkv/skep/store/internal/namespaces"
	"github.com/skepkv/skep/store/internal/segio"
	"github.com/skepkv/skep/store/internal/space"
	"github.com/skepkv/skep/store/segment"
)

// Repair: a block one copy of which is wrong is written again, whole, to a new place,
// by the same way the cleaner moves blocks: payload, log, flush, catalog, index. Nothing
// is mended in place: a write over what is there could be torn, and the same spot of a
// drive would be trusted again.

// repairs are blocks that wait for repair.
type repairs struct {
	mu   locks.Mutex[locks.Repairs]
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
	g := s.space.Pin(loc.Group)
	if g == nil {
		return blockMoved
	}
	defer s.space.Unpin(g)
	if e, ok := s.index.Resolve(fp); !ok || e.Location != loc.Pack() {
		return blockMoved
	}
	row, err := s.catalog.Block(ctx, loc, nil)
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
func (v *verifier) record(ctx context.Context, g *space.Group, fp index.Fingerprint, loc layout.Location, rec *segment.Record, mend bool) blockState {
	s := v.s
	ns := s.names.Of(rec.Instance)
	if ns == nil {
		return blockMoved
	}
	n := int(rec.Pages) * layout.PageSize
	bad, unread := 0, 0
	for i := range rec.Copies {
		if len(v.buf) < n {
			v.buf = device.AlignedBuffer(n)
		}
		only := s.space.WholePolicy(g)
		only.Only, only.Cost = 1<<i, nil // of whatever drive: every copy is to be right
		got, err := segio.ReadBlock(ctx, g, ns.Info.Shape, rec, v.buf[:n], only)
		v.read += int64(n)
		if segio.Lent(v.buf, got, err) {
			v.buf = nil
		}
		switch {
		case err == nil:
		case skep.KindOf(err) == skep.Damaged:
			bad++
		default:
			unread++
		}
	}
	if len(rec.Copies) == 0 {
		if _, err := segio.Verify(ns.Info.Shape, rec, nil); err != nil {
			bad++
		}
	}
	switch {
	case bad == 0 && unread == 0:
		return blockSound
	case bad == 0:
		return blockUnread
	}
	s.count.Damaged.Add(1)
	ev := s.blockEvent(ns, rec, skep.EventDamaged)
	ev.Reason = skep.Damaged
	s.badLog.Error(s.log, "damaged copy of a block", "key", rec.Key.Short(), "location", loc.String(), "bad_copies", bad, "of", len(rec.Copies))
	if len(v.buf) < n {
		v.buf = device.AlignedBuffer(n)
	}
	// Pieces of several bad copies may still make a whole block.
	got, err := s.space.ReadVerified(ctx, g, ns.Info.Shape, rec, v.buf[:n])
	if segio.Lent(v.buf, got, err) {
		v.buf = nil
	}
	v.read += int64(n)
	if err != nil && skep.KindOf(err) == skep.Damaged && mend {
		if s.forgetBlock(g, fp, loc, rec) {
			ev.Tier = skep.TierNone
		}
		s.tell(ev, rec.Instance, namespaces.Tag(rec.SaltTag)) // not before it is gone: whoever takes a snapshot before has the block, and this behind it
		return blockLost
	}
	s.tell(ev, rec.Instance, namespaces.Tag(rec.SaltTag))
	switch {
	case err == nil && !mend:
		return blockBadCopy
	case err == nil:
		err := s.rewriteBlock(ctx, ns, fp, loc, rec, got)
		if err == errNotThere {
			return blockMoved
		}
		if err != nil {
			v.buf = nil // writes may be under way
			s.log.Warn("damaged block not repaired; tried again when it is next read or scrubbed", "key", rec.Key.Short(), "error", err)
			return blockBadCopy
		}
		s.count.Repaired.Add(1)
		return blockRepaired
	case skep.KindOf(err) != skep.Damaged:
		return blockUnread
	}
	return blockLost
}

// errNotThere says that a block was deleted, put again or moved before it could be moved.
var errNotThere = &skep.Error{Op: "move block", Kind: skep.NotFound}

// rewriteBlock writes a block, whose right bytes are in buf, to a new place. errNotThere: there
// is nothing left to be written again.
func (s *Store) rewriteBlock(ctx context.Context, ns *namespaces.Namespace, fp index.Fingerprint, from layout.Location, rec *segment.Record, buf []byte) error {
	in := &incoming{fp: fp, rec: *rec, pages: int(rec.Pages), size: rec.Bytes(), moved: &move{fp: fp, from: from}, result: &skep.PutResult{}}
	// Its old record stays where it is: when this one goes, a tombstone must follow.
	in.rec.Flags |= segment.RecordMoved | segment.RecordSuccessor
	in.setParts(buf)
	st := space.User
	a, _, err := s.place(ctx, ns, st, []*incoming{in})
	if skep.KindOf(err) == skep.Full && s.space.KeptToSpare() {
		a, _, err = s.place(ctx, ns, space.Kept, []*incoming{in})
	}
	if err != nil {
		return err
	}
	s.start(ctx, ns, a)
	moved, err := s.cleaner.finish(ctx, ns, a)
	if err != nil {
		return err
	}
	if len(moved) == 0 {
		return errNotThere
	}
	s.log.Info("damaged block written again", "key", rec.Key.Short(), "from", from.String(), "to", in.loc.String())
	return nil
}

// forgetBlock takes a block out of the store no copy of which is right, and says whether it was there still.
func (s *Store) forgetBlock(g *space.Group, fp index.Fingerprint, loc layout.Location, rec *segment.Record) bool {
	s.changes.Lock()
	defer s.changes.Unlock()
	_, ok := s.index.Remove(fp, loc.Pack())
	if ok {
		s.unstored(rec.Instance, rec.Bytes())
		s.forgetCached(fp)
		s.deleteRow(loc)
		s.space.Suspect(g)
	}
	return ok
}
