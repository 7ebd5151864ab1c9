package scrub

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/catalog"
	"github.com/skepkv/skep/store/device"
	"github.com/skepkv/skep/store/internal/limits"
	"github.com/skepkv/skep/store/internal/namespaces"
	"github.com/skepkv/skep/store/internal/observe"
	"github.com/skepkv/skep/store/internal/segio"
	"github.com/skepkv/skep/store/internal/space"
	"github.com/skepkv/skep/store/report"
	"github.com/skepkv/skep/store/segment"
)

// Options say how a store is scrubbed.
type Options struct {
	Rate     int64 // bytes read a second; 0: as fast as it goes
	DryRun   bool  // tell and mend nothing
	LogsOnly bool  // no block is read
	Progress func(report.Scrub)
}

// run reads and verifies everything stored, every copy, as fast as pace lets it, and tells work how far it is. What was
// found until ctx ended is in the report.
func (s *Scrubber) run(ctx context.Context, o Options, pace *limits.Pace, work *observe.Work) (report.Scrub, error) {
	sc := s.begin(o, pace, work)
	ctx, sc.stop = context.WithCancel(ctx)
	defer sc.stop()
	err := sc.run(ctx)
	sc.tally()
	if err == nil && ctx.Err() != nil {
		err = &skep.Error{Op: "scrub", Kind: skep.Deadline, Err: context.Cause(ctx)}
	}
	return sc.rep, err
}

// Headers compares the superblocks of drives, and the headers of groups, with what the catalog says of them, and writes
// again what is wrong.
func (s *Scrubber) Headers(ctx context.Context, dryRun bool, drives []*space.Drive,
	groups []*space.Group) report.Scrub {
	sc := s.begin(Options{DryRun: dryRun}, nil, nil)
	for _, d := range drives {
		sc.superblocks(ctx, d)
	}
	for _, g := range groups {
		sc.headers(ctx, g)
	}
	return sc.rep
}

func (s *Scrubber) begin(o Options, pace *limits.Pace, work *observe.Work) *pass {
	return &pass{s: s, o: o, v: *s.Verifier(), rep: report.Scrub{DryRun: o.DryRun, Faults: []report.Fault{}},
		start:     time.Now(),
		instances: map[uint32]bool{}, seals: map[segment.Sealing]bool{}, salts: map[namespaces.SaltTag]bool{},
		entries: map[uint64]int{}, settled: map[uint32]bool{}, budget: pace, work: work}
}

// pass is one run.
type pass struct {
	s      *Scrubber
	o      Options
	v      Verifier
	rep    report.Scrub
	budget *limits.Pace
	work   *observe.Work
	stop   context.CancelFunc
	start  time.Time
	told   int64 // bytes that work knows of
	spent  int64 // and that the budget does
	// What there was when the pass began: by the catalog keys in use, namespaces, purged salts with their epochs.
	keys   []catalog.Sealing
	spaces []*namespaces.Namespace
	purged map[namespaces.SaltTag]uint64
	// What the logs say of these; blind: one could not be read.
	instances map[uint32]bool
	seals     map[segment.Sealing]bool
	salts     map[namespaces.SaltTag]bool
	blind     bool
	settled   map[uint32]bool // groups that nobody writes to any more and whose logs were read
	entries   map[uint64]int  // that are no blocks: how many there are, by hash
	singles   []single
}

// single is an entry that should be on two drives and is on one.
type single struct {
	g     *space.Group
	hash  uint64
	entry []byte
}

func (sc *pass) tally() {
	sc.rep.Bytes = sc.v.read
	sc.rep.Seconds = time.Since(sc.start).Seconds()
	if sc.rep.Seconds > 0 {
		sc.rep.BytesPerSec = float64(sc.rep.Bytes) / sc.rep.Seconds
	}
}

func (sc *pass) run(ctx context.Context) (err error) {
	s := sc.s
	if sc.keys, err = s.Catalog.Sealings(ctx); err != nil {
		return err
	}
	sc.spaces, sc.purged = slices.Collect(s.Names.All()), maps.Collect(s.Names.PurgedSalts())
	for _, d := range s.Space.Drives() {
		sc.superblocks(ctx, d)
	}
	groups := s.Space.Numbers(0)
	sc.rep.OfGroups = len(groups)
	for _, num := range groups {
		if ctx.Err() != nil {
			return nil
		}
		g := s.Space.Pin(num)
		if g == nil {
			continue // cleaned meanwhile
		}
		err := sc.group(ctx, g)
		s.Space.Unpin(g)
		if err != nil || ctx.Err() != nil {
			return err
		}
		sc.rep.Groups++
		if sc.o.Progress != nil {
			sc.tally()
			sc.o.Progress(sc.rep)
		}
	}
	sc.names(ctx)
	return nil
}

