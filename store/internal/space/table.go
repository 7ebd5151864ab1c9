package space

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/index"
	"github.com/skepkv/skep/store/catalog"
	"github.com/skepkv/skep/store/internal/limits"
	"github.com/skepkv/skep/store/internal/locks"
	"github.com/skepkv/skep/store/internal/watermark"
	"github.com/skepkv/skep/store/segment"
)

// Config is what the groups need of the store that they are of.
type Config struct {
	Log        *slog.Logger
	Context    context.Context // ends with the store
	Closing    <-chan struct{} // the store's end has begun
	Background *sync.WaitGroup // what outlives a call
	Root       *watermark.Root
	Identity   func() (segment.StoreID, segment.Secret) // of the store
	Changes    *locks.Mutex[locks.Changes]              // of rows that exist
	Drives     func() []*Drive                          // by index, those that were removed included
	Timeout    time.Duration                            // of an operation
	FileSystem func(dir string) (id uint64, free int64, ok bool)
	// ReserveBytes is what growing leaves free in a file system.
	ReserveBytes int64
	// BlockPages is how many pages a typical block has, LogicalBlocks how many such lru and s3fifo hold at most; 0: as
	// many as there is room for.
	BlockPages, LogicalBlocks int64
}

// Table is the groups of a store and its free segments: who may write where. Make it with New.
type Table struct {
	Config

	// What is known once the store is opened, before the first group is.
	Catalog      *catalog.Catalog
	Index        *index.Index
	SegmentBytes int64
	KeptFree     int // free groups that only the cleaner may open

	mu Inside

	Opening  limits.Turn                // serialises opening a group for a stream, which does I/O without holding mu
	growing  locks.Mutex[locks.Growing] // serialises growing
	capacity capacity
	suspects suspects
	stale    atomic.Int64  // stale groups
	doubt    atomic.Bool   // Doubt was called
	eased    atomic.Uint64 // groups that became such that the cleaner may take them, so far
	wake     chan struct{} // of the cleaner; nil: there is none
}

// New makes a table without groups.
func New(c Config) *Table {
	t := &Table{Config: c, Opening: limits.NewTurn()}
	t.mu.table = t
	t.Reset()
	t.mu.freed = make(chan struct{})
	return t
}

// Reset forgets the groups, so that an open begins anew.
func (t *Table) Reset() { t.mu.Groups = NewSet[*Group]() }

// Woken is what says that the cleaner is to look again, from now on.
func (t *Table) Woken() <-chan struct{} {
	t.wake = make(chan struct{}, 1)
	return t.wake
}

// Kick makes the cleaner look again.
func (t *Table) Kick() {
	if t.wake == nil {
		return
	}
	select {
	case t.wake <- struct{}{}:
	default:
	}
}

// TakeOpening waits until nobody opens a group.
func (t *Table) TakeOpening(ctx context.Context, op string) error {
	return t.Opening.Take(ctx, 2*t.Timeout, t.Closing, op, "group being opened")
}

// freedLocked tells those who wait for segments that some are free. REQUIRES: t.mu.
func (t *Table) freedLocked() {
	close(t.mu.freed)
	t.mu.freed = make(chan struct{})
}

// errNotOpen is what who waits gets when the store closes.
var errNotOpen = &skep.Error{Op: "store", Kind: skep.Closed}

// ErrBusy says that somebody has a group that is asked for.
var ErrBusy = &skep.Error{Op: "move blocks", Kind: skep.Other, Field: "group", Value: "in use"}

// Why a drive takes no new groups that is not fenced.
var (
	ErrRemoved  = &skep.Error{Op: "drive", Kind: skep.Missing, Field: "state", Value: "removed"}
	ErrDraining = &skep.Error{Op: "drive", Kind: skep.Unsupported, Field: "state", Value: "being emptied"}
)

// Pin gives the group of a number and keeps its segments from being reused until
// Unpin. Nil when it is not there any more.
func (t *Table) Pin(num uint32) *Group {
	t.mu.Lock()
	defer t.mu.Unlock()
	g := t.mu.Groups.Get(num)
	if g != nil {
		g.Readers.Add(1)
	}
	return g
}

// Unpin follows Pin.
func (t *Table) Unpin(g *Group) {
	if g.Readers.Add(-1) == 0 && g.Life.State() >= Emptied {
		t.Kick()
	}
}

