//go:build unix

package catalog

import (
	"fmt"
	"os"
	"os/exec"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/tools/leaks"
)

// Nobody gets a descriptor for longer than a caller of the catalog waits: the commit that needs the next log waits on,
// what is there is read, and when there are descriptors all is well, without an open.
func TestWithoutDescriptorsTheCatalogWaits(t *testing.T) {
	t.Parallel()
	for _, errno := range []error{syscall.EMFILE, syscall.ENFILE, syscall.ENOSPC} {
		t.Run(errno.Error(), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { // time is the bubble's: a busy machine is not late
				f := &fault{err: fmt.Errorf("open: %w", errno), match: func(op errorfs.Op) bool {
					if errno == syscall.ENOSPC && op.Kind == errorfs.OpFileWrite {
						return !isTable(op.Path)
					}
					return op.Kind == errorfs.OpCreate || op.Kind == errorfs.OpReuseForWrite || op.Kind == errorfs.OpOpenDir
				}}
				mem := vfs.NewMem()
				const timeout = 500 * time.Millisecond
				c, err := Open(testDir, Options{FS: faulty(mem, f), Logger: quiet(), Timeout: timeout, Patience: time.Hour,
					memtableBytes: 64 << 10})
				require.NoError(t, err)
				commit(t, c, true, func(b *Batch) { b.PutStore(StoreState{NextSeq: 7}) })
				require.NoError(t, c.Scarce())

				f.on.Store(true)
				var refused atomic.Int64
				done := make(chan error, 1)
				go func() {
					for i := range 300 { // some ten logs
						b := c.NewBatch()
						fillRows(b, i)
						if err := c.Commit(bg, b, true); skep.KindOf(err) == skep.Full {
							refused.Add(1) // it did not happen
						} else if err != nil {
							done <- fmt.Errorf("commit %d: %w", i, err)
							return
						}
					}
					done <- nil
				}()
				eventually := func(what string, f func() bool) {
					t.Helper()
					require.Eventually(t, f, time.Minute, 10*time.Millisecond, what)
				}
				eventually("a change waits", func() bool { return c.spares.waiting.Load() > 0 })
				require.ErrorIs(t, c.Scarce(), skep.Full)
				began := f.hits.Load()
				eventually("it waits for longer than callers do", func() bool { // every try waits for at least scarceEvery
					return f.hits.Load()-began > 4*int64(timeout/scarceEvery)
				})
				s, err := c.Store(bg)
				require.NoError(t, err, "reads go on")
				require.EqualValues(t, 7, s.NextSeq)

				f.on.Store(false)
				inTime(t, "committing", func() { assert.NoError(t, <-done) })
				require.NoError(t, c.Err())
				eventually("the reserve is whole", func() bool { return c.Scarce() == nil })
				require.NoError(t, c.Close())
				c, err = Open(testDir, Options{FS: mem, Logger: quiet()})
				require.NoError(t, err)
				_, err = c.Block(bg, at(298%16, 298, 0, 0), nil)
				require.NoError(t, err)
				require.NoError(t, c.Close())
			})
		})
	}
}

// hogs takes every descriptor that the process may have, and those that become free.
type hogs struct {
	files []*os.File
	stop  chan struct{}
	gone  chan struct{}
}

func hogDescriptors() *hogs {
	h := &hogs{stop: make(chan struct{}), gone: make(chan struct{})}
	h.take()
	go func() {
		defer close(h.gone)
		again := time.NewTicker(5 * time.Millisecond)
		defer again.Stop()
		for {
			select {
			case <-h.stop:
				return
			case <-again.C:
				h.take()
			}
		}
	}()
	return h
}

func (h *hogs) take() {
	for {
		f, err := os.Open(os.DevNull)
		if err != nil {
			return
		}
		h.files = append(h.files, f)
	}
}

func (h *hogs) giveBack() int {
	close(h.stop)
	<-h.gone
	for _, f := range h.files {
		_ = f.Close()
	}
	return len(h.files)
}