// yieldFor is how long a scrub that was given no rate waits at most, between two blocks, for
// restores to end.
const yieldFor = 20 * time.Millisecond

// pace waits as the rate says, or where there is none for a while if restores read. Once the store closes nothing waits
// any more: the pass ends.
func (sc *pass) pace(ctx context.Context) {
	sc.work.Add(sc.v.read - sc.told)
	sc.told = sc.v.read
	for end := time.Now().Add(yieldFor); sc.givesWay() && time.Now().Before(end); {
		if sc.budget.Sleep(ctx, time.Millisecond) != nil {
			break
		}
	}
	if n := sc.v.read - sc.spent; n >= sc.budget.Piece() {
		sc.spent += n
		_ = sc.budget.Take(ctx, n)
	}
	select {
	case <-sc.s.Closing:
		sc.stop()
	default:
	}
}

// group scrubs one group, which is pinned.
func (sc *pass) group(ctx context.Context, g *space.Group) error {
	s := sc.s
	sc.headers(ctx, g)
	var rows []Block
	err := s.Catalog.ScanGroup(ctx, g.Num, func(l layout.Location, b []byte) error {
		var rec segment.Record
		if err := segment.DecodeRecord(b, &rec); err != nil {
			sc.stays(report.Fault{Group: int(g.Num), What: "catalog row", Problem: err.Error(),
				Do: "close the store and open it with all its devices, or skep rebuild it: its catalog is made anew"})
			return nil
		}
		rows = append(rows, Block{s.Names.Fingerprint(rec.Instance, namespaces.Tag(rec.SaltTag), rec.Key), l, rec})
		return nil
	})
	if err != nil {
		return err
	}
	var logged map[segment.RecordID]int
	logOK := s.Space.IsQuiet(g)
	if logOK { // the others are read last
		sc.settled[g.Num] = true
		logged, logOK = sc.logs(ctx, g, true)
	}
	sc.blocks(ctx, g, rows, func(r *Block, state State) {
		sc.note(g, &r.Record, state)
		if n := logged[r.Record.ID()]; state == Sound && logOK && n < s.logsWanted(g, &r.Record) {
			sc.relog(ctx, g, r, n)
		}
	})
	return nil
}

func (sc *pass) note(g *space.Group, rec *segment.Record, state State) {
	f := report.Fault{Group: int(g.Num), Key: rec.Key.String(), What: "block"}
	switch state {
	case BadCopy:
		sc.rep.BadCopies++
		f.Problem, f.Do = "a copy has wrong bytes", "scrub without --dry-run: it is written again from the other"
	case Repaired:
		sc.rep.Repaired++
		f.Problem, f.Do = "a copy had wrong bytes", "nothing: it was written again; look at the drive if it repeats"
	case Lost:
		sc.rep.Lost++
		f.Problem, f.Do = "no copy has the right bytes", "nothing: it is forgotten; look at the drive"
		if sc.o.DryRun {
			f.Do = "scrub without --dry-run: it is forgotten"
		}
	case Unread:
		sc.rep.Unread++
		f.Problem, f.Do = "a drive does not deliver it", "look at the drive"
	default:
		return
	}
	sc.rep.Fault(f)
}

// logsWanted is in how many logs of its group a block's record has to be: in as many as the
// block has copies. Where a drive is away, one that is left will do until the block is moved.
func (s *Scrubber) logsWanted(g *space.Group, rec *segment.Record) int {
	for _, d := range g.Drives {
		if d.Away() {
			return 1
		}
	}
	copies := len(rec.Copies)
	if ns := s.Names.Of(rec.Instance); copies == 0 && ns != nil { // its value is in the record
		copies = ns.Info.Copies
	}
	return max(1, min(copies, len(g.Drives)))
}

