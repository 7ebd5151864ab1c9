// Package room watches over the room in the file system that a store's catalog is in.
//
// The catalog is written with every change, and Pebble does not survive a log that cannot be written. So puts are
// declined while its file system has less left than a reserve, which stays for deletes, cleaning and the durable
// watermark. The same holds for descriptors, of which the catalog has a few in reserve. Both are looked at again and
// again: no restart is needed.
//
// The ballast is room that the store takes while there is enough, and gives up when an open, or the catalog's log,
// needs it. A store that runs declines puts before the file system is full, but what fills it may be somebody else's,
// and quicker than the store looks; deletes go on, and the log cannot do without room. And an open has to write what
// the log holds into tables before it can read a row. Without the ballast a process that ended on a full file system
// could not be started again.
package room

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/internal/observe"
)

const (
	// reserve is what puts leave in the catalog's file system: two of Pebble's logs, and a compaction or two.
	reserve = 128 << 20
	// ballastAfter is how long a store has been open before it takes its ballast: what lives for
	// less has next to no log.
	ballastAfter = 10 * time.Second
	// openNeeds is what no open can do without, whatever its log holds.
	openNeeds = 1 << 20
)

// Config says where a catalog is.
type Config struct {
	FS    vfs.FS
	Dir   string // of the catalog; it need not be there yet
	Clock func() time.Time
	After time.Duration // how long a store is open before it takes its ballast; 0: 10 s
	Log   *slog.Logger
}

// Room is the room of one catalog. Make it with New. Every method but Look may be called at any time.
type Room struct {
	c      Config
	opened time.Time

	disk    atomic.Pointer[observe.Disk]
	full    atomic.Bool // too little is left for puts
	fixed   atomic.Bool // the file system is for reading
	why     atomic.Pointer[string]
	ballast atomic.Bool // it is taken, or was tried
}

// New is for a store that is being opened now.
func New(c Config) *Room {
	if c.After == 0 {
		c.After = ballastAfter
	}
	return &Room{c: c, opened: c.Clock()}
}

// Full says whether puts are declined.
func (r *Room) Full() bool { return r.full.Load() }

// Kind is what puts are declined as: skep.Full, or skep.ReadOnly where the file system is for reading.
func (r *Room) Kind() skep.Kind {
	if r.fixed.Load() {
		return skep.ReadOnly
	}
	return skep.Full
}

// Why says why puts are declined; empty: they are not.
func (r *Room) Why() string {
	if text := r.why.Load(); text != nil && r.full.Load() {
		return *text
	}
	return ""
}

// Disk is what was found when the file system was looked at last; false: it was not, or does not say.
func (r *Room) Disk() (observe.Disk, bool) {
	d := r.disk.Load()
	if d == nil {
		return observe.Disk{}, false
	}
	return *d, true
}

// every is how often the file system is looked at.
const every = 250 * time.Millisecond

// Watch looks again and again, until closing is closed. scarce is Look's.
func (r *Room) Watch(closing <-chan struct{}, scarce func() error) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		r.Look(scarce())
		select {
		case <-closing:
			return
		case <-tick.C:
		}
	}
}

// Look finds out whether the catalog has room, and descriptors, for what puts add to it. scarce says that it has no
// descriptors in reserve. One goroutine at a time calls it.
func (r *Room) Look(scarce error) {
	fixed := skep.KindOf(scarce) == skep.ReadOnly
	if r.fixed.Store(fixed); fixed {
		r.decline("read-only: the file system of the catalog takes no changes: puts are declined until it is mounted for "+
			"writing; where that does not help, repair it and start again", scarce)
		return
	}
	if scarce != nil {
		r.decline("full: the catalog has no descriptors in reserve: puts are declined until it has", scarce)
		return
	}
	use, err := r.use()
	if err != nil {
		r.accept() // not known on this file system: it is found out the hard way
		return
	}
	r.takeBallast(use)
	keep := needs(use)
	r.disk.Store(&observe.Disk{Size: use.TotalBytes, Free: use.AvailBytes, Reserve: keep})
	if use.AvailBytes < keep || r.full.Load() && use.AvailBytes < keep+keep/4 {
		r.decline(fmt.Sprintf("full: the file system of the catalog has %d bytes left, fewer than %d: "+
			"puts are declined until there is more", use.AvailBytes, keep), nil)
		return
	}
	r.accept()
}