// The same on the machine's own files, in a process of its own that may have few: others in it take all that is free.
//
// Alone: the limit is the process's.
func TestOthersTakeAllDescriptors(t *testing.T) {
	const inside = "SKEP_TEST_FEW_FILES"
	if os.Getenv(inside) == "" {
		cmd := exec.Command(os.Args[0], "-test.run=^TestOthersTakeAllDescriptors$", "-test.v")
		cmd.Env = append(os.Environ(), inside+"=1")
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
		require.Contains(t, string(out), "--- PASS", "%s", out)
		return
	}
	var l unix.Rlimit
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &l))
	l.Cur = min(l.Cur, 200)
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &l))

	dir := t.TempDir()
	o := Options{Logger: quiet(), memtableBytes: 64 << 10}
	c, err := Open(dir, o)
	require.NoError(t, err)
	commit(t, c, true, func(b *Batch) { b.PutStore(StoreState{NextSeq: 7}) })

	n := 0
	for range 3 { // used up and given back
		h := hogDescriptors()
		for first := n; c.Scarce() == nil; n++ { // nobody asks for more once it is known
			require.Less(t, n-first, 5000, "the catalog never needs a descriptor")
			b := c.NewBatch()
			fillRows(b, n)
			err := c.Commit(bg, b, true)
			if skep.KindOf(err) == skep.Full { // a flush waits: this one has not happened
				break
			}
			require.NoError(t, err, "commit %d", n)
		}
		require.NoError(t, c.Err())
		_, err = c.Store(bg)
		require.NoError(t, err, "reads go on")
		require.Positive(t, h.giveBack())
		require.Eventually(t, func() bool { return c.Scarce() == nil }, time.Minute, time.Millisecond, "well again")
	}
	commit(t, c, true, func(b *Batch) { b.PutStore(StoreState{NextSeq: 8}) })
	require.NoError(t, c.Close())
	c, err = Open(dir, o)
	require.NoError(t, err)
	s, err := c.Store(bg)
	require.NoError(t, err)
	require.EqualValues(t, 8, s.NextSeq)
	last := n - 1
	if last%50 == 49 {
		last--
	}
	_, err = c.Block(bg, at(uint32(last%16), uint32(last), 0, 0), nil)
	require.NoError(t, err)
	require.NoError(t, c.Close())
}

// A file system takes a part of what is written to a log, and then says that it is full: when there is space the rest
// follows, and what an open reads is what was committed.
func TestAHalfWrittenLogGoesOn(t *testing.T) {
	t.Parallel()
	mem := vfs.NewMem()
	disk := &halfFS{FS: mem}
	c, err := Open(testDir, Options{FS: disk, Logger: quiet()})
	require.NoError(t, err)
	disk.on.Store(true)
	done := make(chan error, 1)
	go func() {
		b := c.NewBatch()
		fillRows(b, 1)
		done <- c.Commit(bg, b, true)
	}()
	waits := func() bool { return disk.halves.Load() >= 3 }
	require.Eventually(t, waits, time.Minute, time.Millisecond, "the commit waits")
	require.ErrorIs(t, c.Scarce(), skep.Full)
	disk.on.Store(false)
	inTime(t, "committing", func() { assert.NoError(t, <-done) })
	require.NoError(t, c.Close())
	c, err = Open(testDir, Options{FS: mem, Logger: quiet()})
	require.NoError(t, err)
	_, err = c.Block(bg, at(1, 1, 0, 0), nil)
	require.NoError(t, err)
	require.NoError(t, c.Close())
}

// halfFS writes half of what it is given to a log, while it is on.
type halfFS struct {
	vfs.FS
	on     atomic.Bool
	halves atomic.Int64
}

func (h *halfFS) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := h.FS.Create(name, c)
	if err != nil || isTable(name) {
		return f, err
	}
	return &halfFile{File: f, on: h}, nil
}

type halfFile struct {
	vfs.File
	on *halfFS
}

func (f *halfFile) Write(p []byte) (int, error) {
	if !f.on.on.Load() {
		return f.File.Write(p)
	}
	n, err := f.File.Write(p[:len(p)/2])
	if n > 0 {
		f.on.halves.Add(1)
	}
	if err == nil {
		err = syscall.ENOSPC
	}
	return n, err
}

