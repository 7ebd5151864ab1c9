package rebuild

import (
	"cmp"
	"context"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/skepkv/skep/store/internal/locks"
	"github.com/skepkv/skep/store/internal/segio"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/index"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/catalog"
	"github.com/skepkv/skep/store/internal/namespaces"
	"github.com/skepkv/skep/store/report"
	"github.com/skepkv/skep/store/segment"
)

// rebuilder is one rebuild under way.
type rebuilder struct {
	in      Input
	drives  []*Drive
	telling locks.Mutex[locks.RebuildTelling]
	rep     report.Rebuild

	groups map[uint32]*foundGroup
	shards [64]shard
	scopes scopes

	mu         locks.Mutex[locks.Rebuild] // the rest
	namespaces map[skep.NamespaceID]segment.Namespace
	ended      map[skep.NamespaceID]uint32            // deleted ones: the last instance of each
	endings    map[skep.NamespaceID]segment.Namespace // what the logs say of those
	topSpace   skep.NamespaceID
	whole      map[uint32]uint64 // purged instances: when
	salts      map[namespaces.SaltTag]segment.Purge
	sealings   map[segment.Sealing]bool
	mark       uint64 // everything up to it was flushed
	top        uint64 // highest sequence number seen
	topGroup   uint32
	topInst    uint32
	voids      map[uint64]bool      // appends of Durable blocks that were never whole
	relog      bool                 // the devices do not know all names
	gone       []catalog.GroupState // cleaned, as some header says, and others may not
	tainted    map[uint32]bool      // groups with records that were dropped without a tombstone
	unwritten  []missingHeader      // of groups whose others name them

	rows rowWriter

	records, logBytes, readBytes atomic.Int64
}

// foundGroup is a group as its headers tell it.
type foundGroup struct {
	state  catalog.GroupState
	header segment.Header
	gone   bool
	absent bool         // it has segments on drives that are missing
	order  int          // among the groups, by number
	logs   atomic.Int32 // still to be read
	spills atomic.Int32 // tables written before all were read
	mu     locks.Mutex[locks.RebuildGroup]
	rows   rowSet            // of the logs read
	inline map[inlineID]bool // values in records so far
}

// missingHeader is the i-th header of a group, which a crash or damage kept from its drive.
type missingHeader struct {
	group *foundGroup
	i     int
}

// inlineID names a record of a value that is in it.
type inlineID struct {
	seq     uint64
	ordinal uint32
}

// takeInline gives such a record a place; false when it has one already.
func (g *foundGroup) takeInline(seq uint64, ordinal uint32) (page uint32, ok bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	id := inlineID{seq, ordinal}
	if g.inline[id] {
		return 0, false
	}
	if g.inline == nil {
		g.inline = map[inlineID]bool{}
	}
	g.inline[id] = true
	return uint32(len(g.inline) - 1), true
}

func newRebuilder(in Input) *rebuilder {
	r := &rebuilder{in: in, drives: slices.Clone(in.Drives), groups: map[uint32]*foundGroup{}, namespaces: map[skep.NamespaceID]segment.Namespace{}, ended: map[skep.NamespaceID]uint32{}, endings: map[skep.NamespaceID]segment.Namespace{},
		sealings: map[segment.Sealing]bool{}, whole: map[uint32]uint64{}, salts: map[namespaces.SaltTag]segment.Purge{}, voids: map[uint64]bool{}, tainted: map[uint32]bool{}}
	for i := range r.shards {
		r.shards[i].stones, r.shards[i].exact = map[index.Fingerprint][]stone{}, map[exactID]bool{}
	}
	r.scopes.ids = map[scope]uint32{}
	r.rows.start(in.Catalog, cmp.Or(in.RowBytes, rowMemory))
	r.rep.Store, r.rep.Devices, r.rep.Faults, r.rep.DryRun = in.ID.String(), len(r.drives), []report.Fault{}, in.DryRun
	for _, f := range in.Left {
		report.Note(&r.rep.Faults, &r.rep.MoreFaults, f)
	}
	return r
}

// progress is told one at a time.
func (r *rebuilder) progress(p report.RebuildProgress) {
	if r.in.Progress != nil {
		r.telling.Lock()
		defer r.telling.Unlock()
		r.in.Progress(p)
	}
}

