package space

import (
	"context"
	"slices"
	"time"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/index"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/segment"
)

// A place for what is written: cells for blocks and their copies, and pages of logs. Nothing is written here.

// Wait is how often a put that waits for space looks again.
const Wait = 50 * time.Millisecond

// Need is a block that is to be placed, and where it came to lie.
type Need struct {
	FP        index.Fingerprint
	Parent    index.Fingerprint
	HasParent bool
	Depth     uint32
	Pages     int               // of its stored form; 0: its value is in its record
	Bytes     int64             // payload
	Record    int               // bytes of its record, with the places of all its copies
	Inline    int               // bytes that its record is yet to get: its value
	Replaces  bool              // a tombstone of another block goes with it
	Begin     int               // the device of the group to begin on; -1: as its chain says
	Copies    []layout.Location // where it lies, once it is placed: the first is the block's
}

// logged is what the block takes of its append's log, in bytes.
func (b *Need) logged() int {
	n := segment.EntrySize(b.Record + b.Inline)
	if b.Replaces {
		n += TombstoneEntry
	}
	return n
}

// Needs is what blocks of a namespace have in common that are placed together.
type Needs struct {
	Copies     int
	Logs       int   // in which the append is to stand, where the group has as many; Copies of them at least
	LayerBytes int64 // of a layer of a block; 0: it has none
	Blocks     []Need
}

// logs is in how many logs of a group of so many drives the append stands.
func (n *Needs) logs(drives int) int { return max(n.Copies, min(n.Logs, drives)) }

// LogPlace is pages of the log on one drive.
type LogPlace struct {
	Device int    // index in the group's list
	Page   uint32 // lowest of the pages
}

// Reservation is what an append has in a group: the leading blocks of its needs, and pages in as many logs as these
// say. The group is busy until both ends of it have come: that of its writes, and endAppend.
type Reservation struct {
	Group    *Group
	Seq      uint64
	Blocks   int
	Logs     []LogPlace // on different drives
	LogPages int        // of each
}

// lastStart remembers where the last placed block began, for a child placed before
// its parent is in the index: the next of the same put.
type lastStart struct {
	fp     index.Fingerprint
	device int
	set    bool
}

// InlineDevice marks a location without cells: the value is in the record.
const InlineDevice = segment.InlineDevice

// mostInline is how many values a group has in records.
const mostInline = 1 << 20

// markEntry is what an append's mark takes of its log pages, tombstoneEntry what a tombstone does.
var (
	markEntry      = segment.EntrySize(segment.MarkSize)
	TombstoneEntry = segment.EntrySize(segment.TombstoneSize)
)

// Weight is what a block takes of a group, in slots: all its copies, and its record, which
// is reckoned at a page where that is little beside the block. record is its length in bytes.
func Weight(pages int, bytes int64, copies, record int) int {
	n := layout.SlotsOf(pages, bytes) * max(1, copies)
	if layout.Packed(pages, bytes) {
		return n + (record+layout.SlotSize-1)/layout.SlotSize
	}
	return n + layout.SlotsPerPage
}

// Current is the open group of st, opened when there is none: then cleaning may
// have to make room first, for which it waits until deadline.
func (t *Table) Current(ctx context.Context, st Stream, deadline time.Time) (*Group, error) {
	patience := t.patience()
	for {
		t.mu.Lock()
		g, freed := t.mu.Open[st], t.mu.freed
		t.mu.Unlock()
		if g != nil {
			return g, nil
		}
		if err := t.TakeOpening(ctx, "put"); err != nil {
			if skep.KindOf(err) == skep.Deadline && ctx.Err() == nil { // drives that others wait for
				err = &skep.Error{Op: "put", Kind: skep.DeviceFailed, Field: "group",
					Value: "being opened for too long", Err: err}
			}
			return nil, err
		}
		t.mu.Lock()
		g = t.mu.Open[st]
		t.mu.Unlock()
		var err error
		if g == nil {
			g, err = t.openGroup(ctx, st)
		}
		t.Opening.Give()
		if err == nil {
			t.Kick()
			return g, nil
		}
		if err != ErrFull {
			return nil, err
		}
		if st != Kept { // the cleaner does not wake itself, for ever
			t.Kick()
		}
		if !time.Now().Before(deadline) || patience.enough() {
			return nil, ErrFull
		}
		again := time.NewTimer(Wait)
		select {
		case <-freed:
		case <-again.C:
		case <-ctx.Done():
			again.Stop()
			return nil, &skep.Error{Op: "put", Kind: skep.Deadline, Err: ctx.Err()}
		case <-t.Closing:
			again.Stop()
			return nil, errNotOpen
		}
		again.Stop()
	}
}