// An open that finds no descriptors for its reserve leaves nothing behind: neither Pebble nor the lock.
//
// Alone: goroutines of the whole process are counted.
func TestOpenWithoutAReserveIsClosed(t *testing.T) {
	before := goleak.IgnoreCurrent()
	mem := vfs.NewMem()
	c, err := Open(testDir, Options{FS: mem, Logger: quiet()})
	require.NoError(t, err)
	commit(t, c, true, func(b *Batch) { b.PutStore(StoreState{NextSeq: 7}) })
	require.NoError(t, c.Close())
	for most := range int64(spareFiles) {
		var opened atomic.Int64
		f := &fault{err: fmt.Errorf("open: %w", syscall.EMFILE), match: func(op errorfs.Op) bool {
			return op.Kind == errorfs.OpOpenDir && opened.Add(1) > most
		}}
		f.on.Store(true)
		_, err := Open(testDir, Options{FS: faulty(mem, f), Logger: quiet()})
		require.ErrorIs(t, err, syscall.EMFILE)
		require.NoError(t, leaks.Find(before))
	}
	c, err = Open(testDir, Options{FS: mem, Logger: quiet()})
	require.NoError(t, err)
	require.NoError(t, c.Close())
}

// What a change waits for may change while it does: a full file system turns read-only, and back. It waits for each as
// long as that is waited for, and says what it waits for now; another error ends it.
func TestEachTryOfAChangeCounts(t *testing.T) {
	t.Parallel()
	const patience = time.Minute
	stages := []struct {
		meets error
		long  bool // for longer than its patience
		says  skep.Kind
	}{{meets: syscall.ENOSPC, says: skep.Full}, {meets: syscall.EROFS, says: skep.ReadOnly},
		{meets: syscall.EMFILE, says: skep.Full}, {syscall.EROFS, true, skep.ReadOnly},
		{meets: syscall.ENOSPC, says: skep.Full}}
	for name, last := range map[string]struct {
		meets error
		long  bool
	}{"it succeeds": {}, "another error": {meets: syscall.EIO}, "full for too long": {syscall.ENOSPC, true}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				c := open(t, vfs.NewMem())
				var meets atomic.Pointer[error]
				done := make(chan error, 1)
				meet := func(err error, long bool) {
					meets.Store(&err)
					wait := patience / 3
					if long {
						wait = 3 * patience
					}
					time.Sleep(wait)
				}
				meets.Store(&stages[0].meets)
				go func() { done <- c.again(patience, true, func() error { return *meets.Load() }) }()
				for _, s := range stages {
					meet(s.meets, s.long)
					require.Empty(t, done)
					require.ErrorIs(t, c.Scarce(), s.says)
					require.ErrorIs(t, c.Refuses("test"), s.says)
				}
				meet(last.meets, last.long)
				require.Equal(t, last.meets, <-done)
				require.NoError(t, c.Scarce())
				require.NoError(t, c.Refuses("test"))
			})
		})
	}
}

// A sync that fails fails the catalog at once, also where a write with that error would be waited for: a second one
// would say that all is well of what the first has lost.
func TestAFailedSyncIsNotMadeAgain(t *testing.T) {
	t.Parallel()
	for _, errno := range []error{syscall.EROFS, syscall.ENOSPC} {
		f := &fault{err: errno, match: ops("", ".log", errorfs.OpFileSync, errorfs.OpFileSyncData, errorfs.OpFileSyncTo)}
		c, err := Open(testDir, Options{FS: faulty(vfs.NewMem(), f), Logger: quiet()})
		require.NoError(t, err)
		f.on.Store(true)
		b := c.NewBatch()
		b.PutStore(StoreState{NextSeq: 7})
		require.ErrorIs(t, c.Commit(bg, b, true), skep.Failed)
		require.ErrorIs(t, c.Err(), errno)
		require.EqualValues(t, 1, f.hits.Load())
		_ = c.Close()
	}
}