func (r *rebuilder) shard(fp index.Fingerprint) *shard { return &r.shards[fp[0]&63] }

func (r *rebuilder) fault(f report.Fault) {
	r.mu.Lock()
	report.Note(&r.rep.Faults, &r.rep.MoreFaults, f)
	r.mu.Unlock()
}

// needed notes a range that had to be read.
func (r *rebuilder) needed(d *Drive, off, n int64) {
	if n == 0 {
		return
	}
	r.mu.Lock()
	r.rep.Reads = append(r.rep.Reads, report.RebuildRead{Path: d.Path, Off: off, Bytes: n})
	r.mu.Unlock()
}

func (r *rebuilder) run(ctx context.Context) error {
	if err := r.in.Catalog.Empty(ctx); err != nil {
		return err
	}
	if err := r.readHeaders(ctx); err != nil {
		return err
	}
	if err := r.readLogs(ctx); err != nil {
		return err
	}
	if err := r.settleNames(); err != nil {
		return err
	}
	if err := r.link(ctx); err != nil {
		return err
	}
	if err := r.verify(ctx); err != nil {
		return err
	}
	if err := r.settle(ctx); err != nil {
		return err
	}
	r.rep.LogBytes, r.rep.ReadBytes, r.rep.Levels = r.logBytes.Load(), r.readBytes.Load(), len(r.rows.tables)
	if !r.rep.DryRun {
		r.mendHeaders(ctx)
	}
	return r.finish(ctx)
}

// readHeaders reads page 0 of every segment of every device and makes the groups.
func (r *rebuilder) readHeaders(ctx context.Context) error {
	at := make([][]*segment.Header, len(r.drives)) // by device and segment; nil: none that is whole
	var failed []error
	var wg sync.WaitGroup
	for i, d := range r.drives {
		if d.Absent {
			continue
		}
		at[i] = make([]*segment.Header, d.Segments)
		all := make([]uint32, d.Segments)
		for n := range all {
			all[n] = uint32(n)
		}
		r.rep.Segments += d.Segments
		wg.Go(func() {
			segio.ReadHeaders(ctx, d.IO, r.in.ID, all, r.in.Timeout, func(seg uint32, h *segment.Header, err error) {
				r.logBytes.Add(layout.PageSize)
				r.needed(d, d.offset(seg), layout.PageSize)
				switch k := skep.KindOf(err); {
				case err == nil:
					copied := *h
					at[i][seg] = &copied
				case k == skep.Foreign: // never written, or another store's
				case k == skep.Damaged, k == skep.Version:
					r.fault(report.Fault{Device: d.Path, Segment: int(seg), What: "segment header", Problem: err.Error(), Do: "nothing: it is written again from the group's other headers"})
				default:
					r.mu.Lock()
					failed = append(failed, err)
					r.mu.Unlock()
				}
			})
		})
	}
	wg.Wait()
	r.progress(report.RebuildProgress{Stage: "headers", Done: r.rep.Segments, Of: r.rep.Segments})
	if ctx.Err() != nil {
		return &skep.Error{Op: "rebuild", Kind: skep.Deadline, Err: ctx.Err()}
	}
	if len(failed) > 0 {
		return &skep.Error{Op: "rebuild", Kind: skep.DeviceFailed, Field: "headers that cannot be read", Value: len(failed), Limit: "none", Err: failed[0]}
	}
	for i := range at {
		for _, h := range at[i] {
			if h != nil {
				r.addHeader(h)
			}
		}
	}
	r.giveUp()
	claims := r.claims()
	for _, g := range r.groups {
		r.judge(g, at, claims)
	}
	for num, g := range r.groups {
		if g.gone {
			r.rep.Freed++
			r.gone = append(r.gone, catalog.GroupState{Group: num, Generation: g.state.Generation, State: catalog.GroupFree, SegmentBytes: r.in.SegmentBytes, OpenedSeq: g.header.Seq})
			delete(r.groups, num)
		}
	}
	r.rep.Groups = len(r.groups)
	return nil
}

