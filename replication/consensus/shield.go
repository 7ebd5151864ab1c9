package consensus

import (
	"fmt"
	"strings"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// shield is the file system that Pebble sees. Where its log or a directory cannot be written, the shield fails logs and
// keeps the goroutine for good: Pebble panics there with a mutex released that its caller is to unlock, or on one
// of its own, and no recover keeps the process alive then. While the database is opened, Pebble answers to what the
// log meets. Errors of other files go to Pebble, which tries again, or calls Fatalf.
type shield struct {
	vfs.FS
	s    *logs
	open atomic.Bool // the database is
}

// must does not return where err is one that Pebble must not see.
func (f *shield) must(op, name string, err error) error {
	if err != nil && f.open.Load() && strings.HasSuffix(name, ".log") {
		f.never(op, name, err)
	}
	return err
}

func (f *shield) never(op, name string, err error) {
	f.s.log.Error("raft's log failed", "error", err)
	f.s.fail(fmt.Errorf("%s %s: %w", op, name, err))
	select {}
}

func (f *shield) file(op, name string, file vfs.File, err error) (vfs.File, error) {
	if err = f.must(op, name, err); err != nil || !strings.HasSuffix(name, ".log") {
		return file, err
	}
	return &shielded{file, f, name}, nil
}

func (f *shield) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	file, err := f.FS.Create(name, c)
	return f.file("create", name, file, err)
}

func (f *shield) ReuseForWrite(was, name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	file, err := f.FS.ReuseForWrite(was, name, c)
	return f.file("reuse", name, file, err)
}

func (f *shield) OpenDir(name string) (vfs.File, error) {
	d, err := f.FS.OpenDir(name)
	if err != nil {
		return nil, err
	}
	return shieldedDir{d, f, name}, nil
}

func (f *shield) Unwrap() vfs.FS { return f.FS }

// shielded is a file of Pebble's log.
type shielded struct {
	vfs.File
	f    *shield
	name string
}

func (f *shielded) Write(p []byte) (int, error) {
	n, err := f.File.Write(p)
	return n, f.f.must("write", f.name, err)
}

func (f *shielded) Stat() (vfs.FileInfo, error) {
	info, err := f.File.Stat()
	return info, f.f.must("stat", f.name, err)
}

func (f *shielded) Sync() error { return f.f.must("sync", f.name, f.File.Sync()) }

func (f *shielded) SyncData() error { return f.f.must("sync", f.name, f.File.SyncData()) }

func (f *shielded) SyncTo(length int64) (bool, error) {
	all, err := f.File.SyncTo(length)
	return all, f.f.must("sync", f.name, err)
}

func (f *shielded) Close() error { return f.f.must("close", f.name, f.File.Close()) }

// shieldedDir is a directory. Pebble panics where one cannot be synced, also while the database is opened.
type shieldedDir struct {
	vfs.File
	f    *shield
	name string
}

func (d shieldedDir) Sync() error {
	if err := d.File.Sync(); err != nil {
		d.f.never("sync", d.name, err)
	}
	return nil
}