// decline has puts declined from now on, for the reason in text.
func (r *Room) decline(text string, err error) {
	was := r.Why()
	r.why.Store(&text)
	if r.full.Store(true); kindOf(was) != kindOf(text) {
		r.c.Log.Error("puts are declined, everything else goes on", "why", text, "error", err, "dir", r.c.Dir)
	}
}

// kindOf is what a text of why puts are declined begins with.
func kindOf(text string) string { kind, _, _ := strings.Cut(text, ":"); return kind }

func (r *Room) accept() {
	if r.full.Swap(false) {
		r.c.Log.Info("the catalog has room and descriptors again: puts are taken", "dir", r.c.Dir)
	}
}

// In the directory: the one it lies in may be on another file system. Pebble leaves alone what it does not know.
func (r *Room) path() string { return r.c.FS.PathJoin(r.c.Dir, "ballast") }

// needs is what puts leave in a file system of the catalog, what an open may need of it, and
// what the ballast takes.
func needs(u vfs.DiskUsage) uint64 { return min(uint64(reserve), u.TotalBytes/20) }

// use is how the file system stands that the catalog is in, or will be.
func (r *Room) use() (vfs.DiskUsage, error) {
	fsys := r.c.FS
	u, err := fsys.GetDiskUsage(r.c.Dir)
	if errors.Is(err, fs.ErrNotExist) {
		u, err = fsys.GetDiskUsage(fsys.PathDir(r.c.Dir))
	}
	return u, err
}

// Make gives the ballast up when an open has too little room without it, and refuses an open
// that cannot succeed: who begins one has a catalog that failed.
func (r *Room) Make() error {
	u, err := r.use()
	if err != nil || u.AvailBytes >= needs(u) {
		return nil
	}
	if r.Drop() {
		r.c.Log.Warn("the file system of the catalog is nearly full: "+
			"the store opens in the room it keeps for that; free some space", "dir", r.c.Dir, "left", u.AvailBytes, "wanted", needs(u))
		return nil
	}
	if u.AvailBytes < min(openNeeds, needs(u)) {
		return r.Explain(syscall.ENOSPC)
	}
	return nil
}

// Drop gives the ballast up, and says whether there was one. It is taken again when there is room.
func (r *Room) Drop() bool {
	fsys := r.c.FS
	if _, err := fsys.Stat(r.path()); err != nil {
		return false
	}
	if fsys.Remove(r.path()) != nil {
		return false
	}
	r.ballast.Store(false)
	return true
}

// takeBallast takes the ballast once there is room for it beside what puts leave. It costs
// nothing where it is there.
func (r *Room) takeBallast(u vfs.DiskUsage) {
	size := needs(u)
	if r.ballast.Load() || r.c.Clock().Sub(r.opened) < r.c.After || u.AvailBytes < 3*size {
		return
	}
	r.ballast.Store(true) // tried, at least
	f, err := r.c.FS.Create(r.path(), vfs.WriteCategoryUnspecified)
	if err == nil {
		err = errors.Join(f.Preallocate(0, int64(size)), f.Sync(), f.Close())
	}
	if err != nil {
		_ = r.c.FS.Remove(r.path()) // it would pass for room
		r.c.Log.Warn("no room is kept for opening the store on a full file system",
			"path", r.path(), "bytes", size, "error", err)
	}
}

// Explain names the file system when it is for its sake that the catalog did not open.
func (r *Room) Explain(err error) error {
	if !errors.Is(err, syscall.ENOSPC) {
		return err
	}
	e := &skep.Error{Op: "open catalog", Kind: skep.Full, Field: "room in the file system of " + r.c.Dir,
		Limit: "more", Err: syscall.ENOSPC}
	if u, uerr := r.use(); uerr == nil {
		e.Value, e.Limit = u.AvailBytes, "at least "+strconv.FormatUint(needs(u), 10)+" bytes"
	}
	return e
}