// addHeader takes a group from one of its headers.
func (r *rebuilder) addHeader(h *segment.Header) {
	r.top = max(r.top, h.Seq, h.Generation)
	r.topGroup = max(r.topGroup, h.Group)
	g := r.groups[h.Group]
	if g == nil || h.Generation > g.state.Generation {
		g = &foundGroup{state: catalog.GroupState{Group: h.Group, Generation: h.Generation, Copies: h.Copies}, header: *h}
		r.groups[h.Group] = g
	}
	if h.Generation == g.state.Generation && h.Flags&segment.HeaderFreed != 0 {
		g.gone = true
	}
}

// giveUp makes room for what groups say they have on drives that are missing, or that were given up before.
func (r *rebuilder) giveUp() {
	for _, g := range r.groups {
		for _, slot := range g.header.Devices {
			for r.in.Partial && len(r.drives) <= int(slot.Device) {
				r.drives = append(r.drives, r.in.Store.GiveUp(len(r.drives)))
			}
			if int(slot.Device) < len(r.drives) && r.drives[slot.Device].Absent {
				r.drives[slot.Device].Segments = max(r.drives[slot.Device].Segments, int(slot.Segment)+1)
			}
		}
	}
	r.rep.Missing, r.rep.Devices = r.in.Missing, len(r.drives)
	if r.absent() > 0 {
		r.relog = true // what it had stands on one drive less
	}
}

// headerAt is the header in a group's slot, nil where none could be read.
func headerAt(at [][]*segment.Header, slot segment.Slot) *segment.Header {
	if int(slot.Device) >= len(at) || int(slot.Segment) >= len(at[slot.Device]) {
		return nil
	}
	return at[slot.Device][slot.Segment]
}

// claims is the newest group that names each segment its own. Whoever had it before was freed,
// whether its own headers say so or not.
func (r *rebuilder) claims() map[segment.Slot]uint64 {
	newest := map[segment.Slot]uint64{}
	for _, g := range r.groups {
		for _, slot := range g.header.Devices {
			newest[slot] = max(newest[slot], g.header.Seq)
		}
	}
	return newest
}

// judge finds a group's segments, and whether another group has taken one of them.
func (r *rebuilder) judge(g *foundGroup, at [][]*segment.Header, claims map[segment.Slot]uint64) {
	var lacks []missingHeader
	state := g.state
	state.State, state.SegmentBytes, state.OpenedSeq = catalog.GroupSealed, r.in.SegmentBytes, g.header.Seq
	for _, slot := range g.header.Devices {
		if int(slot.Device) >= len(r.drives) || int(slot.Segment) >= r.drives[slot.Device].Segments {
			if !g.gone {
				r.fault(report.Fault{Group: int(g.state.Group), What: "group", Problem: "it has a segment on device " + strconv.Itoa(int(slot.Device)) + " that is not there",
					Do: "bring the device back; without it the group's blocks are lost"})
			}
			g.gone = true
			return
		}
		h := headerAt(at, slot)
		if claims[slot] > g.header.Seq {
			g.gone = true
		}
		g.absent = g.absent || r.drives[slot.Device].Absent
		state.Devices = append(state.Devices, catalog.Member{Device: slot.Device, Segment: slot.Segment})
		if h == nil || h.Group != state.Group || h.Generation != state.Generation {
			lacks = append(lacks, missingHeader{g, len(state.Devices) - 1})
		}
	}
	g.state = state
	if !g.gone {
		r.unwritten = append(r.unwritten, lacks...)
	}
}

// mendHeaders writes the headers that groups lack on drives that are here: those of a group
// whose opening a crash cut off, and damaged ones. Where it cannot, a scrub does.
func (r *rebuilder) mendHeaders(ctx context.Context) {
	failed := map[*Drive]bool{}
	for _, m := range r.unwritten {
		d := r.driveOf(m.group, m.i)
		if d.Away() || failed[d] {
			continue
		}
		if err := r.in.Store.WriteHeader(ctx, &m.group.state, m.i); err != nil {
			failed[d] = true
			r.in.Log.Warn("header of a group not written again", "device", d.Path, "segment", m.group.state.Devices[m.i].Segment, "error", err)
		}
	}
}