// Groups is every group, lowest number first.
func (t *Table) Groups() []*Group {
	t.mu.Lock()
	defer t.mu.Unlock()
	out := make([]*Group, 0, t.mu.Groups.Len())
	for g := range t.mu.Groups.Each() {
		out = append(out, g)
	}
	slices.SortFunc(out, func(a, b *Group) int { return cmp.Compare(a.Num, b.Num) })
	return out
}

// GroupsOf are the groups a drive is in.
func (t *Table) GroupsOf(d *Drive) (out []*Group) {
	for _, g := range t.Groups() {
		if g.Has(d) {
			out = append(out, g)
		}
	}
	return out
}

// SomeDrive is a drive that is there, for what all have in common.
func (t *Table) SomeDrive() *Drive {
	for _, d := range t.Drives() {
		if !d.Removed.Load() && d.Absent == nil {
			return d
		}
	}
	return t.Drives()[0]
}

// UsableDrives is how many drives may take new groups, fenced ones included.
func (t *Table) UsableDrives() (n int) {
	for _, d := range t.Drives() {
		if !d.Retired.Load() {
			n++
		}
	}
	return n
}

// AbsentDrives are the drives that are not there though they should be.
func (t *Table) AbsentDrives() (out []*Drive) {
	for _, d := range t.Drives() {
		if d.Absent != nil {
			out = append(out, d)
		}
	}
	return out
}

// Has says whether a group is there yet.
func (t *Table) Has(g *Group) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.mu.Groups.Has(g)
}

// Find gives a group, not pinned.
func (t *Table) Find(num uint32) *Group {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.mu.Groups.Get(num)
}

// Loaded is Find without the lock, for who visits rows of the catalog. REQUIRES: nobody else has the table yet.
func (t *Table) Loaded(num uint32) *Group { return t.mu.Groups.Get(num) }

// Numbers are those of the groups above n, ascending.
func (t *Table) Numbers(n uint32) []uint32 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.mu.Groups.Above(n)
}

// Last is the number of the group that was opened last.
func (t *Table) Last() uint32 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.mu.Next
}

// Count is how many groups there are, and how many could be opened now.
func (t *Table) Count() (groups, free int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.mu.Groups.Len(), t.freeGroupsLocked()
}

// DropUnused has b delete the rows of groups in which nothing lies: no open is to find them. REQUIRES: nothing runs any
// more that would take them.
func (t *Table) DropUnused(b *catalog.Batch) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, g := range slices.Concat(t.mu.Spares, t.mu.Unopened, t.mu.Doubted) {
		b.DeleteGroup(g.Num)
	}
}

// Add puts in a group that was found, sealed. REQUIRES: nobody else has the table yet.
func (t *Table) Add(g *Group) {
	g.Row.State = catalog.GroupSealed
	t.mu.Groups.Add(g)
	t.Pass(g.Num)
}

// Pass raises the number of the group that was opened last to n. REQUIRES: nobody else has the table yet.
func (t *Table) Pass(n uint32) { t.mu.Next = max(t.mu.Next, n) }

// SealFound makes every group that was found a candidate for cleaning; tick is when something of a sequence number was
// written, on the index's clock. REQUIRES: nobody else has the table yet.
func (t *Table) SealFound(tick func(seq uint64) index.Tick) {
	for g := range t.mu.Groups.Each() {
		t.Index.SealGroup(g.Num, g.PayloadSlots(), tick(max(g.Row.SealedSeq, g.Row.OpenedSeq)))
	}
}

// Join takes in a drive that nobody has yet: publish makes it one of the store's.
func (t *Table) Join(d *Drive, publish func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	d.FreeAll(func(uint32) bool { return false })
	publish()
	t.freedLocked()
}

// Refusal is why a drive takes no new groups; nil: it does.
func (t *Table) Refusal(d *Drive) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return d.Failed
}

// RowOf is the row of a drive that may be growing.
func (t *Table) RowOf(d *Drive) catalog.DeviceState {
	t.mu.Lock()
	defer t.mu.Unlock()
	return d.Row()
}

// AnyFenced says whether a drive of g takes no new groups.
func (t *Table) AnyFenced(g *Group) bool {
	return slices.ContainsFunc(g.Drives, func(d *Drive) bool { return t.Refusal(d) != nil })
}

// Free is how many groups could be opened now.
func (t *Table) Free() int {
	_, free := t.Count()
	return free
}
