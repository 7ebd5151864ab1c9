package store

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/internal/locks"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/catalog"
	"github.com/skepkv/skep/store/internal/health"
	"github.com/skepkv/skep/store/internal/namespaces"
	"github.com/skepkv/skep/store/internal/segio"
	"github.com/skepkv/skep/store/internal/space"
	"github.com/skepkv/skep/store/segment"
)

// What is left on the devices of groups and blocks that are gone.
//
// The catalog says what is stored; the devices' logs say so too, for the day the catalog
// is lost. A group that was cleaned is therefore marked as freed in its headers before
// its segments are reused, and a record that no row speaks for any more, in a group that
// goes on, makes that group stale: until a tombstone takes care of it, a deletion of
// something that is not there must leave one all the same.

// setStale notes that g's log has records of blocks that are gone without a tombstone.
func (s *Store) setStale(g *group) {
	if g.stale.CompareAndSwap(false, true) {
		s.stale.Add(1)
	}
}

// clearStale notes that it has none any more.
func (s *Store) clearStale(g *group) {
	g.noted.Store(false)
	if g.stale.CompareAndSwap(true, false) {
		s.stale.Add(-1)
	}
}

// freed marks g's headers as freed, behind the caller's back, and says whether they are.
// One drive that took the mark is enough for a rebuild; all are tried. While none of its
// drives answers nobody can be told: its row stays, or it would be taken for a group newer
// than the catalog once one of them is back.
func (s *Store) freed(g *group) bool {
	if g.life.State() == space.Freed {
		return true
	}
	if s.untold(g) {
		return false
	}
	if g.telling.CompareAndSwap(false, true) {
		s.background.Go(func() {
			defer g.telling.Store(false)
			err := s.markFreed(s.ctx, g)
			if err != nil {
				if s.ctx.Err() == nil {
					s.log.Warn("segments of a cleaned group cannot be reused yet", "group", g.num, "error", err)
				}
				return
			}
			b := s.catalog.NewBatch()
			b.DeleteGroup(g.num) // kept until now: checkBehind
			if err := s.catalog.Commit(s.ctx, b, false); err != nil {
				s.log.Warn("row of a freed group not deleted", "group", g.num, "error", err)
			}
			s.clearStale(g)
			s.space.mu.Lock()
			g.life.Become(space.Freed)
			s.space.mu.Unlock()
			s.cleaner.kick()
		})
	}
	return false
}

// headerOf is the header of g's segment at position i.
func (s *Store) headerOf(g *group, i int) segment.Header {
	h := segment.Header{
		Store: s.id, Device: g.drives[i].id, Group: g.num, Generation: g.generation, Segment: g.segments[i], Position: i,
		SegmentBytes: s.segBytes, Copies: max(1, g.row.Copies), Seq: g.generation,
	}
	for j, d := range g.drives {
		h.Devices = append(h.Devices, segment.Slot{Device: d.index, Segment: g.segments[j]})
	}
	return h
}

func (s *Store) markFreed(ctx context.Context, g *group) error {
	if s.untold(g) {
		return &skep.Error{Op: "free group", Kind: skep.Missing, Field: "drives that answer", Value: 0, Limit: 1}
	}
	g.heading.Lock()
	defer g.heading.Unlock()
	var first error
	done := 0
	for i, d := range g.drives {
		if d.away() {
			continue
		}
		h := s.headerOf(g, i)
		err := s.writeFreed(ctx, d, &h)
		if err == nil {
			done++
		} else if first == nil {
			first = err
		}
	}
	if done > 0 {
		return nil
	}
	return first // nil when all its drives were removed: there is nobody to tell
}

// untold says that no drive of g can be told anything now, and one may be back later.
func (s *Store) untold(g *group) bool {
	back := false
	for _, d := range g.drives {
		if !d.away() {
			return false
		}
		back = back || !d.removed.Load()
	}
	return back
}

// away says that a drive is not there, or does not answer any more, or is somebody else's.
func (d *drive) away() bool {
	return d.removed.Load() || d.absent != nil || d.condition() == health.Dead
}

// writeFreed overwrites a segment's header with the same, freed, flushes it and reads it again: the catalog is about
// to forget the group, and a header that a drive only said to have written would call the catalog older than the
// devices.
func (s *Store) writeFreed(ctx context.Context, d *drive, h *segment.Header) error {
	h.Flags |= segment.HeaderFreed
	if err := s.writeHeader(ctx, d, h); err != nil {
		return err
	}
	err := error(&skep.Error{Op: "free group", Kind: skep.DeviceFailed, Field: "header of segment " + itoa(int(h.Segment)) + " of " + d.path,
		Value: "as it was before it was written", Limit: "marked as freed"})
	s.readHeaders(ctx, d, []uint32{h.Segment}, func(_ uint32, o *segment.Header, wrong error) {
		if wrong != nil {
			err = wrong
		} else if o.Group == h.Group && o.Flags&segment.HeaderFreed != 0 {
			err = nil
		}
	})
	return err
}

