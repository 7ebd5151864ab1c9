package store

import (
	"context"
	"time"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/index"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/catalog"
	"github.com/skepkv/skep/store/device"
	"github.com/skepkv/skep/store/internal/namespaces"
	"github.com/skepkv/skep/store/internal/segio"
	"github.com/skepkv/skep/store/internal/space"
	"github.com/skepkv/skep/store/memory"
	"github.com/skepkv/skep/store/segment"
)

// appending is one append to a stripe group: blocks placed together, whose records
// share log pages and a catalog batch.
//
//	place    cells and log pages are taken; nothing is written yet
//	start    payload writes go out, checksums are computed meanwhile, then the log
//	finish   all writes are done (and flushed, for durable blocks), the catalog has
//	         the records, the index shows the blocks, the caller is told
type appending struct {
	g        *group
	seq      uint64
	blocks   []*incoming
	bytes    int64
	logs     []logPlace // one a copy, on different devices
	logPages int
	writes   *segio.Batch
	err      error            // what kept it from starting
	bufs     []*memory.Buffer // what sealed blocks, and those in memory others can write, are written from
	loans    []*loan          // what the others are written from
	flushes  uint64           // that had failed on its drives before it was written
}

type logPlace struct {
	device int    // index in the group's list
	page   uint32 // lowest of the pages
}

// place takes cells for as many leading blocks as go into one append. On an error
// it says of how many blocks it speaks.
func (s *Store) place(ctx context.Context, ns *namespaces.Namespace, st stream, blocks []*incoming) (*appending, int, error) {
	return s.placeBy(ctx, ns, st, blocks, time.Now().Add(s.options.SpaceTimeout))
}

// placeBy is place for who does not wait for room longer than until deadline.
func (s *Store) placeBy(ctx context.Context, ns *namespaces.Namespace, st stream, blocks []*incoming, deadline time.Time) (*appending, int, error) {
	for {
		g, err := s.current(ctx, st, deadline)
		if err != nil {
			return nil, len(blocks), err
		}
		a, n, fresh := s.placeIn(g, ns, blocks)
		if n > 0 {
			return a, n, nil
		}
		if fresh { // not even an empty group has room for the first block
			return nil, 1, errFull
		}
	}
}

// current is the open group of st, opened when there is none: then cleaning may
// have to make room first, for which it waits until deadline.
func (s *Store) current(ctx context.Context, st stream, deadline time.Time) (*group, error) {
	sp := &s.space
	patience := s.cleaner.patience()
	for {
		sp.mu.Lock()
		g, freed := sp.mu.open[st], sp.mu.freed
		sp.mu.Unlock()
		if g != nil {
			return g, nil
		}
		if err := s.take(ctx, sp.opening, "put", "group being opened"); err != nil {
			if skep.KindOf(err) == skep.Deadline && ctx.Err() == nil { // drives that others wait for
				err = &skep.Error{Op: "put", Kind: skep.DeviceFailed, Field: "group", Value: "being opened for too long", Err: err}
			}
			return nil, err
		}
		sp.mu.Lock()
		g = sp.mu.open[st]
		sp.mu.Unlock()
		var err error
		if g == nil {
			g, err = s.openGroup(ctx, st)
		}
		sp.opening.give()
		if err == nil {
			s.cleaner.kick()
			return g, nil
		}
		if err != errFull {
			return nil, err
		}
		if st != streamKept { // the cleaner does not wake itself, for ever
			s.cleaner.kick()
		}
		if !time.Now().Before(deadline) || patience.enough() {
			return nil, errFull
		}
		t := time.NewTimer(spaceWait)
		select {
		case <-freed:
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return nil, &skep.Error{Op: "put", Kind: skep.Deadline, Err: ctx.Err()}
		case <-s.closing:
			t.Stop()
			return nil, errClosed
		}
		t.Stop()
	}
}

