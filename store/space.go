package store

import (
	"context"
	"slices"
	"sync/atomic"
	"time"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/catalog"
	"github.com/skepkv/skep/store/device"
	"github.com/skepkv/skep/store/internal/health"
	"github.com/skepkv/skep/store/internal/locks"
	"github.com/skepkv/skep/store/internal/restore"
	"github.com/skepkv/skep/store/internal/segio"
	"github.com/skepkv/skep/store/internal/space"
	"github.com/skepkv/skep/store/segment"
)

// drive is one device and its segments.
type drive struct {
	dev      device.Device
	index    uint16
	id       [16]byte
	path     string
	serial   string
	segBytes int64
	sequence uint64      // of its superblocks
	created  time.Time   // as they say
	stamped  int         // how many devices there are, as this process wrote there; 0: it did not
	removed  atomic.Bool // its place is kept: indices are not used again
	silent   atomic.Bool // it did not answer a read while the store was opened
	absent   error       // why it was not there at the open
	pinned   int         // parts of the arena registered with it; guarded by pinned.mu of the store

	// Guarded by space.mu.
	segments int                    // how many the device has room for now
	limit    int                    // how many it may grow to
	wanted   int                    // its limit before its file system was full
	stunted  time.Time              // when that was found last
	free     []uint32               // segment numbers, a stack
	heads    map[uint32]*headWrite  // writes of headers that are with the drive, by segment
	late     map[uint32]*lateWrites // writes that groups were let go of without, by segment
	failed   error                  // why the drive takes no new groups
	down     chan struct{}          // closed while it is dead: nobody waits for it

	standing health.Standing // its condition
	retired  atomic.Bool     // being emptied, or removed: it is not let back in
	fence    func(error)     // called when too many writes in a row failed, or a flush

	flush segio.Flusher
	reads restore.Queue
}

func (d *drive) segmentOffset(n uint32) int64 { return layout.SegmentOffset(int(n), d.segBytes) }

// io is the drive as segio sees it.
func (d *drive) io() segio.Drive { return segio.Drive{Dev: d.dev, ID: d.id, SegmentBytes: d.segBytes} }

// submit hands op to the drive as one of b's.
func (d *drive) submit(b *segio.Batch, op *device.Op) {
	op.Done = d.note
	b.Submit(d.dev, op)
}

// stream says whose writes an open group takes: what users put, or what cleaning
// keeps. Apart, they make groups whose content ages alike.
type stream int

const (
	streamUser stream = iota
	streamKept
	streamMoved // by compaction, draining and the like
	streams
)

// group is a stripe group: one segment on each of its devices, opened, sealed,
// cleaned and freed together.
type group struct {
	num        uint32
	generation uint64
	drives     []*drive
	segments   []uint32

	life space.Life // changed under space.mu
	// readers counts restores and cleaners that hold a location in this group; its
	// segments are not reused while it is not zero.
	readers atomic.Int64
	spread  atomic.Uint64 // slots its blocks take ÷ slots the index counts, as a float; 0: unknown
	healed  atomic.Bool   // what a lost drive of it had of blocks with copies was made again

	unsure  bool                            // it was stale when the store was opened
	owed    []segment.Tombstone             // for what a cleaning that failed has dropped; the cleaner's goroutine only
	stale   atomic.Bool                     // its log has records of blocks that are gone without a tombstone
	noted   atomic.Bool                     // with that: the catalog says so
	telling atomic.Bool                     // its drives are being told that it is free: freed.go
	heading locks.Mutex[locks.GroupHeaders] // held over writing to them: what a drive is told last is that it is freed
	entries int                             // in its log that are no blocks; -1: unknown. Guarded by space.mu

	// Guarded by space.mu.
	filler   *layout.Filler // nil before it is a spare, and once it is sealed
	row      catalog.GroupState
	pending  int           // ends of appends to come: of their writes, and of their publishing
	writing  []*writing    // that the drives have; those it was let go of without are not in pending
	logged   []int         // log pages given out, by device
	inline   int           // values that live in their record, so far
	placed   int           // weights, in slots, of the blocks placed in it since it was opened
	copied   copied        // of the blocks ever placed in it
	full     bool          // it was sealed because the next block did not fit; not known of what an open finds
	recorded bool          // with that: its row is being, or was, written
	lost     chan struct{} // closed when a drive of it is dead: nobody waits for its writes
}

// groupFound is the group of a row that was found in the catalog, or made from headers.
func groupFound(row catalog.GroupState) *group {
	g := &group{num: row.Group, generation: row.Generation, row: row, entries: -1}
	g.life.Found()
	return g
}

