package store

import (
	"bytes"
	"context"
	"errors"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/index"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/catalog"
	"github.com/skepkv/skep/store/device"
	"github.com/skepkv/skep/store/internal/appender"
	"github.com/skepkv/skep/store/internal/clean"
	"github.com/skepkv/skep/store/internal/commit"
	"github.com/skepkv/skep/store/internal/crypt"
	"github.com/skepkv/skep/store/internal/devlog"
	"github.com/skepkv/skep/store/internal/intents"
	"github.com/skepkv/skep/store/internal/leases"
	"github.com/skepkv/skep/store/internal/namespaces"
	"github.com/skepkv/skep/store/internal/observe"
	"github.com/skepkv/skep/store/internal/segio"
	"github.com/skepkv/skep/store/internal/sidecar"
	"github.com/skepkv/skep/store/internal/space"
	"github.com/skepkv/skep/store/internal/watermark"
	"github.com/skepkv/skep/store/memory"
	"github.com/skepkv/skep/store/segment"
)

// recover loads what the catalog holds and, after an unclean end, verifies what the
// flushed-up-to mark does not vouch for. There is no separate checkpoint of the
// index: its rows are one compact range of the catalog, which scans faster than a
// second copy could be kept right (docs/notebook/architecture.md has the figures).
func (s *Store) recover(ctx context.Context, root catalog.StoreState) error {
	s.epoch = root.Epoch + 1
	s.setLead(root.Lasting)
	// Numbers given out after the root row was last written are skipped over.
	s.root.Load(root)
	s.space.Pass(root.NextGroup)
	s.names = namespaces.NewTable(s.secret)
	s.sidecars = sidecar.New(s.catalog, s.names, s.keys, s.rows, s.log)
	if err := s.loadNames(ctx); err != nil {
		return err
	}
	if err := s.loadGroups(ctx, root.Clean); err != nil {
		return err
	}
	if err := s.checkDegraded(ctx); err != nil {
		return err
	}
	if err := s.checkBehind(ctx, root); err != nil {
		return err
	}
	if err := s.makeIndex(); err != nil {
		return err
	}
	s.events = observe.NewEvents(eventsEpoch(s.id, s.epoch), s.options.EventBuffer, s.options.Wall)
	promised := intents.New(s.root)
	s.rows.Open(commit.Parts{Context: s.ctx, Closing: s.closing, Catalog: s.catalog, Names: s.names, Index: s.index,
		Space: s.space, Root: s.root, Cache: s.cache, Sidecars: s.sidecars, Intents: promised, Puts: s.puts,
		Events: s.events, Count: &s.count, Bad: &s.badLog, Exact: s.options.Policy != "cost",
		Harden: max(s.options.FlushInterval/100, 5*time.Millisecond)})
	s.appends = appender.New(appender.Config{Space: s.space, Rows: s.rows, Root: s.root, Index: s.index, Puts: s.puts,
		Arena: s.arena, Scarce: memory.NewScarce(), Count: &s.count, Log: s.log, Full: s.catalogRoom.Full,
		IOBytes: s.options.IOBytes, SpaceTimeout: s.options.SpaceTimeout, OpTimeout: s.options.OpTimeout})
	if err := s.makeIngest(); err != nil {
		return err
	}
	s.logs = devlog.New(devlog.Config{Context: s.ctx, Catalog: s.catalog, Names: s.names, Index: s.index, Space: s.space,
		Rows: s.rows, Root: s.root, Puts: s.puts, Appends: s.appends, Intents: promised, Log: s.log,
		SpaceTimeout: s.options.SpaceTimeout})
	s.cleaner = s.newCleaner()
	s.moving = s.newMover()
	doubtful, err := s.loadBlocks(ctx, root)
	if err != nil {
		return err
	}
	s.space.SealFound(s.tickOf)
	if s.options.ReadOnly {
		return nil
	}
	b := s.catalog.NewBatch()
	if err := s.claim(b); err != nil {
		return err
	}
	if err := s.saveRoot(ctx, b, true); err != nil {
		return err
	}
	s.stampOwner(ctx, s.members.Opened...)
	if err := s.verifyDoubtful(ctx, doubtful); err != nil {
		return err
	}
	if err := s.sidecars.Load(ctx); err != nil {
		return err
	}
	return s.agree(ctx, root)
}