// placeIn takes cells in g. fresh says that g was empty, so that no group will do.
func (s *Store) placeIn(g *group, ns *namespaces.Namespace, blocks []*incoming) (a *appending, n int, fresh bool) {
	copies := max(1, ns.Info.Copies)
	entries := 0
	sp := &s.space
	sp.mu.Lock()
	defer sp.mu.Unlock()
	f := g.filler
	if g.life.State() != space.Open {
		return nil, 0, false
	}
	if copies > len(g.drives) {
		if s.takingLocked() <= len(g.drives) {
			return nil, 0, true
		}
		s.sealLocked(g) // it was opened while some took nothing new: the next one has them
		return nil, 0, false
	}
	st := f.Stats()
	fresh = st.Payload+st.Log == 0 && g.inline == 0
	a = &appending{g: g}
	logged := markEntry
	f.Mark() // small blocks share pages with those of this append only
	for n < len(blocks) && n < appendBlocks && (n == 0 || a.bytes+blocks[n].size <= appendBytes) {
		in := blocks[n]
		mark := f.Point()
		if !s.placeBlockLocked(g, ns, in, copies) {
			f.Rollback(mark)
			break
		}
		in.rec.Copies = nil
		for _, l := range in.copies {
			if l.Device == inlineDevice {
				break
			}
			in.rec.Copies = append(in.rec.Copies, l)
		}
		length := in.rec.Len() + in.sealLen()
		placed := weight(in.pages, in.size, copies, length)
		if in.inlined() && in.moved == nil && in.rec.Parts[0].Inline == nil {
			length += int(in.size)
		}
		length = segment.EntrySize(length)
		if in.replaces != nil {
			length += tombstoneEntry
		}
		pages := segment.AppendPages(logged + length)
		if !s.takeLogLocked(g, a, pages, copies) {
			f.Rollback(mark)
			break
		}
		logged += length
		if in.replaces != nil {
			entries++
		}
		g.placed += placed
		g.copied.add(layout.SlotsOf(in.pages, in.size), len(in.rec.Copies))
		a.bytes += in.size
		a.blocks = append(a.blocks, in)
		n++
	}
	if n == 0 {
		g.full = true
		s.sealLocked(g)
		s.recordSealedLocked(g)
		return nil, 0, fresh
	}
	g.entries += entries
	g.pending += 2 // until no drive writes for it any more, and until it is published
	a.seq = s.root.Begin()
	return a, n, false
}

// placeBlockLocked takes the cells of one block and its copies. REQUIRES: space.mu.
func (s *Store) placeBlockLocked(g *group, ns *namespaces.Namespace, in *incoming, copies int) bool {
	n := len(g.drives)
	in.copies = in.copies[:0]
	if in.pages == 0 {
		if g.inline >= 1<<20 {
			return false
		}
		g.inline++
		in.loc = layout.Location{Group: g.num, Page: uint32(g.inline - 1), Device: inlineDevice}
		in.copies = append(in.copies, in.loc)
		return true
	}
	if in.packed() {
		return s.placePackedLocked(g, ns, in, copies)
	}
	start := s.startLocked(ns, in, n)
	loc, ok := g.filler.Place(in.pages, start)
	if !ok {
		return false
	}
	loc.Group = g.num
	s.lastStart = lastStart{fp: in.fp, device: int(loc.Device), set: true}
	in.loc = loc
	in.copies = append(in.copies, loc)
	for c := 1; c < copies; c++ {
		l, ok := g.filler.PlaceCopy(loc, in.pages, layout.Rotation(g.num, c, n), in.copies[1:]...)
		if !ok {
			return false
		}
		l.Group = g.num
		in.copies = append(in.copies, l)
	}
	return true
}

// inlineDevice marks a location without cells: the value is in the record.
const inlineDevice = segment.InlineDevice

// inlineSize is the largest block that lives in its record, in bytes.
const inlineSize = 512

// inlined says whether a block is small enough to live in its record.
func (in *incoming) inlined() bool {
	return in.size <= inlineSize && len(in.rec.Parts) == 1
}