// payloadPages is how many pages of a group blocks may lie in, less its headers.
func (g *group) payloadPages() int {
	return len(g.drives) * (int(g.row.SegmentBytes/layout.PageSize) - 2)
}

// payloadSlots is the same in slots, as the index counts.
func (g *group) payloadSlots() int64 { return int64(g.payloadPages()) * layout.SlotsPerPage }

// Number and OpenedSeq have a space.Set know g.
func (g *group) Number() uint32    { return g.num }
func (g *group) OpenedSeq() uint64 { return g.row.OpenedSeq }

// groupTable is the groups and the free segments: who may write where.
type groupTable struct {
	mu struct {
		locks.Mutex[locks.Space]
		groups space.Set[*group]
		open   [streams]*group
		next   uint32        // number of the last group opened
		freed  chan struct{} // closed and replaced whenever segments come free
		// unopened are groups whose headers could not be written and are not under way any
		// more. The cleaner takes them back.
		unopened []*group
		doubted  []*group // of whose row's commit it is not known whether it happened
		spares   []*group // ready to be opened: spare.go
		sparing  int      // spares being made
		making   []*group // whose headers are being written
		// spareFailed is when one could not be.
		spareFailed time.Time
		root        int // SWARM's running pointer: the start device of the next chain
	}
	// opening serialises opening a group for a stream, which does I/O without holding mu.
	opening turn
	growing locks.Mutex[locks.Growing] // serialises growDrives
	// eased counts groups that became such that the cleaner may take them.
	eased atomic.Uint64
}

// turn is a lock that is waited for with a context, and for no longer than a time. Make it
// with room for one.
type turn chan struct{}

// take waits for the lock; give returns it. Who has it may be writing to a drive, for no
// longer than Options.OpTimeout; who waited for twice that, behind several of them, gets an
// error of kind Deadline. What is what it is waited for.
func (s *Store) take(ctx context.Context, t turn, op, what string) error {
	select {
	case t <- struct{}{}:
		return nil
	default:
	}
	ctx, cancel := context.WithTimeout(ctx, 2*s.options.OpTimeout)
	defer cancel()
	select {
	case t <- struct{}{}:
		return nil
	case <-ctx.Done():
		return &skep.Error{Op: op, Kind: skep.Deadline, Field: what, Err: ctx.Err()}
	case <-s.closing:
		return errClosed
	}
}

func (t turn) give() { <-t }

// errFull says that no group can be opened now; cleaning may change that.
var errFull = &skep.Error{Op: "put", Kind: skep.Full}

// errDown says that every drive is fenced.
var errDown = &skep.Error{Op: "put", Kind: skep.DeviceFailed, Field: "drives", Value: "all fenced"}

// pin gives the group loc lies in and keeps its segments from being reused until
// unpin. Nil when it is not there any more.
func (sp *groupTable) pin(num uint32) *group {
	sp.mu.Lock()
	defer sp.mu.Unlock()
	g := sp.mu.groups.Get(num)
	if g != nil {
		g.readers.Add(1)
	}
	return g
}

func (s *Store) unpin(g *group) {
	if g.readers.Add(-1) == 0 && g.life.State() >= space.Emptied {
		s.cleaner.kick()
	}
}

// freeGroupsLocked is how many groups could be opened now. REQUIRES: sp.mu.
func (s *Store) freeGroupsLocked() int {
	n := -1
	for _, d := range s.allDrives() {
		if d.failed != nil {
			continue
		}
		if f := len(d.free) + d.limit - d.segments; n < 0 || f < n {
			n = f
		}
	}
	return max(n, 0) + len(s.space.mu.spares)
}

// cleanerReserve is how many free groups only the cleaner may open: with one it can
// always move survivors and free their group.
const cleanerReserve = 1

// openGroup opens a group for st, or returns errFull. REQUIRES: sp.opening held, not sp.mu.
func (s *Store) openGroup(ctx context.Context, st stream) (*group, error) {
	sp := &s.space
	sp.mu.Lock()
	reserve := 0
	if st != streamKept {
		reserve = s.reserve
	}
	down := !slices.ContainsFunc(s.allDrives(), func(d *drive) bool { return d.failed == nil })
	full := s.freeGroupsLocked() <= reserve
	var g *group
	if !down && !full {
		g = s.takeSpareLocked()
	}
	sp.mu.Unlock()
	switch {
	case down:
		return nil, errDown
	case full:
		return nil, errFull
	}
	if g == nil {
		var err error
		if g, err = s.newGroup(ctx, reserve); err != nil {
			return nil, err
		}
	}
	sp.mu.Lock()
	sp.openLocked(st, g)
	sp.mu.Unlock()
	s.makeSpares()
	return g, nil
}