// Place takes cells in g for leading blocks of n, and says where in their Copies. No blocks: g is sealed now, another
// group may do; fresh says that g was empty, so that no group will.
func (t *Table) Place(g *Group, n *Needs) (r Reservation, fresh bool) {
	r.Group = g
	entries := 0
	t.mu.Lock()
	defer t.mu.Unlock()
	f := g.Filler
	if g.Life.State() != Open {
		return r, false
	}
	if n.Copies > len(g.Drives) {
		if t.takingLocked() <= len(g.Drives) {
			return r, true
		}
		t.sealLocked(g) // it was opened while some took nothing new: the next one has them
		return r, false
	}
	st := f.Stats()
	fresh = st.Payload+st.Log == 0 && g.inline == 0
	logged := markEntry
	f.Mark() // small blocks share pages with those of this append only
	for i := range n.Blocks {
		b := &n.Blocks[i]
		before := f.Point()
		if !t.placeBlockLocked(g, n, b) {
			f.Rollback(before)
			break
		}
		length := b.logged()
		if !t.takeLogLocked(&r, segment.AppendPages(logged+length), n.logs(len(g.Drives))) {
			f.Rollback(before)
			break
		}
		logged += length
		if b.Replaces {
			entries++
		}
		g.placed += Weight(b.Pages, b.Bytes, n.Copies, b.Record)
		g.copied.add(layout.SlotsOf(b.Pages, b.Bytes), len(b.Copies), length*len(r.Logs))
		r.Blocks++
	}
	if r.Blocks == 0 && t.fitsNoneLocked(g, n) {
		return r, true // what comes next may fit into g
	}
	if r.Blocks == 0 {
		t.sealFullLocked(g)
		return r, fresh
	}
	g.Entries += entries
	g.Pending += 2 // until no drive writes for it any more, and until it is published
	r.Seq = t.Root.Begin()
	return r, false
}

// fitsNoneLocked says that the first block of n would not fit into an empty group of g's drives. It takes no place.
// REQUIRES: the table's lock.
func (t *Table) fitsNoneLocked(g *Group, n *Needs) bool {
	filler, err := layout.NewFiller(len(g.Drives), int(t.SegmentBytes/layout.PageSize))
	if err != nil || t.takingLocked() > len(g.Drives) { // the next one has more
		return false
	}
	last, root := t.mu.last, t.mu.root
	defer func() { t.mu.last, t.mu.root = last, root }()
	b := n.Blocks[0]
	b.Copies = nil
	filler.Mark()
	r := Reservation{Group: &Group{Num: g.Num, Drives: g.Drives, Filler: filler, Logged: make([]int, len(g.Drives))}}
	return !t.placeBlockLocked(r.Group, n, &b) ||
		!t.takeLogLocked(&r, segment.AppendPages(markEntry+b.logged()), n.logs(len(g.Drives)))
}

