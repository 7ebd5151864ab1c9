package catalog

import (
	"errors"
	"github.com/skepkv/skep/store/internal/locks"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/skepkv/skep"
)

// Descriptors, and space, that others use up.
//
// Pebble ends the process when it cannot make its next log or manifest, and a process, or a machine, may be out
// of descriptors for a moment or for an hour. So the catalog holds some in reserve. A file that cannot be opened
// takes one of them; where there is none left, or another goroutine was quicker, the opening waits and tries
// again. Who asks Scarce learns of it, takes no more puts, and the reserve is filled up again when there are
// descriptors: nothing fails.
//
// A file system without space is waited for in the same way: what could be written of a log stays, and the rest
// follows. Commits that have not begun are refused meanwhile (refuse). One that was mounted anew for reading is waited
// for, too, for as long as it takes: what was read before is read on.
//
// A sync that fails is never made again, whatever its error: the kernel may have dropped what was to be synced, and
// says of the next sync that all is well. The catalog has failed then, and who opens it again goes by what is on the
// drive. So it is where a file system turns read-only and a sync is the first to meet it. Of renames, those of logs
// that are used again are made again; others come while the catalog is opened only, and links
// of tables when a rebuild ends.

const (
	// spareFiles lasts for a log, a flush and a manifest with its marker, and a few tables that are read.
	spareFiles = 8
	// closeFor is how long one waits once Close has begun: the next open finds what is in the log.
	closeFor = time.Second
	// scarceEvery is how soon an opening tries again.
	scarceEvery = 20 * time.Millisecond
)

// isScarce is true for errors that say that the process, or the machine, is out of descriptors.
func isScarce(err error) bool {
	return errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE)
}

// isReadOnlyFS is true for errors that say that a file system takes no changes.
func isReadOnlyFS(err error) bool { return errors.Is(err, syscall.EROFS) }

// noSpace is true for what a file system refuses a change for, and may take it later.
func noSpace(err error) bool { return vfs.IsNoSpaceError(err) || isReadOnlyFS(err) }

// spares are descriptors held in reserve: the catalog's directory, opened again and again.
type spares struct {
	waiting atomic.Int32 // changes that wait for a descriptor or for space
	waited  atomic.Int64 // changes that have waited
	fixed   atomic.Int32 // of those that wait, since the file system is for reading
	mu      locks.Mutex[locks.CatalogSpares]
	fs      vfs.FS
	dir     string
	files   []vfs.File
	closed  bool
}

// fill opens what is missing; the error is of the first that cannot be opened.
func (s *spares) fill() error {
	for s.wants() {
		f, err := s.fs.OpenDir(s.dir) // without the lock: it may hang, and Close must not
		if err != nil {
			return err
		}
		s.mu.Lock()
		if s.closed || len(s.files) >= spareFiles {
			s.mu.Unlock()
			return f.Close()
		}
		s.files = append(s.files, f)
		s.mu.Unlock()
	}
	return nil
}

func (s *spares) wants() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.files) < spareFiles && !s.closed
}

// give closes one, so that something else can be opened; false when there is none.
func (s *spares) give() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := len(s.files)
	if n == 0 {
		return false
	}
	_ = s.files[n-1].Close()
	s.files = s.files[:n-1]
	return true
}

// Close gives all back for good.
func (s *spares) Close() error {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	for s.give() {
	}
	return nil
}

// Scarce fills the reserve of descriptors and says, with skep.Full, that there are none for it, or that a change
// waits for a descriptor or for space: then nothing that can wait should be asked for.
// It is skep.ReadOnly where a change waits for a file system that is for reading.
func (c *Catalog) Scarce() error {
	if err := c.unwritable("catalog"); err != nil {
		return err
	}
	if err := c.spares.fill(); isScarce(err) || c.spares.waiting.Load() > 0 {
		return &skep.Error{Op: "catalog", Kind: skep.Full, Field: "descriptors or space", Err: err}
	}
	return nil
}

// unwritable is skep.ReadOnly while a change waits for a file system that is for reading.
func (g *guard) unwritable(op string) error {
	if g.spares.fixed.Load() == 0 {
		return nil
	}
	return &skep.Error{Op: op, Kind: skep.ReadOnly, Field: "file system of the catalog", Value: "for reading",
		Limit: "one for writing: mount it so; where that does not help, repair it and start again"}
}

// again makes a try, and makes it again while there is no descriptor or, where it is a change, no space, for at most
// patience. Descriptors come from the reserve first. While the file system is for reading no patience ends, until
// Leave. Each try's error counts by itself. While the catalog is being opened a try is the only one: who opens it is
// told.
func (g *guard) again(patience time.Duration, change bool, try func() error) error {
	err := try()
	wanted := func() bool { return isScarce(err) || change && noSpace(err) }
	if !wanted() || !g.opened.Load() {
		return err
	}
	if change {
		g.spares.waiting.Add(1)
		defer g.spares.waiting.Add(-1)
		defer g.spares.waited.Add(1) // first: who looks sees one or the other
	}
	g.log.Warn("the catalog lacks descriptors or space, or is on a file system for reading; it tries again", "err", err)
	fixed := false
	defer func() { g.spares.fix(fixed, false) }()
	end, closing, leaving := time.Now().Add(patience), g.closing, g.leaving
	for ; wanted(); err = try() {
		was := fixed
		fixed = isReadOnlyFS(err)
		g.spares.fix(was, fixed)
		if isScarce(err) && g.spares.give() || vfs.IsNoSpaceError(err) && g.makeRoom != nil && g.makeRoom() {
			continue
		}
		if fixed && closing != nil && leaving != nil {
			end = time.Now().Add(patience)
		} else if time.Now().After(end) {
			return err
		}
		t := time.NewTimer(scarceEvery)
		select {
		case <-t.C:
		case <-closing:
			closing, end = nil, time.Now().Add(closeFor)
		case <-leaving:
			if leaving = nil; fixed {
				end = time.Now().Add(closeFor)
			}
		case <-g.failed:
			t.Stop()
			return err
		}
	}
	return err
}

// fix counts a change that waits for a file system that is for reading, or does so no more.
func (s *spares) fix(was, is bool) {
	if was == is {
		return
	}
	if is {
		s.fixed.Add(1)
	} else {
		s.fixed.Add(-1)
	}
}

// waits says whether a change waits for a descriptor or for space, or has since seen.
func (s *spares) waits(seen *int64) bool {
	waiting := s.waiting.Load() > 0
	waited := s.waited.Load()
	waiting, *seen = waiting || waited != *seen, waited
	return waiting
}

// opening opens a file for reading.
func (g *guard) opening(open func() (vfs.File, error)) (file vfs.File, err error) {
	err = g.again(g.timeout/4, false, func() error { file, err = open(); return err })
	return file, err
}

// making opens a file for a change: commits wait for it.
func (g *guard) making(open func() (vfs.File, error)) (file vfs.File, err error) {
	err = g.again(g.patience, true, func() error { file, err = open(); return err })
	return file, err
}

// appending writes all of p by write. A table's writing ends at the first error: Pebble writes it anew.
func (g *guard) appending(name string, p []byte, write func(p []byte, at int) (int, error)) (n int, err error) {
	try := func() error {
		m, err := write(p[n:], n)
		n += m
		return err
	}
	if isTable(name) {
		err = try()
		return n, err
	}
	err = g.again(g.patience, true, try)
	return n, err
}

// SpendReserve, for tests, gives the reserve back, as files that could not be opened do.
func (c *Catalog) SpendReserve() {
	for c.spares.give() {
	}
}