// openLocked makes a spare st's open group. REQUIRES: sp.mu.
func (sp *groupTable) openLocked(st stream, g *group) {
	g.life.Become(space.Open)
	sp.mu.groups.Add(g)
	sp.mu.open[st] = g
}

// newGroup takes segments and writes their headers, unless no more than reserve groups
// are free: it gives a spare. REQUIRES: not sp.mu.
func (s *Store) newGroup(ctx context.Context, reserve int) (*group, error) {
	sp := &s.space
	if err := s.growDrives(); err != nil {
		return nil, err
	}
	sp.mu.Lock()
	if s.freeGroupsLocked() <= reserve {
		sp.mu.Unlock()
		return nil, errFull
	}
	g := &group{generation: s.root.Next(), lost: make(chan struct{})}
	for _, d := range s.allDrives() {
		if d.failed != nil || len(d.free) == 0 {
			continue
		}
		g.drives = append(g.drives, d)
		g.segments = append(g.segments, d.free[len(d.free)-1])
		d.free = d.free[:len(d.free)-1]
	}
	if len(g.drives) == 0 {
		sp.mu.Unlock()
		return nil, errFull
	}
	sp.mu.next++
	g.num = sp.mu.next
	sp.mu.making = append(sp.mu.making, g)
	sp.mu.Unlock()

	filler, err := layout.NewFiller(len(g.drives), int(s.segBytes/layout.PageSize))
	if err == nil {
		err = s.writeHeaders(ctx, g)
	}
	sp.mu.Lock()
	defer sp.mu.Unlock()
	sp.mu.making = slices.DeleteFunc(sp.mu.making, func(o *group) bool { return o == g })
	if err != nil {
		return nil, err
	}
	g.filler, g.logged = filler, make([]int, len(g.drives))
	g.life.Become(space.Spare)
	return g, nil
}

// writeHeaders makes the group's generation durable in the catalog and then writes
// it into each segment. In this order nothing written under an old generation can
// be taken for the new one's, whatever is lost.
func (s *Store) writeHeaders(ctx context.Context, g *group) error {
	g.row = catalog.GroupState{
		Group: g.num, Generation: g.generation, State: catalog.GroupOpen, Copies: 1,
		SegmentBytes: s.segBytes, OpenedSeq: g.generation,
	}
	for i, d := range g.drives {
		g.row.Devices = append(g.row.Devices, catalog.Member{Device: d.index, Segment: g.segments[i]})
	}
	b := s.catalog.NewBatch()
	b.PutGroup(&g.row)
	if err := s.saveRoot(s.ctx, b, true); err != nil { // not under ctx: its segments would be lost with it
		s.space.mu.Lock()
		defer s.space.mu.Unlock()
		g.life.Become(space.Failed)
		if didNotHappen(err) {
			s.space.regainLocked(g)
		} else {
			s.space.mu.doubted = append(s.space.mu.doubted, g) // the row may be there: an open gives these segments back
		}
		return err
	}
	w := segio.NewBatch(len(g.drives))
	for i, d := range g.drives {
		h := s.headerOf(g, i)
		op, err := segio.WriteHeader(d.io(), &h)
		if err != nil {
			w.End(err)
			continue
		}
		op.Done = func(o *device.Op) {
			if o.Err != nil {
				s.fence(d, o.Err)
			}
		}
		w.Submit(d.dev, op)
	}
	err := w.WaitOr(ctx, s.options.OpTimeout, g.lost)
	if err == nil {
		return nil
	}
	if skep.KindOf(err) == skep.Deadline && ctx.Err() == nil {
		err = &skep.Error{Op: "open group", Kind: skep.DeviceFailed, Err: err}
	}
	// Its row goes first, or an open would find two groups that own these segments; and
	// they are free when no drive can write a header to them any more.
	w.After(func() {
		s.space.mu.Lock()
		s.space.unwantLocked(g)
		s.space.mu.Unlock()
		s.cleaner.kick()
	})
	return err
}

// unwantLocked has the cleaner take back a group that is not to be opened. REQUIRES: sp.mu, and that no drive has a
// header of it to write.
func (sp *groupTable) unwantLocked(g *group) {
	g.life.Become(space.Failed)
	sp.mu.unopened = append(sp.mu.unopened, g)
}

// regainLocked makes g's segments free, and tells who waits for some. REQUIRES: sp.mu.
func (sp *groupTable) regainLocked(g *group) {
	g.life.Become(space.Gone)
	for i, d := range g.drives {
		d.giveLocked(g.segments[i])
	}
	close(sp.mu.freed)
	sp.mu.freed = make(chan struct{})
}