// placeBlockLocked takes the cells of one block and its copies. REQUIRES: the table's lock.
func (t *Table) placeBlockLocked(g *Group, n *Needs, b *Need) bool {
	b.Copies = b.Copies[:0]
	if b.Pages == 0 {
		if g.inline >= mostInline {
			return false
		}
		g.inline++
		b.Copies = append(b.Copies, layout.Location{Group: g.Num, Page: uint32(g.inline - 1), Device: InlineDevice})
		return true
	}
	if layout.Packed(b.Pages, b.Bytes) {
		return t.placePackedLocked(g, n, b)
	}
	loc, ok := g.Filler.Place(b.Pages, t.startLocked(n, b, len(g.Drives)))
	if !ok {
		return false
	}
	loc.Group = g.Num
	t.mu.last = lastStart{fp: b.FP, device: int(loc.Device), set: true}
	b.Copies = append(b.Copies, loc)
	for c := 1; c < n.Copies; c++ {
		l, ok := g.Filler.PlaceCopy(loc, b.Pages, layout.Rotation(g.Num, c, len(g.Drives)), b.Copies[1:]...)
		if !ok {
			return false
		}
		l.Group = g.Num
		b.Copies = append(b.Copies, l)
	}
	return true
}

// placePackedLocked takes slots for one block and its copies, on different devices.
// REQUIRES: the table's lock, and a batch begun in the group's filler.
func (t *Table) placePackedLocked(g *Group, n *Needs, b *Need) bool {
	size := int(b.Bytes)
	for c := range n.Copies {
		l, ok := g.Filler.Share(size, b.Copies...)
		if !ok {
			// Only a page of its own begins where the block's turn is.
			start := 0
			if c == 0 {
				start = t.startLocked(n, b, len(g.Drives))
			} else {
				start = int(b.Copies[0].Device) + layout.Rotation(g.Num, c, len(g.Drives))
			}
			if l, ok = g.Filler.PlacePacked(size, start, b.Copies...); !ok {
				return false
			}
		}
		l.Group = g.Num
		if c == 0 {
			t.mu.last = lastStart{fp: b.FP, device: int(l.Device), set: true}
		}
		b.Copies = append(b.Copies, l)
	}
	return true
}

// startLocked is the device a block begins on: its parent's next by SWARM eq. 7, or
// the running pointer's for a chain's first block, an orphan and an unchained one.
// REQUIRES: the table's lock.
func (t *Table) startLocked(n *Needs, b *Need, drives int) int {
	units, unitPages := layout.UnitFor(b.Pages, drives)
	layer := 1
	if n.LayerBytes > 0 {
		layer = layout.LayerUnits(n.LayerBytes, unitPages)
	}
	if b.Begin >= 0 {
		return b.Begin % drives
	}
	if b.HasParent {
		if e, ok := t.Index.Resolve(b.Parent); ok && e.Depth+1 == b.Depth {
			if l := layout.Unpack(e.Location); l.Device != InlineDevice && int(l.Device) < drives {
				base := layout.Base(int(l.Device), int(e.Depth), units, drives, layer)
				return layout.Start(base, int(b.Depth), units, drives, layer)
			}
		}
		if last := &t.mu.last; last.set && last.fp == b.Parent {
			base := layout.Base(last.device%drives, int(b.Depth)-1, units, drives, layer)
			return layout.Start(base, int(b.Depth), units, drives, layer)
		}
	}
	root := t.mu.root
	t.mu.root = (root + units) % (1 << 30)
	return root % drives
}

// takeLogLocked grows the append's log reservation to want pages. REQUIRES: the table's lock.
func (t *Table) takeLogLocked(r *Reservation, want, copies int) bool {
	g := r.Group
	if r.Logs == nil {
		r.Logs = make([]LogPlace, copies)
		for c := range r.Logs {
			r.Logs[c].Device = g.shortestLog(r.Logs[:c])
		}
	}
	more := want - r.LogPages
	if more <= 0 {
		return true
	}
	var pages [skep.MaxCopies]uint32
	for c := range r.Logs {
		p, ok := g.Filler.Log(r.Logs[c].Device, more)
		if !ok {
			if r.LogPages == 0 {
				r.Logs = nil
			}
			return false // the caller rolls the filler back; what was taken before stands
		}
		pages[c] = p
	}
	for c := range r.Logs {
		r.Logs[c].Page = pages[c]
		g.Logged[r.Logs[c].Device] += more
	}
	r.LogPages = want
	return true
}

