package store

import (
	"errors"
	"io/fs"
	"syscall"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/skepkv/skep"
)

// Ballast: room in the catalog's file system that the store takes while there is enough, and
// gives up when an open, or the catalog's log, needs it. A store that runs declines puts before
// the file system is full, but what fills it may be somebody else's, and quicker than the store
// looks; deletes go on, and the log cannot do without room. And an open has to write what the
// log holds into tables before it can read a row. Without the ballast a process that ended on a
// full file system could not be started again.

// ballastAfter is how long a store has been open before it takes its ballast: what lives for
// less has next to no log.
const ballastAfter = 10 * time.Second

// In the directory: the one it lies in may be on another file system. Pebble leaves alone what it does not know.
func (s *Store) ballastPath() string {
	return s.options.CatalogFS.PathJoin(s.options.catalogDir(), "ballast")
}

// catalogNeeds is what puts leave in a file system of the catalog, what an open may need of it, and
// what the ballast takes.
func catalogNeeds(u vfs.DiskUsage) uint64 { return min(uint64(catalogReserve), u.TotalBytes/20) }

// catalogUse is how the file system stands that the catalog is in, or will be.
func (s *Store) catalogUse() (vfs.DiskUsage, error) {
	fsys := s.options.CatalogFS
	u, err := fsys.GetDiskUsage(s.options.catalogDir())
	if errors.Is(err, fs.ErrNotExist) {
		u, err = fsys.GetDiskUsage(fsys.PathDir(s.options.catalogDir()))
	}
	return u, err
}

// openNeeds is what no open can do without, whatever its log holds.
const openNeeds = 1 << 20

// makeRoom gives the ballast up when an open has too little room without it, and refuses an open
// that cannot succeed: who begins one has a catalog that failed.
func (s *Store) makeRoom() error {
	u, err := s.catalogUse()
	if err != nil || u.AvailBytes >= catalogNeeds(u) {
		return nil
	}
	if s.dropBallast() {
		s.log.Warn("the file system of the catalog is nearly full: the store opens in the room it keeps for that; free some space",
			"dir", s.options.catalogDir(), "left", u.AvailBytes, "wanted", catalogNeeds(u))
		return nil
	}
	if u.AvailBytes < min(openNeeds, catalogNeeds(u)) {
		return s.noRoom(syscall.ENOSPC)
	}
	return nil
}

// dropBallast says whether there was one. It is taken again when there is room.
func (s *Store) dropBallast() bool {
	fsys := s.options.CatalogFS
	if _, err := fsys.Stat(s.ballastPath()); err != nil {
		return false
	}
	if fsys.Remove(s.ballastPath()) != nil {
		return false
	}
	s.ballast.Store(false)
	return true
}

// takeBallast takes the ballast once there is room for it beside what puts leave. It costs
// nothing where it is there.
func (s *Store) takeBallast(u vfs.DiskUsage) {
	size := catalogNeeds(u)
	after := ballastAfter
	if s.options.ballastAfter != 0 {
		after = s.options.ballastAfter
	}
	if s.ballast.Load() || s.now().Sub(s.opened) < after || u.AvailBytes < 3*size {
		return
	}
	s.ballast.Store(true) // tried, at least
	f, err := s.options.CatalogFS.Create(s.ballastPath(), vfs.WriteCategoryUnspecified)
	if err == nil {
		err = errors.Join(f.Preallocate(0, int64(size)), f.Sync(), f.Close())
	}
	if err != nil {
		_ = s.options.CatalogFS.Remove(s.ballastPath()) // it would pass for room
		s.log.Warn("no room is kept for opening the store on a full file system", "path", s.ballastPath(), "bytes", size, "error", err)
	}
}

// noRoom names the file system when it is for its sake that the catalog did not open.
func (s *Store) noRoom(err error) error {
	if !errors.Is(err, syscall.ENOSPC) {
		return err
	}
	e := &skep.Error{Op: "open catalog", Kind: skep.Full, Field: "room in the file system of " + s.options.catalogDir(), Limit: "more", Err: syscall.ENOSPC}
	if u, uerr := s.catalogUse(); uerr == nil {
		e.Value, e.Limit = u.AvailBytes, "at least "+itoa64(int64(catalogNeeds(u)))+" bytes"
	}
	return e
}