// growDrives makes room for another group on drives that have none and may grow.
func (s *Store) growDrives() error {
	sp := &s.space
	sp.growing.Lock()
	defer sp.growing.Unlock()
	var growing []*drive
	sp.mu.Lock()
	for _, d := range s.allDrives() {
		// The cleaner's reserve must be allotted, not only allowed: a file system that
		// fills up must leave cleaning something to write to.
		if d.failed == nil && len(d.free) <= s.reserve && d.segments < d.limit {
			growing = append(growing, d)
		}
	}
	sp.mu.Unlock()
	if len(growing) == 0 {
		return nil
	}
	fits := s.growth(s.uncapped())
	stunted := false
	for _, d := range growing {
		sp.mu.Lock()
		segments, limit := d.segments, d.limit
		sp.mu.Unlock()
		// Few and large steps: a file system may hold up the writes under way for each.
		step := min(max(segments, int(growLeast/d.segBytes), 1), max(1, int(growBytes/d.segBytes)))
		if n, ok := fits[d]; ok {
			step = max(1, min(step, n))
		}
		to := min(limit, segments+step)
		err := s.checkReserve(d, int64(to-segments)*d.segBytes)
		since := failedFlushes([]*drive{d})
		if err == nil {
			err = d.dev.Grow(d.segmentOffset(uint32(to)))
		}
		if err == nil && s.flushWritten(s.ctx, []*drive{d}, since) != nil {
			continue // it is not its length for good; where the flush failed the drive is fenced
		}
		sp.mu.Lock()
		if err != nil {
			d.wanted, d.stunted = max(d.wanted, limit), time.Now()
			d.limit = segments // the file system is full: what is there is the cap until there is space again
			stunted = true
			sp.mu.Unlock()
			s.log.Warn("device cannot grow; its size is the cap for now. Free space in its file system, or lower ReserveBytes, or set CapacityBytes",
				"device", d.path, "bytes", d.dev.Size(), "error", err)
			continue
		}
		for n := segments; n < to; n++ {
			d.free = append(d.free, uint32(n))
		}
		sortBy(d.free, func(a, b uint32) bool { return a > b })
		d.segments = to
		sp.mu.Unlock()
	}
	if stunted {
		s.reroom()
	}
	return nil
}

// A file device grows by as much as it has, within these limits.
const (
	growLeast = 64 << 20
	growBytes = 1 << 30
)

// sealLocked ends a group's filling. REQUIRES: sp.mu.
func (s *Store) sealLocked(g *group) {
	if g.life.State() != space.Open {
		return
	}
	g.life.Become(space.Sealed)
	g.filler = nil
	for i, o := range s.space.mu.open {
		if o == g {
			s.space.mu.open[i] = nil
		}
	}
	g.row.State = catalog.GroupSealed
	g.row.SealedSeq = s.root.Last()
	s.index.SealGroup(g.num, g.payloadSlots(), 0)
	s.space.easedBy(g)
}

// easedBy notes that g may be cleaned from now on, if it may. REQUIRES: sp.mu.
func (sp *groupTable) easedBy(g *group) {
	if g.life.State() == space.Sealed && g.pending == 0 {
		sp.eased.Add(1)
	}
}

// recordSealedLocked records that g was filled, once none of its appends is under way any
// more and all were committed: at an open after a crash, the log of a group recorded so is
// not compared with the catalog. REQUIRES: sp.mu.
func (s *Store) recordSealedLocked(g *group) {
	if !g.full || g.pending > 0 || len(g.writing) > 0 || g.recorded || g.stale.Load() || s.ctx.Err() != nil {
		return
	}
	g.recorded = true
	g.pending++ // its row must not be written after the cleaner has deleted it
	s.background.Go(func() {
		defer s.endAppend(g)
		s.saveSealed(s.ctx, g)
	})
}

// saveSealed records sealed groups; losing the row costs nothing, since an open
// treats every group as sealed. It does not come after one that says that a block was
// evicted meanwhile: outlives.
func (s *Store) saveSealed(ctx context.Context, g *group) {
	s.changes.Lock()
	defer s.changes.Unlock()
	b := s.catalog.NewBatch()
	state := s.groupRow(g)
	if g.stale.Load() {
		state.State = catalog.GroupCleaning
	}
	b.PutGroup(&state)
	if err := s.catalog.Commit(ctx, b, false); err != nil {
		s.log.Warn("sealed group not recorded", "group", g.num, "error", err)
	}
}
