package store

import (
	"context"
	"errors"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
)

// fullFS is a file system of so many bytes, in which others have so many.
type fullFS struct {
	vfs.FS
	dir     string
	size    int64
	others  atomic.Int64
	ballast atomic.Int64 // bytes preallocated in its directory
	quicker atomic.Bool  // others take what was left, whenever some is asked for
}

func (f *fullFS) left() int64 {
	left := f.size - f.others.Load() - f.ballast.Load()
	names, _ := f.FS.List(f.dir)
	for _, n := range names {
		if info, err := f.FS.Stat(f.FS.PathJoin(f.dir, n)); err == nil {
			left -= info.Size()
		}
	}
	return left
}

func (f *fullFS) GetDiskUsage(string) (vfs.DiskUsage, error) {
	return vfs.DiskUsage{AvailBytes: uint64(max(0, f.left())), TotalBytes: uint64(f.size)}, nil
}

func (f *fullFS) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	file, err := f.FS.Create(name, c)
	return &fullFile{file, f, name}, err
}

func (f *fullFS) ReuseForWrite(was, name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	file, err := f.FS.ReuseForWrite(was, name, c)
	return &fullFile{file, f, name}, err
}

func (f *fullFS) Remove(name string) error {
	err := f.FS.Remove(name)
	if err == nil && filepath.Base(name) == "ballast" {
		f.ballast.Store(0)
	}
	return err
}

func (f *fullFS) Unwrap() vfs.FS { return f.FS }

type fullFile struct {
	vfs.File
	on   *fullFS
	name string
}

func (f *fullFile) Write(b []byte) (int, error) {
	if int64(len(b)) > f.on.left() {
		return 0, syscall.ENOSPC
	}
	return f.File.Write(b)
}

func (f *fullFile) Preallocate(_, n int64) error {
	if filepath.Base(f.name) != "ballast" {
		return nil
	}
	if n > f.on.left() || f.on.quicker.Load() {
		return syscall.ENOSPC
	}
	f.on.ballast.Store(n)
	return nil
}

// A process ends while others have filled the file system of the catalog. The next opens the
// store in the room that was kept for that: everything is there, puts are declined, and are
// taken again, and the room kept again, once there is space. Without that room the open says
// what is full and how much it needs, and nothing is lost.
func TestOpenOnAFullFileSystem(t *testing.T) {
	t.Parallel()
	for _, kept := range []bool{true, false} {
		t.Run(sprintf("room was kept: %v", kept), func(t *testing.T) {
			disk := &fullFS{FS: vfs.NewMem(), size: 40 << 20}
			s, _, o := openRig(t, func(o *Options) {
				o.CatalogFS, o.ballastAfter = disk, time.Nanosecond
				disk.dir = o.catalogDir()
				if !kept {
					o.ballastAfter = time.Hour
				}
			})
			sc := openSpace(t, s, "n", skep.Durable, 1, true)
			keys := chainKeys(1, 40)
			requireOutcome(t, skep.Committed, putRun(t, s, sc, keys, 600))
			if kept {
				eventually(t, "room is kept", func() bool { return disk.ballast.Load() > 0 })
			}
			require.NoError(t, s.Close())
			disk.others.Add(disk.left())
			require.Zero(t, disk.left())

			s, err := Open(context.Background(), o)
			if !kept {
				requireKind(t, skep.Full, err)
				require.ErrorContains(t, err, o.catalogDir())
				require.ErrorIs(t, err, syscall.ENOSPC)
				var e *skep.Error
				require.True(t, errors.As(err, &e))
				require.Equal(t, "open catalog", e.Op)
				disk.others.Store(0)
				s, err = Open(context.Background(), o)
			}
			require.NoError(t, err)
			requireChain(t, s, sc, keys, 600)
			if kept {
				require.Zero(t, disk.ballast.Load())
				disk.others.Store(0)
				eventually(t, "room is kept again", func() bool { return disk.ballast.Load() > 0 })
			}
			next := 100
			eventually(t, "puts are taken again", func() bool {
				next++
				return putRun(t, s, sc, chainKeys(next, 1), 600)[0].Outcome == skep.Committed
			})
			require.NoError(t, s.Close())
		})
	}
}

// Others fill the file system of the catalog between two looks of the store. What is under way, and deletes, go on in
// the room that was kept; without it they wait. Nothing fails, what is stored is read, and when there is space again
// puts are taken without an open.
func TestOthersFillTheCatalogsFileSystem(t *testing.T) {
	t.Parallel()
	for _, kept := range []bool{true, false} {
		t.Run(sprintf("room was kept: %v", kept), func(t *testing.T) {
			ctx := testContext(t)
			disk := &fullFS{FS: vfs.NewMem(), size: 40 << 20}
			s, _, _ := openRig(t, func(o *Options) {
				o.CatalogFS, o.ballastAfter, o.catalogScarce = disk, time.Nanosecond, 30*time.Second
				disk.dir = o.catalogDir()
				if !kept {
					o.ballastAfter = time.Hour
				}
			})
			defer func() { require.NoError(t, s.Close()) }()
			sc := openSpace(t, s, "n", skep.Durable, 1, true)
			keys, gone := chainKeys(1, 40), chainKeys(2, 40)
			requireOutcome(t, skep.Committed, putRun(t, s, sc, keys, 600))
			requireOutcome(t, skep.Committed, putRun(t, s, sc, gone, 600))
			if kept {
				eventually(t, "room is kept", func() bool { return disk.ballast.Load() > 0 })
			}
			disk.others.Add(disk.left())
			deleted := make(chan error, 1)
			go func() {
				_, err := s.Delete(ctx, sc, gone)
				deleted <- err
			}()
			if !kept {
				eventually(t, "the delete waits", func() bool { return s.catalog.Scarce() != nil })
				requireChain(t, s, sc, keys, 600)
				disk.others.Store(0)
			}
			require.NoError(t, <-deleted)
			requireChain(t, s, sc, keys, 600)
			disk.others.Store(0)
			next := 100
			eventually(t, "puts are taken again", func() bool {
				next++
				return putRun(t, s, sc, chainKeys(next, 1), 600)[0].Outcome == skep.Committed
			})
			if kept {
				eventually(t, "room is kept again", func() bool { return disk.ballast.Load() > 0 })
			}
			found, err := s.Lookup(ctx, &skep.LookupRequest{Scope: sc, Keys: gone})
			require.NoError(t, err)
			require.Zero(t, found.Blocks)
		})
	}
}

// The room that is to be kept is there when the store looks, and others have it when it is taken. No file stays that
// would pass for it: an open on the full file system would go on, and tell of room that it has not.
func TestBallastThatCannotBeTakenIsNone(t *testing.T) {
	t.Parallel()
	disk := &fullFS{FS: vfs.NewMem(), size: 40 << 20}
	disk.quicker.Store(true)
	s, _, _ := openRig(t, func(o *Options) {
		o.CatalogFS, o.ballastAfter = disk, time.Nanosecond
		disk.dir = o.catalogDir()
	})
	eventually(t, "it is said that no room is kept", func() bool {
		return slices.ContainsFunc(s.logTail.Lines(), func(line string) bool {
			return strings.Contains(line, "no room is kept")
		})
	})
	require.Zero(t, disk.ballast.Load())
	_, err := disk.Stat(disk.PathJoin(s.options.catalogDir(), "ballast"))
	require.ErrorIs(t, err, fs.ErrNotExist)
	require.False(t, s.catalogRoom.Drop())
	require.NoError(t, s.Close())
}