// logs gives in how many of a group's logs each record is, and notes the other entries; quiet: nobody writes them any
// more. Not ok: they cannot be read.
func (sc *pass) logs(ctx context.Context, g *space.Group, quiet bool) (map[segment.RecordID]int, bool) {
	s := sc.s
	found := map[segment.RecordID]int{}
	others := map[string]int{} // entries that are no blocks: how often each is there
	err := s.Space.ScanGroupLogs(ctx, g, func(_ *segment.Append, e segment.Entry) error {
		switch e.Kind {
		case segment.KindBlock:
			if h, err := segment.DecodeHead(e.Body); err == nil {
				found[h.ID()]++
			}
		case segment.KindMark:
		default:
			var w segment.LogWriter
			if err := w.Entry(e); err == nil {
				others[string(w.Bytes())]++
			}
			sc.name(e)
		}
		return nil
	})
	if err != nil {
		if sc.blind = true; ctx.Err() == nil {
			sc.stays(report.Fault{Group: int(g.Num), What: "log", Problem: err.Error(), Do: "look at the drive"})
		}
		return nil, false
	}
	for entry, n := range others {
		h := xxh3.HashString(entry)
		sc.entries[h] += n
		if quiet && len(g.Drives) > 1 && n < namespaces.LeastDrives {
			sc.singles = append(sc.singles, single{g, h, []byte(entry)})
		}
	}
	return found, true
}

// mostLooks is how many times the logs that are left are looked for, while groups go as quickly as they are read.
const mostLooks = 8

// logsLeft reads the logs of groups that were being written when their turn came, or are newer than the pass: what a
// group said that was cleaned before its turn was carried on to these. False: some went in turn at each look, and what
// they said may be anywhere.
func (sc *pass) logsLeft(ctx context.Context) bool {
	s := sc.s
	for range mostLooks {
		gone := false
		for _, num := range s.Space.Numbers(0) {
			if ctx.Err() != nil {
				return false
			}
			if sc.settled[num] {
				continue
			}
			g := s.Space.Pin(num)
			if g == nil {
				gone = true
				continue
			}
			sc.settled[num] = s.Space.IsQuiet(g)
			sc.logs(ctx, g, sc.settled[num])
			s.Space.Unpin(g)
			sc.pace(ctx)
		}
		if !gone {
			return true
		}
	}
	s.Log.Warn("names, purges and keys not looked for in the logs: groups were cleaned as quickly as they were read")
	return false
}

// name notes that the devices know a namespace, a salt or a key in use.
func (sc *pass) name(e segment.Entry) {
	switch e.Kind {
	case segment.KindNamespace:
		if n, err := segment.DecodeNamespace(e.Body); err == nil && !n.Deleted {
			sc.instances[n.Instance] = true
		}
	case segment.KindSealing:
		if v, err := segment.DecodeSealing(e.Body); err == nil {
			sc.seals[v] = true
		}
	case segment.KindPurge:
		if p, err := segment.DecodePurge(e.Body); err == nil && p.Salted && p.Seq > 0 {
			sc.salts[namespaces.SaltTag{Instance: p.Instance, Tag: namespaces.Tag(p.SaltTag)}] = true
		}
	}
}

// names writes again what the devices do not know of namespaces, salts and keys that were in use when the pass began,
// and are.
func (sc *pass) names(ctx context.Context) {
	promised, err := sc.s.Catalog.Intents(ctx)
	for _, i := range promised { // the drives are told when they have room
		for e := range segment.Entries(i.Entries) {
			var w segment.LogWriter
			if sc.name(e); w.Entry(e) == nil {
				sc.entries[xxh3.HashString(string(w.Bytes()))] += namespaces.LeastDrives
			}
		}
	}
	all := sc.logsLeft(ctx)
	if err != nil && ctx.Err() == nil {
		sc.stays(report.Fault{What: "catalog", Do: "scrub again",
			Problem: "what the devices are to be told cannot be read: " + err.Error()})
	}
	if err != nil || sc.blind || ctx.Err() != nil {
		return // what could not be read may have it
	}
	n := sc.s.Names
	for _, e := range sc.singles {
		// Else an earlier scrub has written it again, or the cleaner since.
		if sc.entries[e.hash] < namespaces.LeastDrives && sc.s.Space.Find(e.g.Num) != nil {
			sc.relogEntry(ctx, e.g, e.entry, "an entry of the log is on one drive only")
		}
	}
	if !all {
		return
	}
	var missing []*segment.LogWriter
	for _, ns := range sc.spaces {
		var w segment.LogWriter
		if !sc.instances[ns.Instance] && w.Namespace(ns.Entry(sc.s.Root.Next())) == nil {
			missing = append(missing, &w)
		}
	}
	for k, epoch := range sc.purged {
		var w segment.LogWriter
		p := segment.Purge{Seq: epoch, Covers: epoch, Instance: k.Instance, Salted: true,
			SaltTag: segment.SaltTag(k.Tag)}
		if !sc.salts[k] && n.Of(k.Instance) != nil && n.EpochOf(k) == epoch && w.Purge(&p) == nil {
			missing = append(missing, &w)
		}
	}
	for _, r := range sc.keys {
		var w segment.LogWriter
		v := segment.Sealing{Instance: r.Instance, Key: r.Key}
		if r.Said && !sc.seals[v] && w.Sealing(&v) == nil {
			missing = append(missing, &w)
		}
	}
	for _, w := range missing {
		sc.relogEntry(ctx, nil, w.Bytes(), "no log has what a namespace, a purged salt or a key in use is")
	}
}