// startLocked is the device a block begins on: its parent's next by SWARM eq. 7, or
// the running pointer's for a chain's first block, an orphan and an unchained one.
// REQUIRES: space.mu.
func (s *Store) startLocked(ns *namespaces.Namespace, in *incoming, n int) int {
	units, unitPages := layout.UnitFor(in.pages, n)
	layer := 1
	if ns.Info.Shape.Kind != skep.Opaque {
		layer = layout.LayerUnits(ns.Geometry.LayerBytes(), unitPages)
	}
	if in.moved != nil && !in.moved.anew && in.moved.from.Device != inlineDevice {
		return int(in.moved.from.Device) % n
	}
	if in.hasParent {
		if e, ok := s.index.Resolve(in.parentFP); ok && e.Depth+1 == in.rec.Depth {
			if l := layout.Unpack(e.Location); l.Device != inlineDevice && int(l.Device) < n {
				base := layout.Base(int(l.Device), int(e.Depth), units, n, layer)
				return layout.Start(base, int(in.rec.Depth), units, n, layer)
			}
		}
		if last := &s.lastStart; last.set && last.fp == in.parentFP {
			base := layout.Base(last.device%n, int(in.rec.Depth)-1, units, n, layer)
			return layout.Start(base, int(in.rec.Depth), units, n, layer)
		}
	}
	root := s.space.mu.root
	s.space.mu.root = (root + units) % (1 << 30)
	return root % n
}

// takeLogLocked grows the append's log reservation to want pages. REQUIRES: space.mu.
func (s *Store) takeLogLocked(g *group, a *appending, want, copies int) bool {
	if a.logs == nil {
		a.logs = make([]logPlace, copies)
		for c := range a.logs {
			a.logs[c].device = g.shortestLog(a.logs[:c])
		}
	}
	more := want - a.logPages
	if more <= 0 {
		return true
	}
	var pages [skep.MaxCopies]uint32
	for c := range a.logs {
		p, ok := g.filler.Log(a.logs[c].device, more)
		if !ok {
			if a.logPages == 0 {
				a.logs = nil
			}
			return false // the caller rolls the filler back; what was taken before stands
		}
		pages[c] = p
	}
	for c := range a.logs {
		a.logs[c].page = pages[c]
		g.logged[a.logs[c].device] += more
	}
	a.logPages = want
	return true
}

// shortestLog is the device with the shortest log that none of others is on: rows end
// where the longest log begins, so logs grow evenly.
func (g *group) shortestLog(others []logPlace) int {
	best := -1
next:
	for d := range g.drives {
		for _, o := range others {
			if o.device == d {
				continue next
			}
		}
		if best < 0 || g.logged[d] < g.logged[best] {
			best = d
		}
	}
	return best
}

// start sends out an append's writes. Failures show in finish.
func (s *Store) start(ctx context.Context, ns *namespaces.Namespace, a *appending) {
	for _, in := range a.blocks {
		in.rec.Seq = a.seq
		if in.moved == nil && !in.accepted {
			in.rec.Version = uint32(a.seq)
		}
	}
	a.flushes = failedFlushes(a.g.drives)
	ops, err := s.appendWrites(ctx, ns, a, false)
	if err == memory.ErrScarce {
		err = s.scarce.Wait(ctx, s.options.OpTimeout, func() (err error) {
			ops, err = s.appendWrites(ctx, ns, a, true)
			return err
		})
	}
	a.err = err
	total := len(ops) + len(a.logs)
	if a.err != nil {
		total = 0
	}
	if a.err == nil {
		a.takeLoans()
	}
	bufs, loans := a.bufs, a.loans
	s.writes(a, total, a.bytes, func() {
		memory.ReleaseAll(bufs)
		backAll(loans)
	})
	if a.err != nil {
		return
	}
	submitAll(a.writes, ops)
	for _, in := range a.blocks {
		if in.moved != nil || in.rec.Sealed != nil {
			continue // its record is complete
		}
		for i := range in.rec.Parts {
			if !in.accepted { // those have their checksums
				s.sum(ns, in, i)
			}
		}
		if in.loc.Device == inlineDevice {
			in.rec.Parts[0].Inline = append([]byte{}, in.parts[0].Bytes...)
		}
	}
	var w segment.LogWriter
	if err := s.logBlocks(ns, a, &w); err != nil && a.err == nil {
		a.err = err
	}
	s.submitLog(a, &w)
}

