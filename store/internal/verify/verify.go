package verify

import (
	"context"
	"slices"
	"strconv"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/index"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/catalog"
	"github.com/skepkv/skep/store/internal/namespaces"
	"github.com/skepkv/skep/store/internal/scrub"
	"github.com/skepkv/skep/store/internal/segio"
	"github.com/skepkv/skep/store/internal/sidecar"
	"github.com/skepkv/skep/store/internal/space"
	"github.com/skepkv/skep/store/report"
	"github.com/skepkv/skep/store/segment"
)

// Input is a store to be looked at, as an open left it, and what is to be looked at.
type Input struct {
	Names    *namespaces.Table
	Catalog  *catalog.Catalog
	Index    *index.Index
	Space    *space.Table
	Sidecars *sidecar.Rows
	Scrubber *scrub.Scrubber
	Store    segment.StoreID
	Host     Host
	Deep     bool // read payload, too
	Progress func(stage string)
	Report   *report.Verify // where what is wrong is told
}

// Host is the store as its verification sees it.
type Host interface {
	// Rebuild tries a rebuild on the side. An error says that it could not be tried.
	Rebuild(ctx context.Context) (*Rebuilt, error)
	// Scrub is a scrub that changes nothing; with logsOnly no block is read.
	Scrub(ctx context.Context, logsOnly bool) (report.Scrub, error)
	// Record is the record of a committed block.
	Record(key skep.Key, fp index.Fingerprint) (segment.Record, error)
}

// Rebuilt is what a rebuild on the side gave.
type Rebuilt struct {
	Err    error // why a rebuild would not work; then there is nothing else
	Faults []report.Fault
	Rows   func(ctx context.Context, visit func(l layout.Location, row []byte) error) error // of blocks, each
	Close  func() error
}

// Run compares all that a store says. What is wrong is in the report; an error says that it could not be looked at.
func Run(ctx context.Context, in Input) error {
	c := &checker{Input: in, rows: map[index.Fingerprint]row{}}
	return c.run(ctx)
}

// row is what is kept of a row to compare with others.
type row struct {
	loc     uint64
	written uint64
}

type checker struct {
	Input
	rows  map[index.Fingerprint]row
	stale map[uint32]bool // groups that are known to hold leftovers
	clean bool
}

func (c *checker) run(ctx context.Context) error {
	rep := c.Report
	root, err := c.Catalog.Store(ctx)
	if err != nil {
		return err
	}
	intents, err := c.Catalog.Intents(ctx)
	if err != nil {
		return err
	}
	c.clean = root.Clean
	rep.Store, rep.Clean, rep.Devices, rep.Pending = c.Store.String(), root.Clean, 0, len(intents)
	for _, d := range c.Space.Drives() {
		if !d.Removed.Load() {
			rep.Devices++
		}
	}
	rep.Groups, _ = c.Space.Count()
	rep.Namespaces = c.Names.Len()
	c.Progress("headers")
	if err := c.groups(ctx); err != nil {
		return err
	}
	c.Progress("rows")
	for _, num := range c.Space.Numbers(0) {
		if err := c.group(ctx, c.Space.Find(num)); err != nil {
			return err
		}
	}
	c.Progress("index")
	for fp, r := range c.rows {
		if e, ok := c.Index.Resolve(fp); !ok || e.Location != r.loc {
			rep.Fault(report.Fault{What: "index", Group: int(layout.Unpack(r.loc).Group),
				Problem: "a block's row is not what the index has", Do: "report it: this is a bug"})
		}
	}
	c.Progress("side rows")
	if err := c.sides(ctx); err != nil {
		return err
	}
	c.Progress("logs")
	if err := c.devicesAgree(ctx, len(intents)); err != nil {
		return err
	}
	c.Progress("payload")
	return c.payload(ctx)
}

// groups looks at who owns which segment, at superblocks and headers.
func (c *checker) groups(ctx context.Context) error {
	type cell struct {
		device  uint16
		segment uint32
	}
	owner := map[cell]uint32{}
	c.stale = map[uint32]bool{}
	open := map[uint32]bool{}
	list, err := c.Catalog.Groups(ctx)
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
				c.Report.Fault(report.Fault{What: "catalog group", Group: int(g.Group), Segment: int(m.Segment),
					Problem: "its segment belongs to group " + strconv.Itoa(int(other)) + " too",
					Do:      "skep rebuild: the headers say whose it is"})
			}
			owner[k] = g.Group
		}
	}
	closed := slices.DeleteFunc(c.Space.Groups(), func(g *space.Group) bool { return open[g.Num] })
	for _, f := range c.Scrubber.Headers(ctx, true, c.Space.Drives(), closed).Faults {
		c.Report.Fault(f)
	}
	return segio.Ended(ctx, "check store")
}

// group looks at the rows of one group.
func (c *checker) group(ctx context.Context, g *space.Group) error {
	segPages := uint32(c.Space.SegmentBytes / layout.PageSize)
	taken := map[uint64]pageOwner{} // page × devices + device
	return c.Catalog.ScanGroup(ctx, g.Num, func(loc layout.Location, b []byte) error {
		var rec segment.Record
		fault := func(what, problem, do string) {
			c.Report.Fault(report.Fault{What: what, Group: int(g.Num), Key: rec.Key.String(), Problem: problem, Do: do})
		}
		if err := segment.DecodeRecord(b, &rec); err != nil {
			fault("catalog row", err.Error(), "skep rebuild")
			return nil
		}
		if c.Names.Dead(rec.Instance, namespaces.Tag(rec.SaltTag)) {
			return nil // purged: it goes when its group is cleaned
		}
		c.Report.Blocks++
		if len(rec.Copies) > 0 && rec.Copies[0] != loc {
			fault("catalog row", "it lies under another place than its record says", "skep rebuild")
		}
		if !rec.PlacesFit() {
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
						fault("record", "page "+strconv.Itoa(int(page))+" is outside the segment", "skep rebuild")
						break
					}
					cell := uint64(page)*uint64(len(g.Drives)) + uint64(e.Device)
					owner, slots := taken[cell], slotsIn(p, &rec)
					if owner.slots&slots != 0 {
						fault("record", "it lies where block "+owner.key.Short()+" lies",
							"skep verify --deep says which of the two is right")
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
	fp := c.Names.Fingerprint(rec.Instance, namespaces.Tag(rec.SaltTag), rec.Key)
	if other, ok := c.rows[fp]; ok {
		fault("catalog row", "the block has another row in group "+strconv.Itoa(int(layout.Unpack(other.loc).Group)),
			"open the store: the newer counts")
	}
	c.rows[fp] = row{loc.Pack(), rec.Written()}
	if rec.Parent == nil {
		return
	}
	parent := c.Names.Fingerprint(rec.Instance, namespaces.Tag(rec.SaltTag), *rec.Parent)
	if e, ok := c.Index.Resolve(parent); ok && e.Depth+1 != rec.Depth {
		fault("record", "its depth is "+strconv.Itoa(int(rec.Depth))+" and its parent's "+strconv.Itoa(int(e.Depth)),
			"delete it: nobody can find it")
	}
}
