package space

import (
	"math"
	"slices"
	"sync/atomic"
	"time"

	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/catalog"
	"github.com/skepkv/skep/store/device"
	"github.com/skepkv/skep/store/internal/health"
	"github.com/skepkv/skep/store/internal/locks"
	"github.com/skepkv/skep/store/internal/restore"
	"github.com/skepkv/skep/store/internal/segio"
	"github.com/skepkv/skep/store/segment"
)

// Stream says whose writes an open group takes: what users put, or what cleaning
// keeps. Apart, they make groups whose content ages alike.
type Stream int

const (
	User Stream = iota
	Kept
	Moved // by compaction, draining and the like
	Streams
)

// Group is a stripe group: one segment on each of its devices, opened, sealed,
// cleaned and freed together.
type Group struct {
	Num        uint32
	Generation uint64
	Drives     []*Drive
	Segments   []uint32

	Life Life // changed under the lock of the table
	// Readers counts restores and cleaners that hold a location in this group; its
	// segments are not reused while it is not zero.
	Readers atomic.Int64
	Healed  atomic.Bool // what a lost drive of it had of blocks with copies was made again

	Unsure  bool                            // it was stale when the store was opened
	Owed    []segment.Tombstone             // for what a cleaning that failed has dropped; the cleaner's goroutine only
	Stale   atomic.Bool                     // its log has records of blocks that are gone without a tombstone
	stales  atomic.Uint64                   // how often that was noted
	Noted   atomic.Bool                     // with that: the catalog says so
	Telling atomic.Bool                     // its drives are being told that it is free: emptied.go
	heading locks.Mutex[locks.GroupHeaders] // held over writing to them: what a drive is told last is that it is freed
	// in its log that are no blocks; -1: unknown. Guarded by the lock of the table
	Entries int

	// Guarded by the table's lock; only tests look at them from elsewhere.
	Filler   *layout.Filler // nil before it is a spare, and once it is sealed
	Row      catalog.GroupState
	Pending  int           // ends of appends to come: of their writes, and of their publishing
	Writing  []*writing    // that the drives have; those it was let go of without are not in pending
	Logged   []int         // log pages given out, by device
	sealed   time.Time     // when it was, since the open of the store
	inline   int           // values that live in their record, so far
	placed   int           // weights, in slots, of the blocks placed in it since it was opened
	copied   copied        // of the blocks ever placed in it
	Full     bool          // it was sealed because the next block did not fit; not known of what an open finds
	recorded bool          // with that: its row is being, or was, written
	Lost     chan struct{} // closed when a drive of it is dead: nobody waits for its writes
	Rests    time.Time     // until then its log is not compared with the catalog: that has just failed
	rest     time.Duration // how long that was the last time
}

// Found is the group of a row that was found in the catalog, or made from headers.
func Found(row catalog.GroupState) *Group {
	g := &Group{Num: row.Group, Generation: row.Generation, Row: row, Entries: -1}
	g.Life.Found()
	return g
}

// ID names a group for ever.
type ID struct {
	Num        uint32
	Generation uint64
}

// ID is g's name for ever.
func (g *Group) ID() ID { return ID{g.Num, g.Generation} }

// PayloadPages is how many pages of a group blocks may lie in, less its headers.
func (g *Group) PayloadPages() int {
	return len(g.Drives) * (int(g.Row.SegmentBytes/layout.PageSize) - 2)
}

// PayloadSlots is the same in slots, as the index counts.
func (g *Group) PayloadSlots() int64 { return int64(g.PayloadPages()) * layout.SlotsPerPage }

// Number and OpenedSeq have a Set know g.
func (g *Group) Number() uint32 { return g.Num }

// OpenedSeq has, with Number, a Set know g.
func (g *Group) OpenedSeq() uint64 { return g.Row.OpenedSeq }

// Len is how many segments the group has.
func (g *Group) Len() int { return len(g.Drives) }

// Segment is the i-th: its device, and where on that it begins.
func (g *Group) Segment(i int) (dev device.Device, off int64) {
	d := g.Drives[i]
	return d.Dev, d.SegmentOffset(g.Segments[i])
}