// appendWrites makes the payload writes of an append. memory.ErrScarce: there is no memory for
// copies now, and it is not to be waited for. On an error it holds none.
func (s *Store) appendWrites(ctx context.Context, ns *namespaces.Namespace, a *appending, patient bool) (ops []driveOp, err error) {
	defer func() {
		if err != nil {
			for i := range ops {
				ops[i].free()
			}
			memory.ReleaseAll(a.bufs)
			ops, a.bufs = nil, nil
		}
	}()
	if err := s.own(ctx, a, patient); err != nil {
		return nil, err
	}
	if err := s.sealing(ctx, ns, a, patient); err != nil {
		return nil, err
	}
	for _, in := range a.blocks {
		if in.loc.Device == inlineDevice || in.packed() {
			continue
		}
		for _, l := range in.copies {
			if ops, err = s.writesOf(ctx, a.g, in, l, patient, ops); err != nil {
				return ops, err
			}
		}
	}
	return s.packedWrites(ctx, a, patient, ops)
}

// finish waits for an append's writes and makes its blocks known: the order is
// payload, flush, catalog, index, caller.
func (s *Store) finish(ctx context.Context, ns *namespaces.Namespace, a *appending) error {
	defer s.endAppend(a.g)
	err := a.err
	if err == nil {
		err = a.writes.WaitOr(ctx, s.options.OpTimeout, a.g.lost)
	}
	durable := ns.Info.Class == skep.Durable
	if err == nil && durable {
		err = s.flushWritten(ctx, a.g.drives, a.flushes)
	}
	if err != nil {
		s.giveWritesUp(a)
	}
	if err != nil && device.BadMemory(err) {
		s.suspect(a.g)
		return errUnusable
	}
	if err != nil {
		kind := skep.KindOf(err)
		if kind == skep.DeviceFailed || kind == skep.Deadline && ctx.Err() == nil {
			s.log.Error("append failed", "group", a.g.num, "blocks", len(a.blocks), "error", err)
			s.giveUp(a.g)
			s.suspect(a.g)
			return s.putAgain(ctx, ns, a)
		}
		s.suspect(a.g)
		return err
	}
	return s.publish(ctx, ns, a, durable)
}

// endAppend counts one of the two ends of an append; after both the group may be
// cleaned.
func (s *Store) endAppend(g *group) {
	s.space.mu.Lock()
	g.pending--
	s.recordSealedLocked(g)
	s.space.easedBy(g)
	s.space.mu.Unlock()
}

// giveUp seals a group whose drive failed a write, so that the next append tries
// other cells.
func (s *Store) giveUp(g *group) {
	s.space.mu.Lock()
	s.sealLocked(g)
	s.space.mu.Unlock()
}

// publish commits an append to the catalog and shows it in the index.
func (s *Store) publish(ctx context.Context, ns *namespaces.Namespace, a *appending, durable bool) error {
	if err := s.commit(ctx, ns, a, durable); err != nil {
		s.suspect(a.g)
		return err
	}
	s.trim()
	return nil
}

func (s *Store) commit(ctx context.Context, ns *namespaces.Namespace, a *appending, durable bool) error {
	b := s.catalog.NewBatch()
	var buf []byte
	for _, in := range a.blocks {
		buf = in.rec.Append(buf[:0])
		b.PutBlock(in.loc, buf)
	}
	// Changes of what is there already are serialised with deletes and the cleaner.
	exclusive := !ns.Info.Chained
	for _, in := range a.blocks {
		exclusive = exclusive || in.replaces != nil
	}
	if exclusive {
		s.changes.Lock()
		defer s.changes.Unlock()
		s.supersede(ns, a, b)
	}
	// Not under ctx: the index must follow the rows.
	if err := s.commitRows(b, func() error { return s.catalog.Commit(s.ctx, b, durable) }); err != nil {
		return err
	}
	if !durable {
		s.wantHardened()
	}
	var refused []*incoming
	for _, in := range a.blocks {
		if in.outdated {
			*in.result = skep.PutResult{Outcome: skep.Committed} // it was there for no time at all
			continue
		}
		if err := s.show(ns, in); err != nil {
			s.refused(in, err)
			refused = append(refused, in)
		}
		if in.replaces != nil { // its row is gone, whatever became of this one
			s.drop(ns, in)
		}
	}
	return s.takeBack(refused, durable)
}