// newCleaner makes what makes free groups.
func (s *Store) newCleaner() *clean.Cleaner {
	var noted time.Time
	return clean.New(clean.Config{Context: s.ctx, Closing: s.closing, Catalog: s.catalog, Names: s.names, Index: s.index,
		Space: s.space, Rows: s.rows, Root: s.root, Appends: s.appends, Logs: s.logs, Count: &s.count, Log: s.log,
		Clock: s.options.Clock, Tight: s.indexTight, Exact: s.options.Policy != "cost", SpaceTimeout: s.options.SpaceTimeout,
		Expire: func(now time.Time) {
			s.leases.Expire(now)
			s.pins.Expire(now)
		},
		Sweep: func() {
			noted = s.noteTime(noted)
			if err := s.sidecars.Sweep(s.ctx); err != nil {
				s.log.Warn("side rows of blocks that are gone are still there", "error", err)
			}
		}})
}

// agree makes the devices say what the catalog says: what the last run did not get to.
func (s *Store) agree(ctx context.Context, root catalog.StoreState) error {
	if err := s.logs.Intents.Load(ctx, s.catalog); err != nil {
		return err
	}
	s.space.MendHeaders(ctx, s.opening.wasOpen)
	if root.Clean && !s.opening.relog && len(s.opening.leftFree) == 0 {
		return nil
	}
	b := s.catalog.NewBatch()
	s.space.FreeLeftovers(ctx, b, s.opening.leftFree)
	list, err := s.logs.Reconcile(ctx, b, s.space.TakeSuspects())
	if err != nil {
		return err
	}
	s.logs.Intents.Add(list...)
	if s.opening.relog {
		if err := s.logs.Again(b); err != nil {
			return err
		}
	}
	s.opening.relog = false
	return s.saveRoot(ctx, b, true)
}

func (s *Store) loadNames(ctx context.Context) error {
	rows, err := s.catalog.Namespaces(ctx)
	if err != nil {
		return err
	}
	n := s.names
	for _, r := range rows {
		if _, err := n.Add(r.NamespaceInfo, r.Instance); err != nil {
			return err
		}
		s.root.PassNumbers(watermark.Numbers{Namespace: uint32(r.ID), Instance: r.Instance})
	}
	purges, err := s.catalog.Purges(ctx)
	if err != nil {
		return err
	}
	b := s.catalog.NewBatch()
	for _, p := range purges {
		// A salt's row is keyed by its first tag and holds the epoch of its next; rows of
		// later tags say only that those are dead.
		k := namespaces.SaltTag{Instance: p.Instance, Tag: namespaces.Tag(p.Tag)}
		if p.Seq > 0 {
			s.root.Pass(p.Seq) // a purge of that number again would make the salt's tag the one it makes dead
		}
		if n.Of(p.Instance) == nil { // nothing has it any more
			b.DeletePurge(p)
			continue
		}
		n.KillTag(k, p.Seq)
	}
	if b.Len() == 0 || s.options.ReadOnly {
		return nil
	}
	return s.catalog.Commit(ctx, b, false)
}

