package store

import (
	"context"
	"errors"
	"os"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/index"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/catalog"
	"github.com/skepkv/skep/store/internal/dirlock"
	"github.com/skepkv/skep/store/internal/namespaces"
	"github.com/skepkv/skep/store/internal/segio"
	"github.com/skepkv/skep/store/internal/space"
	"github.com/skepkv/skep/store/segment"
)

// Verifying compares what devices, catalog and index say of a store that nobody has open,
// and changes nothing:
//
//	superblocks, headers   against the catalog's devices and groups
//	rows                   each within its group, none over another, of a known
//	                       namespace, with its parent where depth says
//	logs                   a rebuild is tried on the side: it must give the same blocks
//	index                  built as an open builds it: every row is found in it
//	payload                with Deep, every copy of every block

// VerifyOptions say how thoroughly.
type VerifyOptions struct {
	Deep     bool  // read payload, too
	Rate     int64 // of that, bytes a second; 0: as fast as it goes
	Progress func(stage string)
}

// Verify looks at the store in o.Dir. What is wrong with the store is in the report; an
// error says that it could not be looked at: Locked, NotFound, Deadline.
func Verify(ctx context.Context, o Options, v VerifyOptions) (rep VerifyReport, err error) {
	start := time.Now()
	if err := o.prepare(); err != nil {
		return rep, err
	}
	if v.Progress == nil {
		v.Progress = func(string) {}
	}
	if _, err := os.Stat(o.Dir); err != nil {
		return rep, &skep.Error{Op: "verify", Kind: skep.NotFound, Field: "dir", Value: o.Dir, Limit: "the directory of a store"}
	}
	lock, err := dirlock.Take(o.Dir, true)
	if err != nil {
		return rep, err
	}
	lock.Remove = lock.Made
	defer func() { err = errors.Join(err, lock.Release()) }()
	o.ReadOnly = true
	rep = VerifyReport{Faults: []Fault{}, Deep: v.Deep}
	v.Progress("opening")
	s := newStore(o)
	s.exclusive = true
	if err := s.open(ctx); err != nil {
		s.discardOpen()
		if ctx.Err() != nil {
			return rep, err
		}
		rep.Fault(openFault(err))
		rep.Seconds = time.Since(start).Seconds()
		return rep, nil
	}
	s.run()
	c := &checker{s: s, rep: &rep, v: v, rows: map[index.Fingerprint]row1{}}
	err = c.run(ctx)
	err = errors.Join(err, s.Close())
	rep.Sound = err == nil && len(rep.Faults) == 0
	rep.Seconds = time.Since(start).Seconds()
	return rep, err
}

// mendDevices says what to do where a rebuild would not work.
func mendDevices(err error) string {
	if skep.KindOf(err) == skep.Missing {
		return "bring the device back; if it is gone for good, skep device remove gives it up"
	}
	return "skep scrub"
}

// openFault says what keeps a store from opening, and what to do.
func openFault(err error) Fault {
	f := Fault{What: "store", Problem: err.Error(), Do: "see what it names"}
	switch k := skep.KindOf(err); {
	case damagedCatalog(err):
		f.What, f.Do = "catalog", "skep rebuild makes it anew from the devices"
	case k == skep.NotFound:
		f.What, f.Do = "catalog", "skep rebuild makes it anew from the devices, if they hold a store"
	case k == skep.Missing:
		f.What, f.Do = "device", "bring it back, or name where it is now"
	case k == skep.Foreign:
		f.What, f.Do = "device", "name the store's own devices"
	case k == skep.Version:
		f.Do = "use the skep that wrote it, or make the store anew"
	}
	return f
}

// row1 is what is kept of a row to compare with others.
type row1 struct {
	loc     uint64
	written uint64
	depth   uint32
	durable bool
}

type checker struct {
	s     *Store
	rep   *VerifyReport
	v     VerifyOptions
	rows  map[index.Fingerprint]row1
	stale map[uint32]bool // groups that are known to hold leftovers
	clean bool
}

func (c *checker) run(ctx context.Context) error {
	s, rep := c.s, c.rep
	root, err := s.catalog.Store(ctx)
	if err != nil {
		return err
	}
	intents, err := s.catalog.Intents(ctx)
	if err != nil {
		return err
	}
	c.clean = root.Clean
	rep.Store, rep.Clean, rep.Devices, rep.Pending = s.id.String(), root.Clean, 0, len(intents)
	for _, d := range s.drives {
		if !d.Removed.Load() {
			rep.Devices++
		}
	}
	rep.Groups, _ = s.space.Count()
	rep.Namespaces = s.names.Len()
	c.v.Progress("headers")
	if err := c.groups(ctx); err != nil {
		return err
	}
	c.v.Progress("rows")
	for _, num := range s.space.Numbers(0) {
		if err := c.group(ctx, s.space.Find(num)); err != nil {
			return err
		}
	}
	c.v.Progress("index")
	for fp, r := range c.rows {
		if e, ok := s.index.Resolve(fp); !ok || e.Location != r.loc {
			rep.Fault(Fault{What: "index", Group: int(unpack(r.loc).Group), Problem: "a block's row is not what the index has", Do: "report it: this is a bug"})
		}
	}
	c.v.Progress("side rows")
	if err := c.sides(ctx); err != nil {
		return err
	}
	c.v.Progress("logs")
	if err := c.devicesAgree(ctx, len(intents)); err != nil {
		return err
	}
	c.v.Progress("payload")
	return c.payload(ctx)
}