// rewriteHeader writes a header of g again, unless the group is being freed: who holds on to it may
// look at it until then, and a header that is not marked as freed would tell the next open of a group
// that the catalog has lost.
func (s *Store) rewriteHeader(ctx context.Context, g *group, i int) (gone bool, err error) {
	g.heading.Lock()
	defer g.heading.Unlock()
	if g.life.State() >= space.Emptied {
		return true, nil
	}
	h := s.headerOf(g, i)
	return false, s.writeHeader(ctx, g.drives[i], &h)
}

// writeHeader writes a segment's header and flushes it. Who is answered with an error before the drive has answered
// leaves the segment to the write: headWrite.
func (s *Store) writeHeader(ctx context.Context, d *drive, h *segment.Header) error {
	op, err := segio.WriteHeader(d.io(), h)
	if err != nil {
		return err
	}
	w, err := s.headOf(ctx, d, h.Segment)
	if err != nil {
		return err
	}
	since := failedFlushes([]*drive{d})
	d.submit(w, op)
	if err := w.Wait(ctx, s.options.OpTimeout); err != nil {
		return err
	}
	return s.flushWritten(ctx, []*drive{d}, since)
}

// headWrite is the write of a segment's header, from before the drive is given it until it has come back, however long
// ago its caller was answered. The segment is its own for as long: no other write of the header is given to the drive,
// which would choose the last of them, and no group is opened there, whose header it would land on.
type headWrite struct {
	*segio.Batch
	free bool // the segment is free once it has come back; guarded by space.mu
}

// headOf waits until the drive has no write of a segment's header, and gives the waiter of the next, which has the
// segment from here on.
func (s *Store) headOf(ctx context.Context, d *drive, seg uint32) (*segio.Batch, error) {
	w := &headWrite{Batch: segio.NewBatch(1)}
	for {
		s.space.mu.Lock()
		before := d.heads[seg]
		if before == nil {
			break
		}
		s.space.mu.Unlock()
		if err := before.Wait(ctx, s.options.OpTimeout); skep.KindOf(err) == skep.Deadline {
			return nil, err
		}
	}
	defer s.space.mu.Unlock()
	if i := slices.Index(d.free, seg); i >= 0 {
		d.free, w.free = slices.Delete(d.free, i, i+1), true
	}
	if d.heads == nil {
		d.heads = map[uint32]*headWrite{}
	}
	d.heads[seg] = w
	w.After(func() { s.headBack(d, seg) })
	return w.Batch, nil
}

// headBack is called when the write of a segment's header has come back.
func (s *Store) headBack(d *drive, seg uint32) {
	sp := &s.space
	sp.mu.Lock()
	defer sp.mu.Unlock()
	free := d.heads[seg].free
	delete(d.heads, seg)
	if free {
		d.giveLocked(seg)
		close(sp.mu.freed)
		sp.mu.freed = make(chan struct{})
	}
}

// giveLocked makes a segment free: at once, or when the write of its header, and those its group was let go of
// without, have come back. REQUIRES: space.mu.
func (d *drive) giveLocked(seg uint32) {
	if w := d.heads[seg]; w != nil {
		w.free = true
		return
	}
	if w := d.late[seg]; w != nil {
		w.free = true
		return
	}
	d.free = append(d.free, seg)
}

// readHeaders reads the headers of the given segments of a drive, many at once: segio.ReadHeaders.
func (s *Store) readHeaders(ctx context.Context, d *drive, segments []uint32, visit func(seg uint32, h *segment.Header, err error)) {
	segio.ReadHeaders(ctx, d.io(), s.id, segments, s.options.OpTimeout, visit)
}