// LogAgain writes an entry again that is no block, unless it says nothing any more: then it is not needed. A dry run
// only says whether it is.
func (s *Scrubber) LogAgain(ctx context.Context, entry []byte, dryRun bool) (needed bool, err error) {
	defer s.Entering.Begin()()
	if !s.Names.Needed(entry) || s.outlived(entry) {
		return false, nil
	}
	if !dryRun {
		err = s.Host.LogEntries(ctx, entry)
	}
	return true, err
}

// outlived says of a tombstone that nothing is left which it covers: its scope was purged, or all groups are newer.
func (s *Scrubber) outlived(entry []byte) bool {
	for e := range segment.Entries(entry) {
		t, err := segment.DecodeTombstone(e.Body)
		if e.Kind != segment.KindTombstone || err != nil || max(t.Seq, t.Covers) >= s.Space.OldestBeside(nil) &&
			!s.Names.Dead(t.Instance, namespaces.Tag(t.SaltTag)) {
			return false
		}
	}
	return true
}

// relogEntry writes an entry of g, or of nowhere, again that is no block.
func (sc *pass) relogEntry(ctx context.Context, g *space.Group, entry []byte, problem string) {
	needed, err := sc.s.LogAgain(ctx, entry, sc.o.DryRun)
	if !needed {
		return
	}
	sc.rep.LogsMended++
	f := report.Fault{What: "log", Problem: problem, Do: "scrub without --dry-run: it is written again"}
	if g != nil {
		f.Group = int(g.Num)
	}
	switch {
	case err != nil:
		f.Do = "scrub again: it could not be written: " + err.Error()
		sc.rep.Unmended++
	case !sc.o.DryRun:
		f.Do = "nothing: it was written again"
	}
	sc.rep.Fault(f)
}

// RecordMissing is the problem of a block whose record no log has.
const RecordMissing = "the block's record is missing: a rebuild would lose it"

// relog writes a block again whose record is in no log, or in fewer than it should be.
func (sc *pass) relog(ctx context.Context, g *space.Group, r *Block, logs int) {
	if !sc.stillThere(r) {
		return
	}
	s, rec := sc.s, &r.Record
	f := report.Fault{Group: int(g.Num), Key: rec.Key.String(), What: "log", Problem: RecordMissing,
		Do: "scrub without --dry-run: it is written again"}
	if logs > 0 {
		f.Problem = "the block's record is on one drive only: a rebuild without that drive would lose it"
	}
	if !sc.o.DryRun {
		f.Do = "nothing: it was written again"
		ns := s.Names.Of(rec.Instance)
		n := int(rec.Pages) * layout.PageSize
		if len(sc.v.buf) < n {
			sc.v.buf = device.AlignedBuffer(n)
		}
		err := error(ErrMoved)
		if ns != nil {
			var got []byte
			got, err = s.Space.ReadVerified(ctx, g, ns.Info.Shape, rec, sc.v.buf[:n])
			if segio.Lent(sc.v.buf, got, err) {
				sc.v.buf = nil
			}
			if err == nil {
				err = s.Host.Rewrite(ctx, ns, r, got)
			}
		}
		if err == ErrMoved {
			return
		}
		if err != nil {
			sc.v.buf = nil
			sc.rep.Unmended++
			f.Do = "scrub again: it could not be written: " + err.Error()
		}
	}
	sc.rep.LogsMended++
	sc.rep.Fault(f)
}