// loseTruncated puts a stand-in in the place of a drive that ends before a segment of one of its
// groups.
func (s *Store) loseTruncated(rows []catalog.GroupState) {
	for _, r := range rows {
		for _, m := range r.Devices {
			if r.State == catalog.GroupFree || int(m.Device) >= len(s.members.Opened) {
				continue
			}
			d := s.members.Opened[m.Device]
			if d.Absent != nil || d.Removed.Load() || int(m.Segment) < d.Segments {
				continue
			}
			if int(m.Segment) < layout.Segments(d.Dev.Size(), d.SegBytes) { // from before the cap counted
				d.Segments = int(m.Segment) + 1
				d.Limit = max(d.Limit, d.Segments)
				continue
			}
			why := &skep.Error{Op: "open store", Kind: skep.Damaged, Field: "size of " + d.Path, Value: d.Dev.Size(),
				Limit: "at least " + itoa64(layout.SegmentOffset(int(m.Segment)+1, d.SegBytes)) + ": the device was truncated"}
			s.log.Error("device truncated: the store goes on without it", "device", d.Index, "path", d.Path, "error", errors.Join(why, d.Dev.Close()))
			s.members.Opened[m.Device] = standIn(d.Row(), lack{d.Path, why})
		}
	}
}

// loadGroups makes the groups and the lists of free segments. Every group is taken as
// sealed: what was open when the store ended is not written to again.
func (s *Store) loadGroups(ctx context.Context, clean bool) error {
	rows, err := s.catalog.Groups(ctx)
	if err != nil {
		return err
	}
	s.loseTruncated(rows)
	used := make([]map[uint32]bool, len(s.members.Opened))
	for i := range used {
		used[i] = map[uint32]bool{}
	}
	s.opening.leftFree = map[uint32]bool{}
	for _, r := range rows {
		free := r.State == catalog.GroupFree
		if !free && slices.ContainsFunc(r.Devices, s.isRemoved) {
			if free, err = s.isBare(ctx, r.Group); err != nil { // a spare, say, that nobody gave back
				return err
			}
		}
		if free {
			s.root.Pass(r.Generation)
			s.opening.leftFree[r.Group] = true
			s.space.Pass(r.Group)
			continue
		}
		g := space.Found(r)
		if r.State == catalog.GroupOpen {
			s.opening.wasOpen = append(s.opening.wasOpen, g)
		}
		switch {
		case r.State == catalog.GroupCleaning, r.State == catalog.GroupOpen && !clean:
			g.Unsure = true
			s.space.Suspect(g)
		}
		for _, m := range r.Devices {
			if int(m.Device) >= len(s.members.Opened) {
				return &skep.Error{Op: "catalog", Kind: skep.Damaged, Field: "device of group " + itoa(int(r.Group)), Value: m.Device, Limit: "below " + itoa(len(s.members.Opened))}
			}
			g.Drives = append(g.Drives, s.members.Opened[m.Device])
			g.Segments = append(g.Segments, m.Segment)
			used[m.Device][m.Segment] = true
		}
		s.space.Add(g)
		s.root.Pass(r.Generation)
		if first := &s.opening.loadedSeq[0]; *first == 0 || r.OpenedSeq < *first {
			*first = r.OpenedSeq
		}
	}
	s.opening.loadedSeq[1] = s.root.Last()
	for i, d := range s.members.Opened {
		d.FreeAll(func(n uint32) bool { return used[i][n] })
	}
	return nil
}

// isRemoved says of a place in a group that its drive was taken out of the store.
func (s *Store) isRemoved(m catalog.Member) bool {
	return int(m.Device) < len(s.members.Opened) && s.members.Opened[m.Device].Removed.Load()
}

// isBare says that no block's row lies in a group.
func (s *Store) isBare(ctx context.Context, num uint32) (bool, error) {
	bare := true
	err := s.catalog.ScanGroup(ctx, num, func(layout.Location, []byte) error {
		bare = false
		return nil
	})
	return bare, err
}

// cleanerReserve is how many free groups only the cleaner may open: with one it can
// always move survivors and free their group.
const cleanerReserve = 1

// readTimeOfSlot is the eighth of what the cost policy reckons a page at.
const readTimeOfSlot = time.Microsecond / layout.SlotsPerPage