// freeLeftovers marks as freed what the last run did not get to: the headers of groups
// whose rows say so.
func (s *Store) freeLeftovers(ctx context.Context, b *catalog.Batch) {
	var wg sync.WaitGroup
	var failed atomic.Bool
	for _, d := range s.allDrives() {
		if d.away() {
			failed.Store(failed.Load() || !d.removed.Load())
			continue
		}
		wg.Go(func() {
			var mu sync.Mutex
			var left []segment.Header
			s.readHeaders(ctx, d, d.free, func(_ uint32, h *segment.Header, err error) {
				if k := skep.KindOf(err); k == skep.DeviceFailed || k == skep.Deadline {
					failed.Store(true) // it may be one of them
				}
				if err == nil && h.Flags&segment.HeaderFreed == 0 && s.leftFree[h.Group] {
					mu.Lock()
					left = append(left, *h)
					mu.Unlock()
				}
			})
			for i := range left {
				if err := s.writeFreed(ctx, d, &left[i]); err != nil {
					s.log.Warn("header of a group that is gone not marked as freed", "device", d.path, "segment", left[i].Segment, "error", err)
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
	for num := range s.leftFree {
		b.DeleteGroup(num)
	}
}

// mendHeaders writes the headers that a crash, or an error after the row's commit, kept from
// the drives of groups that were just being opened. Where it cannot, a scrub does.
func (s *Store) mendHeaders(ctx context.Context) {
	for _, g := range s.wasOpen {
		for i, d := range g.drives {
			if d.away() {
				continue
			}
			want, whole := s.headerOf(g, i), false
			s.readHeaders(ctx, d, g.segments[i:i+1], func(_ uint32, h *segment.Header, err error) {
				whole = err == nil && h.Group == want.Group && h.Generation == want.Generation
			})
			if whole {
				continue
			}
			if err := s.writeHeader(ctx, d, &want); err != nil {
				s.log.Warn("header of a group not written again", "device", d.path, "segment", want.Segment, "error", err)
			}
		}
	}
}

// recordID names one record of a block.
type recordID struct {
	key skep.Key
	tag segment.SaltTag
	ins uint32
	seq uint64
}

// stray is the tombstone of one such record. Where the block is stored in an older
// version, or in another copy of this one, only this record is meant: it was never
// committed. Else whatever is older is gone as well.
func (s *Store) stray(h *segment.Head) segment.Tombstone {
	t := segment.Tombstone{Seq: s.root.Next(), Covers: h.Written(), Instance: h.Instance, SaltTag: h.SaltTag, Key: h.Key}
	fp := s.names.Fingerprint(h.Instance, namespaces.Tag(h.SaltTag), h.Key)
	exact := s.rivals.Before(fp, h.Written()) < h.Written()
	if e, ok := s.index.Resolve(fp); ok && e.Location != 0 {
		// Not as it was a moment ago: a block that is being moved keeps its version.
		rec, err := s.recordNow(fp, e)
		exact = exact || err != errGone && (err != nil || h.Written() >= rec.Written())
	}
	if exact {
		t.Covers, t.Exact = h.Seq, true
	}
	return t
}

// strays are tombstones for the records in g's log that no row speaks for: of
// appends that were never committed, of blocks a crash or a drive damaged. scan visits the log.
func (s *Store) strays(ctx context.Context, g *group, scan scanner) (list []segment.Tombstone, err error) {
	rows := map[recordID]bool{}
	err = s.catalog.ScanGroup(ctx, g.num, func(_ layout.Location, row []byte) error {
		if h, err := segment.DecodeHead(row); err == nil {
			rows[recordID{h.Key, h.SaltTag, h.Instance, h.Seq}] = true
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	err = scan(ctx, g, func(a *segment.Append, e segment.Entry) error {
		s.root.Pass(a.Seq) // of an append that was never committed no row tells
		if e.Kind != segment.KindBlock {
			return nil
		}
		h, err := segment.PeekHead(e.Body)
		if err != nil {
			return nil
		}
		id := recordID{h.Key, h.SaltTag, h.Instance, h.Seq}
		if rows[id] {
			return nil
		}
		rows[id] = true // its copies too
		if !s.names.Dead(h.Instance, namespaces.Tag(h.SaltTag)) {
			list = append(list, s.stray(&h))
		}
		return nil
	})
	return list, err
}

// reconcile makes the devices' logs say what the catalog says of the given groups, which
// nobody writes to, by intents in b, to be carried out after its commit.
func (s *Store) reconcile(ctx context.Context, b *catalog.Batch, groups []*group) (out []catalog.Intent, err error) {
	for _, g := range groups {
		list, err := s.strays(ctx, g, s.scanWholeGroup)
		if err != nil {
			if ctx.Err() != nil {
				return nil, err
			}
			s.log.Warn("log not compared with the catalog", "group", g.num, "error", err)
			state := s.groupRow(g)
			state.State = catalog.GroupCleaning
			b.PutGroup(&state)
			continue
		}
		more, err := s.intendTombstones(b, list)
		if err != nil {
			return nil, err
		}
		out = append(out, more...)
		s.space.mu.Lock()
		g.row.State = catalog.GroupSealed
		state := g.row
		s.space.mu.Unlock()
		b.PutGroup(&state)
		s.clearStale(g)
	}
	return out, nil
}

// groupRow is g's row as it is now.
func (s *Store) groupRow(g *group) catalog.GroupState {
	s.space.mu.Lock()
	defer s.space.mu.Unlock()
	return g.row
}

// reconcileStale compares one sealed group, of those that failures made stale, with the
// catalog. The cleaner calls it, and Close beside the cleaner: nobody else frees the group
// meanwhile, or a row that says that it is sealed would come after the one that says it is gone.
func (s *Store) reconcileStale(ctx context.Context) {
	g := s.suspects.next(s)
	if g == nil {
		return
	}
	defer s.space.release(g)
	b := s.catalog.NewBatch()
	list, err := s.reconcile(ctx, b, []*group{g})
	if err == nil {
		err = s.saveRoot(ctx, b, true)
	}
	if err != nil {
		if ctx.Err() == nil {
			s.log.Warn("stale group stays so", "group", g.num, "error", err)
		}
		s.setStale(g)
		return
	}
	s.carryOutWithin(ctx, 0, list)
}

// suspects are groups that failures made stale.
type suspects struct {
	mu   locks.Mutex[locks.Suspects]
	list []*group
}

// suspect notes that g has records that were not committed, or are damaged.
func (s *Store) suspect(g *group) {
	s.setStale(g)
	s.suspects.mu.Lock()
	s.suspects.list = append(s.suspects.list, g)
	s.suspects.mu.Unlock()
}

// next claims a group that no drive may write to, not even one that it could be let go of without; nil when there is
// none.
func (l *suspects) next(s *Store) *group {
	l.mu.Lock()
	defer l.mu.Unlock()
	s.space.mu.Lock()
	defer s.space.mu.Unlock()
	rest := l.list[:0]
	var found *group
	for _, g := range l.list {
		switch {
		case !s.space.mu.groups.Has(g) || !g.stale.Load(): // gone, or done
		case found == nil && g.life.State() == space.Sealed && g.quiet() && g.answers():
			found = g
			g.life.Take(space.Claim{By: space.Mender})
		default:
			rest = append(rest, g)
		}
	}
	l.list = rest
	return found
}

// quiet says that nothing of a group is under way, not even what it was let go of without. REQUIRES: space.mu.
func (g *group) quiet() bool { return g.pending == 0 && len(g.writing) == 0 }

// answers says that all logs of a group can be read, but for those of drives that were taken out of the store.
func (g *group) answers() bool {
	return !slices.ContainsFunc(g.drives, func(d *drive) bool { return d.away() && !d.removed.Load() })
}

// saveStale notes in b which groups are stale, for the next open. REQUIRES: nothing runs.
func (s *Store) saveStale(b *catalog.Batch) {
	s.space.mu.Lock()
	defer s.space.mu.Unlock()
	for g := range s.space.mu.groups.Each() {
		if g.stale.Load() {
			state := g.row
			state.State = catalog.GroupCleaning
			b.PutGroup(&state)
		}
	}
}

// settleDevices has the devices told, before an orderly end, what only the catalog knows.
// What it does not get to is left to the next open.
func (s *Store) settleDevices(ctx context.Context) {
	s.suspects.mu.Lock()
	list := slices.Clone(s.suspects.list)
	s.suspects.mu.Unlock()
	s.space.mu.Lock()
	for _, g := range list {
		s.sealLocked(g) // nothing is put any more
	}
	s.space.mu.Unlock()
	for range list {
		if ctx.Err() != nil {
			return
		}
		s.reconcileStale(ctx)
	}
	for s.intents.underway() && ctx.Err() == nil { // the cleaner is at it: what it cannot do comes back
		time.Sleep(time.Millisecond)
	}
	defer s.intents.tried()
	if left := s.intents.take(); len(left) > 0 {
		s.carryOutWithin(ctx, 0, left)
	}
}

// place finds room for survivors. Groups that were cleaned before may still wait for the
// marks in their headers, and nobody but the cleaner takes them back: so it looks for them
// while it waits. A spare that is being made has segments too, and is there soon. A catalog
// that refuses the row of a group is not waited for.
func (c *cleaner) place(ctx context.Context, ns *namespaces.Namespace, blocks []*incoming) (*appending, int, error) {
	deadline := time.Now().Add(c.s.options.SpaceTimeout)
	for {
		a, n, err := c.s.placeBy(ctx, ns, streamKept, blocks, time.Now())
		if err != errFull || len(c.drain) == 0 && !c.s.sparing() || time.Now().After(deadline) {
			return a, n, err
		}
		select {
		case <-time.After(2 * time.Millisecond):
		case <-ctx.Done():
			return a, n, err
		}
		c.release()
	}
}