// groups looks at who owns which segment, at superblocks and headers.
func (c *checker) groups(ctx context.Context) error {
	s := c.s
	type cell struct {
		device  uint16
		segment uint32
	}
	owner := map[cell]uint32{}
	c.stale = map[uint32]bool{}
	open := map[uint32]bool{}
	list, err := s.catalog.Groups(ctx)
	if err != nil {
		return err
	}
	for _, g := range list {
		if g.State == catalog.GroupFree {
			continue
		}
		open[g.Group] = g.State == catalog.GroupOpen && !c.clean // a crash may have come before its headers
		c.stale[g.Group] = g.State == catalog.GroupCleaning || open[g.Group]
		for _, m := range g.Devices {
			k := cell{m.Device, m.Segment}
			if other, ok := owner[k]; ok {
				c.rep.Fault(Fault{What: "catalog group", Group: int(g.Group), Segment: int(m.Segment), Problem: "its segment belongs to group " + itoa(int(other)) + " too",
					Do: "skep rebuild: the headers say whose it is"})
			}
			owner[k] = g.Group
		}
	}
	sc := &scrubber{s: s, o: ScrubOptions{DryRun: true}, v: verifier{s: s}}
	for _, d := range s.drives {
		sc.superblocks(ctx, d)
	}
	for _, num := range s.space.Numbers(0) {
		if !open[num] {
			sc.headers(ctx, s.space.Find(num))
		}
	}
	for _, f := range sc.rep.Faults {
		c.rep.Fault(f)
	}
	return segio.Ended(ctx, "check store")
}

// group looks at the rows of one group.
func (c *checker) group(ctx context.Context, g *space.Group) error {
	s := c.s
	segPages := uint32(s.space.SegmentBytes / layout.PageSize)
	taken := map[uint64]pageOwner{} // page × devices + device
	return s.catalog.ScanGroup(ctx, g.Num, func(loc layout.Location, b []byte) error {
		var rec segment.Record
		fault := func(what, problem, do string) {
			c.rep.Fault(Fault{What: what, Group: int(g.Num), Key: rec.Key.String(), Problem: problem, Do: do})
		}
		if err := segment.DecodeRecord(b, &rec); err != nil {
			fault("catalog row", err.Error(), "skep rebuild")
			return nil
		}
		if s.names.Dead(rec.Instance, namespaces.Tag(rec.SaltTag)) {
			return nil // purged: it goes when its group is cleaned
		}
		c.rep.Blocks++
		if len(rec.Copies) > 0 && rec.Copies[0] != loc {
			fault("catalog row", "it lies under another place than its record says", "skep rebuild")
		}
		if !fits(&rec) {
			fault("record", "it names slots of a page that it cannot lie in", "skep rebuild")
			return nil
		}
		for _, p := range rec.Copies {
			if p.Group != g.Num || int(p.Device) >= len(g.Drives) {
				fault("record", "a copy is placed outside its group", "skep rebuild")
				continue
			}
			at := layout.Location{Group: p.Group, Page: p.Page, Device: p.Device, Sub: p.Sub}
			for _, e := range layout.Extents(nil, at, int64(rec.Pages)*layout.PageSize, len(g.Drives)) {
				for k := range uint32((e.Len + layout.PageSize - 1) / layout.PageSize) {
					page := e.Page + k
					if page < 1 || page >= segPages {
						fault("record", "page "+itoa(int(page))+" is outside the segment", "skep rebuild")
						break
					}
					cell := uint64(page)*uint64(len(g.Drives)) + uint64(e.Device)
					owner, slots := taken[cell], slotsIn(p, &rec)
					if owner.slots&slots != 0 {
						fault("record", "it lies where block "+owner.key.Short()+" lies", "skep verify --deep says which of the two is right")
						break
					}
					taken[cell] = pageOwner{rec.Key, owner.slots | slots}
				}
			}
		}
		c.block(fault, loc, &rec)
		return nil
	})
}

// pageOwner is whose a page is, or the last of those who share it, and which of its slots
// are taken, a bit each.
type pageOwner struct {
	key   skep.Key
	slots uint8
}

// slotsIn are the slots that a block takes of each page it lies in.
func slotsIn(p layout.Location, rec *segment.Record) uint8 {
	if !layout.Packed(int(rec.Pages), rec.Bytes()) {
		return 1<<layout.SlotsPerPage - 1
	}
	return uint8(1<<layout.SlotsOf(1, rec.Bytes())-1) << p.Sub
}

