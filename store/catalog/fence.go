package catalog

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// fence is the filesystem Pebble sees. It hands everything on, with three
// exceptions: a file for which there is no descriptor is opened when there is one
// (scarce.go); an error Pebble would end the process for fails the catalog and parks
// the goroutine instead of returning, and in a failed catalog nothing is written
// any more. This holds while opening too: Open flushes what it replays on goroutines
// of its own, which panic when they cannot move the manifest's marker.
//
// Lost: recovering Pebble's panics. In rotateWAL it panics with DB.mu released while
// its caller has a deferred DB.mu.Unlock, and unlocking an unlocked mutex is an
// exit of the runtime that nothing can recover.
type fence struct {
	vfs.FS
	g *guard
}

var _ vfs.FS = (*fence)(nil)

// isTable is true for files Pebble writes again under another name when writing
// them fails. All others are the log, the manifest, markers and directories.
func isTable(name string) bool {
	return strings.HasSuffix(name, ".sst") || strings.HasSuffix(name, ".blob")
}

// admit counts a change to the filesystem as under way; wrote follows. In a failed
// catalog it parks. The order matters: counted before failed is looked at, so that
// once the catalog has failed and the count is zero, nothing is written any more.
func (g *guard) admit() {
	g.writes.Add(1)
	if g.isFailed() {
		g.writes.Add(-1)
		park()
	}
}

// wrote takes the outcome of a change admitted. It does not return when the error is
// one that Pebble must not see.
func (g *guard) wrote(op, name string, err error) error {
	g.writes.Add(-1)
	if err == nil {
		return err
	}
	if isTable(name) && (g.opened.Load() || g.health.tableErrors.Load() < openTries) {
		g.slowDown()
		return err
	}
	g.fail(fmt.Errorf("%s %s: %w", op, name, err))
	park()
	return err
}

// openTries is how often a table may fail to be written while the catalog is being
// opened: Pebble's Open waits for it, and somebody waits for Open.
const openTries = 4

// slowDown delays the return of an error to Pebble, which tries failed flushes again
// at once and for ever: 10 ms, then double, up to a second.
func (g *guard) slowDown() {
	n := g.health.tableErrors.Add(1)
	t := time.NewTimer(min(10*time.Millisecond<<min(n-1, 7), time.Second))
	defer t.Stop()
	select {
	case <-t.C:
	case <-g.failed:
	case <-g.closing:
	}
}

func (f *fence) file(name string, file vfs.File, err error, op string) (vfs.File, error) {
	if err = f.g.wrote(op, name, err); err != nil {
		return nil, err
	}
	return &fenceFile{File: file, g: f.g, name: name}, nil
}

func (f *fence) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	if strings.HasPrefix(f.PathBase(name), "marker.") {
		// Pebble up to 2.1.7 syncs the directory once for a new manifest and the marker
		// that names it, so that a crash may keep the marker without the manifest
		// and the catalog never opens again (cockroachdb/pebble#5825).
		if err := f.syncDir(f.PathDir(name)); err != nil {
			return nil, err
		}
	}
	f.g.admit()
	file, err := f.g.making(func() (vfs.File, error) { return f.FS.Create(name, c) })
	return f.file(name, file, err, "create")
}

func (f *fence) syncDir(name string) error {
	dir, err := f.OpenDir(name)
	if err != nil {
		return err
	}
	if err := dir.Sync(); err != nil {
		_ = dir.Close()
		return err
	}
	return dir.Close()
}

func (f *fence) OpenReadWrite(name string, c vfs.DiskWriteCategory, o ...vfs.OpenOption) (vfs.File, error) {
	f.g.admit()
	file, err := f.g.making(func() (vfs.File, error) { return f.FS.OpenReadWrite(name, c, o...) })
	return f.file(name, file, err, "open")
}

func (f *fence) ReuseForWrite(oldname, newname string, c vfs.DiskWriteCategory) (vfs.File, error) {
	f.g.admit()
	file, err := f.g.making(func() (vfs.File, error) {
		file, err := f.FS.ReuseForWrite(oldname, newname, c)
		if errors.Is(err, fs.ErrNotExist) { // renamed by a try that then found no descriptor
			return f.FS.OpenReadWrite(newname, c)
		}
		return file, err
	})
	return f.file(newname, file, err, "reuse")
}

// Open is for reading; who reads would rather know soon.
func (f *fence) Open(name string, o ...vfs.OpenOption) (vfs.File, error) {
	return f.g.opening(func() (vfs.File, error) { return f.FS.Open(name, o...) })
}

func (f *fence) OpenDir(name string) (vfs.File, error) {
	file, err := f.g.making(func() (vfs.File, error) { return f.FS.OpenDir(name) })
	if err != nil {
		return nil, err
	}
	return &fenceFile{File: file, g: f.g, name: name}, nil
}

func (f *fence) Rename(oldname, newname string) error {
	f.g.admit()
	return f.g.wrote("rename", newname, f.FS.Rename(oldname, newname))
}

func (f *fence) Link(oldname, newname string) error {
	f.g.admit()
	return f.g.wrote("link", newname, f.FS.Link(oldname, newname))
}

// Remove failing is not fatal: Pebble logs it and the next open tries again.
func (f *fence) Remove(name string) error {
	f.g.admit()
	defer f.g.writes.Add(-1)
	return f.FS.Remove(name)
}

func (f *fence) RemoveAll(name string) error {
	f.g.admit()
	defer f.g.writes.Add(-1)
	return f.FS.RemoveAll(name)
}

// List failing is fatal while opening: Open lists the directory once more at its end
// and, when it cannot, closes its file cache under the compactions it has started, which
// then panic.
func (f *fence) List(dir string) ([]string, error) {
	f.g.admit()
	names, err := f.FS.List(dir)
	if f.g.opened.Load() {
		f.g.writes.Add(-1)
		return names, err
	}
	return names, f.g.wrote("list", dir, err)
}

// Lock gives Pebble nothing: the catalog holds the lock itself, so that it can give it
// back when Pebble cannot.
func (f *fence) Lock(string) (io.Closer, error) { return noLock{}, nil }

type noLock struct{}

func (noLock) Close() error { return nil }

func (f *fence) Unwrap() vfs.FS { return f.FS }

// fenceFile is a file, or directory, opened for writing or syncing.
type fenceFile struct {
	vfs.File
	g    *guard
	name string
}

func (f *fenceFile) Write(p []byte) (int, error) {
	f.g.admit()
	n, err := f.g.appending(f.name, p, func(p []byte, _ int) (int, error) { return f.File.Write(p) })
	return n, f.g.wrote("write", f.name, err)
}

func (f *fenceFile) WriteAt(p []byte, off int64) (int, error) {
	f.g.admit()
	n, err := f.g.appending(f.name, p, func(p []byte, at int) (int, error) { return f.File.WriteAt(p, off+int64(at)) })
	return n, f.g.wrote("write", f.name, err)
}

func (f *fenceFile) Sync() error {
	f.g.admit()
	return f.g.wrote("sync", f.name, f.File.Sync())
}

func (f *fenceFile) SyncData() error {
	f.g.admit()
	return f.g.wrote("sync", f.name, f.File.SyncData())
}

func (f *fenceFile) SyncTo(length int64) (bool, error) {
	f.g.admit()
	full, err := f.File.SyncTo(length)
	return full, f.g.wrote("sync", f.name, err)
}

func (f *fenceFile) Close() error {
	f.g.admit()
	return f.g.wrote("close", f.name, f.File.Close())
}