// headers reads a group's headers, and writes again those that are wrong.
func (sc *pass) headers(ctx context.Context, g *space.Group) {
	s := sc.s
	for i, d := range g.Drives {
		want := s.Space.HeaderOf(g, i)
		h, wrong, err := segio.ReadHeader(ctx, d.IO(), g.Segments[i], s.Timeout)
		if err != nil {
			if ctx.Err() == nil {
				sc.stays(report.Fault{Device: d.Path, Group: int(g.Num), Segment: int(g.Segments[i]),
					What: "segment header", Problem: err.Error(), Do: "look at the drive"})
			}
			continue
		}
		problem := HeaderProblem(&h, wrong, &want)
		if problem == "" {
			continue
		}
		f := report.Fault{Device: d.Path, Group: int(g.Num), Segment: int(g.Segments[i]), What: "segment header",
			Problem: problem, Do: "scrub without --dry-run: it is written again"}
		gone := g.Life.State() >= space.Emptied
		if !sc.o.DryRun && !gone {
			f.Do = "nothing: it was written again"
			if gone, err = s.Space.RewriteHeader(ctx, g, i); err != nil {
				f.Do = sc.unwritten(ctx, err)
			}
		}
		if gone { // the cleaner frees it: that is what its header says
			return
		}
		sc.rep.Headers++
		sc.rep.Fault(f)
	}
}

// HeaderProblem says what is wrong with a header that should be want.
func HeaderProblem(h *segment.Header, wrong error, want *segment.Header) string {
	switch {
	case wrong != nil:
		return wrong.Error()
	case h.Store != want.Store || h.Device != want.Device || h.Segment != want.Segment:
		return "it is another segment's"
	case h.Group != want.Group || h.Generation != want.Generation:
		return "it says group " + strconv.Itoa(int(h.Group)) + " of another generation"
	case h.Flags&segment.HeaderFreed != 0:
		return "it says that the group was freed"
	}
	return ""
}

// superblocks reads a device's two superblocks, and writes again the one that is wrong.
func (sc *pass) superblocks(ctx context.Context, d *space.Drive) {
	if d.Removed.Load() {
		return
	}
	s := sc.s
	within, cancel := context.WithTimeout(ctx, 2*s.Timeout) // to read, and to write
	defer cancel()
	both, err := segio.ReadSuperblocks(within, "scrub", d.Dev, d.Path)
	if err != nil && ctx.Err() != nil {
		return
	}
	if err != nil {
		sc.stays(report.Fault{Device: d.Path, What: "superblock", Problem: err.Error(), Do: "look at the drive"})
		return
	}
	good, err := both.Choose()
	if err == nil && (good.Store != s.Store || good.Device != d.ID) {
		err = errors.New("it is another device's")
	}
	if err != nil {
		sc.rep.Headers++
		sc.stays(report.Fault{Device: d.Path, What: "superblock", Problem: err.Error(),
			Do: "both copies are wrong: the device opens no more; " +
				"take what it holds to another while the store is open"})
		return
	}
	for _, i := range both.Damaged() {
		sc.rep.Headers++
		f := report.Fault{Device: d.Path, What: "superblock", Problem: "copy " + strconv.Itoa(i) + " is damaged",
			Do: "scrub without --dry-run: it is written again"}
		if !sc.o.DryRun {
			f.Do = "nothing: it was written again"
			if err := segio.WriteSuperblock(within, s.Space.Durably(d), &good, i); err != nil {
				f.Do = sc.unwritten(ctx, err)
			}
		}
		sc.rep.Fault(f)
	}
}

// unwritten counts what could not be written, for err, and says what to do about it. No drive is blamed for what the end
// of the pass cut off.
func (sc *pass) unwritten(ctx context.Context, err error) (do string) {
	sc.rep.Unmended++
	if ctx.Err() != nil {
		return "scrub again: the pass ended before it was written"
	}
	return "look at the drive: it could not be written: " + err.Error()
}

// stays notes a fault, of something else than a block, that a scrub can do nothing about.
func (sc *pass) stays(f report.Fault) {
	sc.rep.Unmended++
	sc.rep.Fault(f)
}