// Drive is the drive that segment i is on.
func (g *Group) Drive(i int) restore.Drive { return g.Drives[i] }

// Healthy says that no drive of the group needs to be read around.
func (g *Group) Healthy() bool {
	for _, d := range g.Drives {
		if d.Condition() != health.Healthy {
			return false
		}
	}
	return true
}

// Has says whether a segment of g is on d.
func (g *Group) Has(d *Drive) bool {
	for _, of := range g.Drives {
		if of == d {
			return true
		}
	}
	return false
}

// quiet says that nothing of a group is under way, not even what it was let go of without. REQUIRES: the table's lock.
func (g *Group) quiet() bool { return g.Pending == 0 && len(g.Writing) == 0 }

// answers says that all logs of a group can be read, but for those of drives that will not be back.
func (g *Group) answers() bool {
	return !slices.ContainsFunc(g.Drives, func(d *Drive) bool { return d.Away() && !d.out() })
}

// hangs says of a device of g that nobody waits for what it was given.
func (g *Group) hangs(dev device.Device) bool {
	return slices.ContainsFunc(g.Drives, func(d *Drive) bool {
		return d.Dev == dev && (d.Condition() == health.Dead || d.Retired.Load())
	})
}

// untold says that no drive of g can be told anything now, and one may be back later.
func (g *Group) untold() bool {
	back := false
	for _, d := range g.Drives {
		if !d.Away() {
			return false
		}
		back = back || !d.out()
	}
	return back
}

// Gives says whether the drives that answer have all of the block that rec is of.
func (g *Group) Gives(rec *segment.Record) bool {
	readable, _ := segio.RecordUnits(rec, len(g.Drives)).Survive(func(i int) bool {
		return g.Drives[i].ReadRank() < segio.NoPlace
	})
	return readable
}

// LogPages is how many pages of g's its log takes, as far as known: about as many as what is
// kept and carried on of it needs elsewhere.
func (g *Group) LogPages() (n int) {
	for _, p := range g.Logged {
		n += p
	}
	return n
}

// Room is the weight of blocks that a group holds when it is full: what it did hold, where
// that is known. What did not fit into it once does not fit into the next either, and to
// write it again for the sake of that would go on for ever.
func (g *Group) Room() int {
	if g.Full {
		return g.placed
	}
	return g.PayloadPages() * layout.SlotsPerPage
}

// loseLocked ends all waiting for the group's writes. REQUIRES: the table's lock.
func (g *Group) loseLocked() {
	select {
	case <-g.Lost:
	default:
		close(g.Lost)
	}
}

// copied is what was placed in a group: how many blocks, how many slots they take, how many of these are first copies,
// and the bytes of its logs. The index counts a block once, whatever its copies, and nothing of logs.
type copied struct{ blocks, once, all, log atomic.Int64 }

func (c *copied) add(slots, copies, log int) {
	c.blocks.Add(1)
	c.once.Add(int64(slots))
	c.all.Add(int64(slots * max(1, copies)))
	c.log.Add(int64(log))
}

// of is what n bytes of blocks take with their copies: those of all blocks of the group, where they
// differ.
func (c *copied) of(n int64) int64 {
	once := c.once.Load()
	if once == 0 {
		return n
	}
	return int64(float64(n) * (float64(c.all.Load()) / float64(once)))
}

// Holds notes a block that was placed in g, of so many slots and copies, with so many bytes in its logs.
func (g *Group) Holds(slots, copies, log int) { g.copied.add(slots, copies, log) }

// taken is how many slots of g so many live blocks take, of so many slots as the index counts them: all their copies,
// and what the logs say of them, which is all there is of small values. Of a full group, it is their part of all that
// fitted into it: see Room.
func (g *Group) taken(blocks, slots int64) uint64 {
	c := &g.copied
	log, room := float64(c.log.Load())/layout.SlotSize, float64(g.PayloadSlots())
	live := float64(c.of(slots)) + log*float64(blocks)/float64(max(1, c.blocks.Load()))
	if held := float64(c.all.Load()) + log; g.Full && held > 0 {
		live *= room / held
	}
	return uint64(min(math.Ceil(live), room))
}