// shortestLog is the device with the shortest log that none of others is on: rows end
// where the longest log begins, so logs grow evenly.
func (g *Group) shortestLog(others []LogPlace) int {
	best := -1
next:
	for d := range g.Drives {
		for _, o := range others {
			if o.Device == d {
				continue next
			}
		}
		if best < 0 || g.Logged[d] < g.Logged[best] {
			best = d
		}
	}
	return best
}

// FirstGain is the part of a group, one in so many, that its cleaning has to gain where there are others. A refusal of
// as much as that of a segment, or less, says that a group is full.
const FirstGain = 8

// PlaceEntries takes pages in so many of g's logs, or all it has, for entries that are no blocks. False: g
// has none, and is sealed now.
func (t *Table) PlaceEntries(g *Group, pages, copies int) (r Reservation, ok bool) {
	r.Group = g
	t.mu.Lock()
	defer t.mu.Unlock()
	if g.Life.State() != Open {
		return r, false
	}
	before := g.Filler.Mark()
	if !t.takeLogLocked(&r, pages, min(copies, len(g.Drives))) {
		g.Filler.Rollback(before)
		// Few pages are refused where hardly any is left: what g holds is what fits into it.
		// Otherwise its cleaning would seem to gain the rest, and fill the next one as far, for ever.
		g.Full = g.Full || pages*FirstGain <= int(t.SegmentBytes/layout.PageSize)
		t.sealLocked(g)
		t.recordSealedLocked(g)
		return r, false
	}
	g.Entries++
	g.Pending++
	r.Seq = t.Root.Begin()
	return r, true
}

// markCopies is on how many drives the mark of an orderly end stands.
const markCopies = 2

// PlaceLast takes a page for the last entry of an orderly end. Where every open group is full, a spare is opened for
// it; the catalog has its row. False: there is none.
func (t *Table) PlaceLast() (Reservation, bool) {
	t.mu.Lock()
	open := slices.Clone(t.mu.Open[:])
	t.mu.Unlock()
	for _, g := range open {
		if g == nil {
			continue
		}
		if r, ok := t.PlaceEntries(g, 1, markCopies); ok {
			return r, true
		}
	}
	if g := t.openSpare(); g != nil {
		return t.PlaceEntries(g, 1, markCopies)
	}
	return Reservation{}, false
}

// LogDrives are those an append's log goes to.
func (r *Reservation) LogDrives() []*Drive {
	out := make([]*Drive, len(r.Logs))
	for i, l := range r.Logs {
		out[i] = r.Group.Drives[l.Device]
	}
	return out
}

// EndAppend counts one of the two ends of an append; after both the group may be
// cleaned.
func (t *Table) EndAppend(g *Group) {
	t.mu.Lock()
	g.Pending--
	t.recordSealedLocked(g)
	t.easedBy(g)
	t.mu.Unlock()
}

// Seal ends a group's filling: a drive of it failed a write, say, and the next append is to try other cells.
func (t *Table) Seal(g *Group) {
	t.mu.Lock()
	t.sealLocked(g)
	t.mu.Unlock()
}

// KeptToSpare says whether the cleaner's open group has room to spare.
func (t *Table) KeptToSpare() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.mu.Open[Kept] != nil && t.freeGroupsLocked() >= t.KeptFree
}

// KeptHasRoom says whether the cleaner's group is open, or another can be.
func (t *Table) KeptHasRoom() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.mu.Open[Kept] != nil || t.freeGroupsLocked() > 0
}