// supersede adds to b the deletion of every row that a's blocks make superfluous, so
// that a crash leaves the old or the new and never both. REQUIRES: s.changes.
func (s *Store) supersede(ns *namespaces.Namespace, a *appending, b *catalog.Batch) {
	earlier := map[index.Fingerprint]*incoming{} // of the same append
	for _, in := range a.blocks {
		if r := in.replaces; r != nil {
			old, ok := s.index.Resolve(*r)
			ok = ok && old.Partial
			if in.dropPending = ok && old.Location == 0; ok && !in.dropPending {
				in.dropBytes, in.dropForget = s.forgetter(ns, *r, old)
				b.DeleteBlock(layout.Unpack(old.Location))
			}
		}
		if ns.Info.Chained {
			continue
		}
		if old := earlier[in.fp]; old != nil {
			b.DeleteBlock(old.loc)
			in.replacedBytes, in.forget = old.size, func() { s.forgetCached(in.fp) }
		} else if old, ok := s.index.Resolve(in.fp); ok && old.Location != 0 {
			if s.rivals.Contended(in.fp) && s.outranked(in, old) {
				in.outdated = true
				b.DeleteBlock(in.loc)
				s.suspect(a.g)
				continue
			}
			in.replacedBytes, in.forget = s.forgetter(ns, in.fp, old)
			b.DeleteBlock(layout.Unpack(old.Location))
		}
		earlier[in.fp] = in
	}
}

// show makes one committed block visible. The error is the index's, which has no room for it.
func (s *Store) show(ns *namespaces.Namespace, in *incoming) error {
	e := in.entry(ns)
	switch {
	case in.accepted:
		if !s.index.Move(in.fp, 0, e.Location) {
			s.deleteRow(in.loc) // deleted meanwhile
			if g := s.space.find(in.loc.Group); g != nil {
				s.suspect(g) // its record stays in the log, and no tombstone covers it
			}
			return nil
		}
		s.settled(in)
	case !ns.Info.Chained:
		_, replaced, err := s.index.Replace(e)
		if err != nil {
			return err
		}
		if replaced {
			ns.Stored.Add(-in.replacedBytes)
			if in.forget != nil {
				in.forget()
			}
			s.tell(s.blockEvent(ns, &in.rec, skep.EventDeleted), in.rec.Instance, namespaces.Tag(in.rec.SaltTag))
		}
	default:
		if _, _, err := s.index.Insert(e); err != nil {
			return err
		}
	}
	*in.result = skep.PutResult{Outcome: skep.Committed}
	s.count.PutBlocks.Add(1)
	s.count.PutBytes.Add(in.size)
	s.count.BoundaryPut.Add(boundaryBytes(&in.rec))
	if !in.accepted { // those were counted when they were
		ns.Stored.Add(in.size)
	}
	s.tell(s.blockEvent(ns, &in.rec, skep.EventCommitted), in.rec.Instance, namespaces.Tag(in.rec.SaltTag))
	return nil
}

func (in *incoming) durable() bool { return in.rec.Flags&segment.RecordDurable != 0 }

func (in *incoming) entry(ns *namespaces.Namespace) index.Entry {
	return index.Entry{
		FP: in.fp, Parent: in.parentFP, HasParent: in.hasParent, Depth: in.rec.Depth,
		Location: in.loc.Pack(), Pages: uint32(in.slots()), Namespace: ns.Instance, Tenant: ns.Tenant,
		Opaque: !ns.Info.Chained, Durable: ns.Info.Class == skep.Durable, Partial: in.rec.ValidTokens != 0,
		Odd: in.rec.Bytes() != ns.PartSize(skep.PartKV),
	}
}