// makeIndex makes the empty index, sized by what the devices may hold.
func (s *Store) makeIndex() (err error) {
	o := &s.options
	s.space.KeptFree = cleanerReserve
	pages, logical := s.space.Reckon()
	if o.leasedByRoom {
		o.LeasedBytes = min(o.LeasedBytes, max(s.space.EvenPages()*layout.PageSize/4, 1))
		o.PinnedBytes = min(o.PinnedBytes, max(o.LeasedBytes/2, 1))
	}
	cfg := index.Config{Policy: o.Policy, LeaseCapBytes: o.LeasedBytes, PinCapBytes: o.PinnedBytes}
	cfg.PageBytes = layout.SlotSize // a small value is charged its part of a page
	cfg.Cost.PerPage = readTimeOfSlot
	cfg.CapacityPages, cfg.LogicalPages = pages*layout.SlotsPerPage, logical*layout.SlotsPerPage
	capped := pages
	if len(s.space.Uncapped()) > 0 { // cleaning makes room in the index before they have grown so far
		capped = 0
	}
	if err := s.capIndex(capped); err != nil {
		return err
	}
	cfg.MaxSlots = uint32(min(o.IndexBytes/bytesPerSlot, 1<<32-1))
	if s.index, err = index.New(cfg); err != nil {
		return err
	}
	s.space.Index = s.index
	if groups, _ := s.space.Count(); groups > 0 {
		s.index.SetClock(loadedTicks)
	}
	s.leases, s.pins = leases.New(s.index), leases.NewPins(s.index)
	for name, bytes := range o.TenantBytes {
		if err := s.index.SetShare(s.names.TenantNumber(name), bytes); err != nil {
			return err
		}
	}
	return nil
}

// doubt is a row that an unclean end left in doubt. How many there can be is bounded by
// Options.FlushBytes and FlushInterval.
type doubt struct {
	loc layout.Location
	row []byte
}

// verifiers is how many blocks are verified at a time: as deep as drives like it.
const verifiers = 64

// loadPiece is how many blocks are handed to the index at a time.
const loadPiece = 1 << 14