// block compares a row with those of the same block and of its parent.
func (c *checker) block(fault func(what, problem, do string), loc layout.Location, rec *segment.Record) {
	s := c.s
	fp := s.names.Fingerprint(rec.Instance, namespaces.Tag(rec.SaltTag), rec.Key)
	if other, ok := c.rows[fp]; ok {
		fault("catalog row", "the block has another row in group "+itoa(int(unpack(other.loc).Group)), "open the store: the newer counts")
	}
	c.rows[fp] = row1{loc.Pack(), rec.Written(), rec.Depth, rec.Flags&segment.RecordDurable != 0}
	if rec.Parent == nil {
		return
	}
	parent := s.names.Fingerprint(rec.Instance, namespaces.Tag(rec.SaltTag), *rec.Parent)
	if e, ok := s.index.Resolve(parent); ok && e.Depth+1 != rec.Depth {
		fault("record", "its depth is "+itoa(int(rec.Depth))+" and its parent's "+itoa(int(e.Depth)), "delete it: nobody can find it")
	}
}

// devicesAgree tries a rebuild on the side and compares what it gives.
func (c *checker) devicesAgree(ctx context.Context, pending int) (err error) {
	dir, err := os.MkdirTemp("", "skep-verify-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	o := c.s.options
	o.CatalogFS, o.CatalogDir, o.Registerer = vfs.Default, dir, nil
	o.Devices = nil
	for _, d := range c.s.drives {
		if !d.Removed.Load() {
			o.Devices = append(o.Devices, d.Path)
		}
	}
	r := newStore(o)
	defer func() { err = errors.Join(err, r.abandon()) }()
	if err := r.findDrives(ctx); err != nil {
		c.rep.Fault(Fault{What: "devices", Problem: "a rebuild would not work: " + err.Error(), Do: mendDevices(err)})
		return nil
	}
	found, err := r.rebuildInto(ctx, dir, true, nil)
	if err != nil {
		if ctx.Err() == nil {
			c.rep.Fault(Fault{What: "devices", Problem: "a rebuild would not work: " + err.Error(), Do: mendDevices(err)})
			return nil
		}
		return err
	}
	for _, f := range found.Faults {
		switch {
		case !c.clean, f.What == "segment header": // a crash cuts logs off; those are known
		case f.Torn:
			c.rep.TornLogs++
		default:
			f.Do = "skep scrub writes again what is missing"
			c.rep.Fault(f)
		}
	}
	if err := c.torn(ctx); err != nil {
		return err
	}
	seen := map[index.Fingerprint]bool{}
	err = r.catalog.ScanBlocks(ctx, 1, func(_ int, l layout.Location, row []byte) error {
		h, err := segment.DecodeHead(row)
		if err != nil {
			return err
		}
		fp := c.s.names.Fingerprint(h.Instance, namespaces.Tag(h.SaltTag), h.Key)
		seen[fp] = true
		have, ok := c.rows[fp]
		switch {
		case ok && have.written == h.Written():
		case !ok && (c.stale[l.Group] || !c.clean || pending > 0), ok && (!c.clean || pending > 0):
			c.rep.Leftovers++
		case !ok && h.Flags&segment.RecordDurable == 0:
			c.rep.Leftovers++ // evicted, and its group could not be cleaned
		case !ok:
			c.rep.Fault(Fault{What: "log", Group: int(l.Group), Key: h.Key.String(), Problem: "a rebuild would bring back a block that is not in the catalog", Do: "delete it by its key: that leaves a tombstone"})
		default:
			c.rep.Fault(Fault{What: "log", Group: int(l.Group), Key: h.Key.String(), Problem: "a rebuild would give another version of the block", Do: "put it again"})
		}
		return nil
	})
	if err != nil {
		return err
	}
	for fp, have := range c.rows {
		if !seen[fp] {
			c.rep.Fault(Fault{What: "log", Group: int(unpack(have.loc).Group), Problem: "a block's record is not on the devices: a rebuild would lose it", Do: "skep scrub writes it again"})
		}
	}
	return nil
}

// torn finds out what is missing through damaged pages of logs. An append that a crash or an
// error cut off leaves such a page for as long as its group lives, and then nothing is.
func (c *checker) torn(ctx context.Context) error {
	if c.rep.TornLogs == 0 {
		return nil
	}
	rep, err := c.s.Scrub(ctx, ScrubOptions{DryRun: true, logsOnly: true})
	for _, f := range rep.Faults {
		if f.What == "log" && f.Problem != recordMissing { // devicesAgree tells of those
			f.Do = "skep scrub writes it again"
			c.rep.Fault(f)
		}
	}
	return err
}

// payload reads what is stored: all of it, or nothing.
func (c *checker) payload(ctx context.Context) error {
	if !c.v.Deep {
		return nil
	}
	rep, err := c.s.Scrub(ctx, ScrubOptions{Rate: c.v.Rate, DryRun: true})
	c.rep.BytesRead = rep.Bytes
	for _, f := range rep.Faults {
		if f.What == "block" {
			c.rep.Fault(f)
		}
	}
	return err
}
