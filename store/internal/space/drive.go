package space

import (
	"errors"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/catalog"
	"github.com/skepkv/skep/store/device"
	"github.com/skepkv/skep/store/internal/health"
	"github.com/skepkv/skep/store/internal/restore"
	"github.com/skepkv/skep/store/internal/segio"
)

// Drive is one device and its segments.
type Drive struct {
	Dev      device.Device
	Index    uint16
	ID       [16]byte
	Path     string
	Serial   string
	SegBytes int64
	Sequence uint64      // of its superblocks
	Created  time.Time   // as they say
	Stamped  int         // how many devices there are, as this process wrote there; 0: it did not
	Removed  atomic.Bool // its place is kept: indices are not used again
	silent   atomic.Bool // it did not answer a read while the store was opened
	Absent   error       // why it was not there at the open
	GivenUp  bool        // by a rebuild, which went on without it: no open takes a drive for it
	Pinned   int         // parts of the arena registered with it; guarded by pinned.mu of the store

	// Guarded by the table's lock, once the drive is one of the store's; only tests look at them from elsewhere.
	Segments int                    // how many the device has room for now
	Limit    int                    // how many it may grow to
	wanted   int                    // its limit before its file system was full
	Stunted  time.Time              // when that was found last
	Free     []uint32               // segment numbers, a stack
	heads    map[uint32]*headWrite  // writes of headers that are with the drive, by segment
	late     map[uint32]*lateWrites // writes that groups were let go of without, by segment
	Failed   error                  // why the drive takes no new groups
	down     chan struct{}          // closed while it is dead: nobody waits for it

	Standing health.Standing // its condition
	Retired  atomic.Bool     // being emptied, or removed: it is not let back in
	Resaid   atomic.Bool     // what its logs say of names and deletions is said again elsewhere: devlog.Forgo
	Fence    func(error)     // called when too many writes in a row failed, or a flush

	Flush segio.Flusher
	Reads restore.Queue
}

// Use gives d its device, which only its flusher flushes.
func (d *Drive) Use(dev device.Device) {
	d.Dev = d.Flush.Use(dev)
	if d.down == nil {
		d.down = make(chan struct{})
	}
}

// Gone makes d one that is dead for why, before it is one of the store's: dev stands for it.
func (d *Drive) Gone(dev device.Device, why error) {
	d.Use(dev)
	d.Failed = why
	d.Standing.Set(health.Dead)
	close(d.down)
}

// FreeAll makes the segments free that are not used. REQUIRES: the table's lock, or that nobody else has the drive.
func (d *Drive) FreeAll(used func(uint32) bool) {
	for n := d.Segments - 1; n >= 0; n-- {
		if !used(uint32(n)) {
			d.Free = append(d.Free, uint32(n))
		}
	}
}

// SegmentOffset is where on the device segment n begins.
func (d *Drive) SegmentOffset(n uint32) int64 { return layout.SegmentOffset(int(n), d.SegBytes) }

// IO is the drive as segio sees it.
func (d *Drive) IO() segio.Drive { return segio.Drive{Dev: d.Dev, ID: d.ID, SegmentBytes: d.SegBytes} }

// Hand hands op to the drive as one of b's.
func (d *Drive) Hand(b *segio.Batch, op *device.Op) {
	op.Done = d.Note
	b.Submit(d.Dev, op)
}

// Condition is what was last found of a drive; healthy before anybody has looked.
func (d *Drive) Condition() health.State { return d.Standing.State() }

// Note takes a completion of a write into account.
func (d *Drive) Note(o *device.Op) {
	switch {
	// a full file system is no failing drive, nor is bad memory
	case o.Kind != device.Write || errors.Is(o.Err, syscall.ENOSPC) || device.BadMemory(o.Err):
	case d.Standing.Writes.Note(o.Err != nil) && d.Fence != nil: // without waiting for the monitor
		d.Fence(o.Err)
	}
}

// Away says that a drive is not there, or does not answer any more, or is somebody else's.
func (d *Drive) Away() bool {
	return d.Removed.Load() || d.Absent != nil || d.Condition() == health.Dead
}

// out says that d will not be back with what it had.
func (d *Drive) out() bool { return d.Removed.Load() || d.GivenUp }

// Queue is what waits to be read from d.
func (d *Drive) Queue() *restore.Queue { return &d.Reads }

// Number is d's among the store's drives.
func (d *Drive) Number() int { return int(d.Index) }

// Submit is its device's.
func (d *Drive) Submit(ops []*device.Op) error { return d.Dev.Submit(ops) }

// GaveWrong counts a read that brought what was not written.
func (d *Drive) GaveWrong() { d.Standing.Wrong.Add(1) }

// ReadCost is what it costs to read from d: less is better, segio.NoPlace and above never.
func (d *Drive) ReadRank() int {
	if c := d.Condition(); c < health.Dead {
		return int(c)
	}
	return segio.NoPlace
}

// giveLocked makes a segment free: at once, or when the write of its header, and those its group was let go of
// without, have come back. REQUIRES: the table's lock.
func (d *Drive) giveLocked(seg uint32) {
	if w := d.heads[seg]; w != nil {
		w.free = true
		return
	}
	if w := d.late[seg]; w != nil {
		w.free = true
		return
	}
	d.Free = append(d.Free, seg)
}

// Row is what the catalog is to say of d. REQUIRES: the table's lock, or that nobody else has the drive.
func (d *Drive) Row() catalog.DeviceState {
	path := d.Path
	if abs, err := filepath.Abs(path); err == nil && !d.Removed.Load() {
		path = abs // whatever directory the next open is in
	}
	return catalog.DeviceState{Index: d.Index, ID: d.ID, Serial: d.Serial, Path: path, Size: d.Dev.Size(),
		SegmentBytes: d.SegBytes, Segments: uint32(d.Segments)}
}

// Watch has a drive that fails fenced without waiting for the monitor.
func (t *Table) Watch(d *Drive) {
	d.Fence = func(err error) { t.Fence(d, err) }
	d.Flush.OnFailure(d.Fence)
}

// HealAgain is called when a drive is lost, or back: its groups are to be looked at again, for others of theirs may
// have been lost before, and it may be lost again.
func (t *Table) HealAgain(d *Drive) {
	for _, g := range t.Groups() {
		if g.Has(d) {
			g.Healed.Store(false)
		}
	}
}