// loadBlocks fills the index from the catalog. It returns the rows an unclean end
// left in doubt: written after the last flush.
func (s *Store) loadBlocks(ctx context.Context, root catalog.StoreState) ([]doubt, error) {
	shards := max(1, runtime.GOMAXPROCS(0))
	type shard struct {
		entries  []index.Entry
		doubtful []doubt
		stale    []layout.Location
		seq      uint64
		bytes    int64 // of rows of scope, not counted yet
		// Rows of one scope, and a chain's blocks, mostly follow each other.
		scope namespaces.SaltTag
		ns    *namespaces.Namespace // of scope; nil: none, or purged
		bare  bool                  // its tenant has no encryption key
		had   bool                  // a row of scope, with this key and fingerprint
		key   skep.Key
		fp    index.Fingerprint
	}
	list := make([]shard, shards)
	sealed := make([]crypt.Seen, shards)
	count := func(sh *shard) {
		if sh.ns != nil {
			sh.ns.Stored.Add(sh.bytes)
		}
		sh.bytes = 0
	}
	var mu sync.Mutex // one piece at a time goes into the index
	load := func(sh *shard) error {
		mu.Lock()
		defer mu.Unlock()
		again, err := s.index.BulkLoadAgain(sh.entries, nil)
		if err != nil {
			return err
		}
		for _, i := range again {
			e := &sh.entries[i]
			have, ok := s.index.Resolve(e.FP)
			if !ok || have.Location == e.Location {
				continue
			}
			// A block that was found damaged and put again may have two rows: the newer counts.
			lose, bytes, err := s.older(ctx, e.Location, have.Location)
			if err != nil {
				return err
			}
			s.names.Unstored(e.Namespace, bytes)
			if lose == have.Location {
				s.index.Remove(e.FP, have.Location)
				if _, _, err := s.index.Insert(*e); err != nil {
					return err
				}
			}
			sh.stale = append(sh.stale, layout.Unpack(lose))
		}
		sh.entries = sh.entries[:0]
		return nil
	}
	err := s.catalog.ScanBlocks(ctx, shards, func(i int, l layout.Location, row []byte) error {
		sh := &list[i]
		h, err := segment.DecodeHead(row)
		if err != nil {
			s.log.Error("damaged row in the catalog; its block is lost", "location", l, "error", err)
			sh.stale = append(sh.stale, l)
			return nil
		}
		sh.seq = max(sh.seq, h.Seq)
		t := namespaces.Tag(h.SaltTag)
		if k := (namespaces.SaltTag{Instance: h.Instance, Tag: t}); k != sh.scope {
			count(sh)
			sh.scope, sh.ns, sh.had = k, s.names.Of(h.Instance), false
			if s.names.Dead(h.Instance, t) {
				sh.ns = nil
			}
			sh.bare = sh.ns != nil && s.keys.Newest(sh.ns.Info.Tenant) == nil
		}
		ns := sh.ns
		if ns == nil {
			return nil // purged: the cleaner meets it in its group
		}
		g := s.space.Loaded(l.Group)
		if g == nil {
			sh.stale = append(sh.stale, l)
			return nil
		}
		if sh.bare && h.Sealed {
			sealed[i].Note(ns.Info.Tenant, row)
			sh.bare = false // one of a scope will do
		}
		g.Holds(layout.SlotsOf(int(h.Pages), h.Bytes), int(h.Copies))
		e := index.Entry{
			FP: s.names.Fingerprint(h.Instance, t, h.Key), HasParent: h.HasParent, Depth: h.Depth,
			Location: l.Pack(), Pages: uint32(layout.SlotsOf(int(h.Pages), h.Bytes)), Namespace: h.Instance, Tenant: ns.Tenant,
			Opaque: !ns.Info.Chained, Durable: ns.Info.Class == skep.Durable,
			Partial: h.ValidTokens != 0, Odd: h.Bytes != ns.PartSize(skep.PartKV),
			// What was used and when is not stored. Until the first turnover everything counts
			// as used when it was written, so that a restart alone drops nothing.
			Touched: true, Uses: 1, Last: s.tickOf(h.Seq),
		}
		switch {
		case h.HasParent && sh.had && h.Parent == sh.key:
			e.Parent = sh.fp
		case h.HasParent:
			e.Parent = s.names.Fingerprint(h.Instance, t, h.Parent)
		}
		sh.key, sh.fp, sh.had = h.Key, e.FP, true
		sh.bytes += h.Bytes
		if !root.Clean && h.Seq > root.FlushedSeq {
			sh.doubtful = append(sh.doubtful, doubt{l, bytes.Clone(row)})
		}
		if sh.entries = append(sh.entries, e); len(sh.entries) >= loadPiece {
			return load(sh)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	if err := s.keys.Learn(sealed, s.options.ReadOnly || s.options.WithoutKeys, s.log); err != nil {
		return nil, err
	}
	var doubtful []doubt
	var stale []layout.Location
	for i := range list {
		if err := load(&list[i]); err != nil {
			return nil, err
		}
		doubtful = append(doubtful, list[i].doubtful...)
		stale = append(stale, list[i].stale...)
		count(&list[i])
		s.root.Pass(list[i].seq)
	}
	if len(stale) > 0 && !s.options.ReadOnly {
		b := s.catalog.NewBatch()
		for _, l := range stale {
			b.DeleteBlock(l)
		}
		if err := s.catalog.Commit(ctx, b, false); err != nil {
			return nil, err
		}
	}
	return doubtful, nil
}

// older says which of two rows of one block has the lower sequence number, and the payload it stands for.
func (s *Store) older(ctx context.Context, a, b uint64) (loc uint64, bytes int64, err error) {
	var heads [2]segment.Head
	for i, loc := range []uint64{a, b} {
		row, err := s.catalog.Block(ctx, layout.Unpack(loc), nil)
		if err != nil {
			return 0, 0, err
		}
		if heads[i], err = segment.DecodeHead(row); err != nil { // its bytes were never counted
			return loc, 0, nil
		}
	}
	if heads[0].Seq < heads[1].Seq {
		return a, heads[0].Bytes, nil
	}
	return b, heads[1].Bytes, nil
}

// loadedTicks is one capacity of the index's clock: what an open finds is taken to
// have been written over the last capacity, evenly by sequence number.
const loadedTicks = 1 << 16

// tickOf is when something with this sequence number was written, on that clock.
func (s *Store) tickOf(seq uint64) index.Tick {
	first, last := s.opening.loadedSeq[0], s.opening.loadedSeq[1]
	if last <= first || seq <= first {
		return 1
	}
	return index.Tick(1 + uint64(float64(min(seq, last)-first)/float64(last-first)*(loadedTicks-1)))
}

// verifyDoubtful reads every block that was acknowledged after the last flush, and
// drops those whose bytes did not reach the drive: a crash of the machine may have
// lost them, a crash of the process has not.
func (s *Store) verifyDoubtful(ctx context.Context, doubtful []doubt) error {
	if len(doubtful) == 0 {
		return nil
	}
	s.log.Info("verifying blocks written after the last flush", "blocks", len(doubtful))
	type bad struct {
		doubt
		fp index.Fingerprint
	}
	var lost []bad
	var mu sync.Mutex
	var wg sync.WaitGroup
	next := make(chan doubt, 256)
	var first error
	for range verifiers {
		wg.Go(func() {
			var buf []byte
			for d := range next {
				fp, ok, err := s.verifyRow(ctx, d, &buf)
				mu.Lock()
				if err != nil && first == nil {
					first = err
				}
				if err == nil && !ok {
					lost = append(lost, bad{d, fp})
				}
				mu.Unlock()
			}
		})
	}
	for _, d := range doubtful {
		next <- d
	}
	close(next)
	wg.Wait()
	if first != nil {
		return first
	}
	if len(lost) > 0 {
		b := s.catalog.NewBatch()
		for _, x := range lost {
			b.DeleteBlock(x.loc)
			s.space.Suspect(s.space.Loaded(x.loc.Group))
			if _, ok := s.index.Remove(x.fp, x.loc.Pack()); ok {
				h, _ := segment.DecodeHead(x.row) // that could be decoded when it was counted
				s.names.Unstored(h.Instance, h.Bytes)
			}
		}
		if err := s.catalog.Commit(ctx, b, true); err != nil {
			return err
		}
		s.log.Warn("blocks not whole after the crash were dropped", "blocks", len(lost))
	}
	s.root.Owe() // so that the mark moves past what was verified
	return nil
}

// verifyRow reads the block of one row and says whether its bytes are right. An error
// means that could not be found out.
func (s *Store) verifyRow(ctx context.Context, d doubt, buf *[]byte) (fp index.Fingerprint, ok bool, err error) {
	var rec segment.Record
	if err := segment.DecodeRecord(d.row, &rec); err != nil {
		return fp, false, nil
	}
	fp = s.names.Fingerprint(rec.Instance, namespaces.Tag(rec.SaltTag), rec.Key)
	ns, g := s.names.Of(rec.Instance), s.space.Loaded(d.loc.Group)
	if ns == nil || g == nil {
		return fp, true, nil
	}
	n := int(rec.Pages) * layout.PageSize
	if len(*buf) < n {
		*buf = device.AlignedBuffer(n)
	}
	got, err := s.space.ReadOpening(ctx, g, ns.Info.Shape, &rec, (*buf)[:n])
	if segio.Lent(*buf, got, err) {
		*buf = nil
	}
	switch skep.KindOf(err) {
	case skep.Damaged:
		return fp, false, nil
	case skep.Deadline:
		return fp, ctx.Err() == nil, segio.Ended(ctx, "open store")
	case skep.DeviceFailed:
		return fp, true, nil // what cannot be read now may be right: reads will tell
	}
	return fp, err == nil, err
}
