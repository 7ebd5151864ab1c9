package catalog

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout"
)

// fault returns err for matching operations while it is on.
type fault struct {
	on    atomic.Bool
	match func(op errorfs.Op) bool
	err   error
	hits  atomic.Int64
}

func (f *fault) MaybeError(op errorfs.Op) error {
	if !f.on.Load() || !f.match(op) {
		return nil
	}
	f.hits.Add(1)
	return f.err
}

func (f *fault) String() string { return "fault" }

// faulty wraps fs with an injector. errorfs leaves recycled logs unwrapped.
func faulty(fs vfs.FS, inj errorfs.Injector) vfs.FS { return faultyFS{errorfs.Wrap(fs, inj), inj} }

type faultyFS struct {
	*errorfs.FS
	inj errorfs.Injector
}

func (f faultyFS) ReuseForWrite(oldname, newname string, c vfs.DiskWriteCategory) (vfs.File, error) {
	file, err := f.FS.ReuseForWrite(oldname, newname, c)
	if err != nil {
		return nil, err
	}
	return errorfs.WrapFile(file, errorfs.InjectorFunc(func(op errorfs.Op) error {
		op.Path = newname
		return f.inj.MaybeError(op)
	})), nil
}

// ops matches operations of some kinds on files whose name begins or ends so.
func ops(prefix, suffix string, kinds ...errorfs.OpKind) func(errorfs.Op) bool {
	return func(op errorfs.Op) bool {
		name := path.Base(op.Path)
		for _, k := range kinds {
			if op.Kind == k && strings.HasPrefix(name, prefix) && strings.HasSuffix(name, suffix) {
				return true
			}
		}
		return false
	}
}

var errBroken = errors.New("broken drive")

// inTime fails the test when f hangs. The limit is far above any timeout inside.
func inTime(t *testing.T, what string, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	select {
	case <-done:
	case <-time.After(time.Minute):
		t.Fatalf("%s hangs", what)
	}
}

func fillRows(b *Batch, i int) {
	rec := make([]byte, 2000)
	for k := range rec {
		rec[k] = byte(i * (k + 1) * 31)
	}
	b.PutBlock(at(uint32(i%16), uint32(i), 0, 0), rec)
	if i%50 == 49 {
		b.DeleteGroupBlocks(uint32(i % 16))
	}
}

// Pebble's own answer to each of these is to end the process.
func TestAnUnwritableLogOrManifestFailsTheCatalogAndNothingElse(t *testing.T) {
	t.Parallel()
	const write, sync, syncData, syncTo = errorfs.OpFileWrite, errorfs.OpFileSync, errorfs.OpFileSyncData,
		errorfs.OpFileSyncTo
	cases := []struct {
		name  string
		final bool // it is not tried again when there is space: a sync says once what it lost
		match func(errorfs.Op) bool
	}{
		{"log write", false, ops("", ".log", write)},
		{"log sync", true, ops("", ".log", sync, syncData, syncTo)},
		{"log create", false, ops("", ".log", errorfs.OpCreate, errorfs.OpReuseForWrite)}, // unrecoverable in rotateWAL
		{"manifest write", false, ops("MANIFEST-", "", write)},
		{"manifest sync", true, ops("MANIFEST-", "", sync, syncData)},
		{"directory sync", true, ops("catalog", "", sync, syncData)},
		{"everything", false, func(op errorfs.Op) bool {
			return op.Kind.ReadOrWrite() == errorfs.OpIsWrite && !strings.HasSuffix(op.Path, ".sst")
		}},
	}
	for _, tc := range cases {
		for _, mode := range []string{"sync", "no sync"} {
			for _, err := range []error{errBroken, fmt.Errorf("write: %w", syscall.ENOSPC)} {
				if err != errBroken && !tc.final {
					continue
				}
				t.Run(fmt.Sprintf("%s/%s/%v", tc.name, mode, err), func(t *testing.T) {
					t.Parallel()
					f := &fault{match: tc.match, err: err}
					var failures atomic.Int64
					mem := vfs.NewMem()
					c, oerr := Open(testDir, Options{FS: faulty(mem, f), Logger: quiet(), Timeout: 2 * time.Second,
						OnFailure: func(error) { failures.Add(1) }, memtableBytes: 64 << 10})
					require.NoError(t, oerr)
					commit(t, c, true, func(b *Batch) { b.PutStore(StoreState{}) })
					f.on.Store(true)
					testFailure(t, mem, c, mode == "sync", &failures)
					assert.Positive(t, f.hits.Load())
				})
			}
		}
	}
}

// testFailure commits until the catalog has failed and checks what holds then.
func testFailure(t *testing.T, mem vfs.FS, c *Catalog, sync bool, failures *atomic.Int64) {
	inTime(t, "committing", func() {
		for i := 0; c.Err() == nil; i++ {
			b := c.NewBatch()
			fillRows(b, i)
			if err := c.Commit(bg, b, sync); err != nil {
				assert.ErrorIs(t, err, skep.Failed, "commit %d", i)
			}
			if i > 20_000 {
				break
			}
		}
	})
	require.Error(t, c.Err(), "the fault is never met")
	inTime(t, "a call on a failed catalog", func() {
		b := c.NewBatch()
		b.DeleteBlock(layout.Location{})
		assert.ErrorIs(t, c.Commit(bg, b, sync), skep.Failed)
		_, err := c.Block(bg, layout.Location{}, nil)
		assert.ErrorIs(t, err, skep.Failed)
		assert.ErrorIs(t, c.Blocks(bg, []layout.Location{{}}, nil), skep.Failed)
		assert.ErrorIs(t, c.ScanBlocks(bg, 2, nil), skep.Failed)
		assert.ErrorIs(t, c.ScanGroup(bg, 0, nil), skep.Failed)
		_, err = c.Groups(bg)
		assert.ErrorIs(t, err, skep.Failed)
		_, err = c.Store(bg)
		assert.ErrorIs(t, err, skep.Failed)
	})
	inTime(t, "closing a failed catalog", func() {
		assert.ErrorIs(t, c.Close(), skep.Failed)
		assert.NoError(t, c.Close())
	})
	inTime(t, "opening it again", func() {
		again, err := Open(testDir, Options{FS: mem, Logger: quiet()})
		if assert.NoError(t, err) {
			_, err = again.Store(bg)
			assert.NoError(t, err)
			assert.NoError(t, again.Close())
		}
	})
	assert.Eventually(t, func() bool { return failures.Load() == 1 }, time.Minute, time.Millisecond, "OnFailure is called")
}

// What was synced before the failure is there for the next process, and the failed
// catalog writes nothing after it has failed.
func TestAFailureLosesNoSyncedCommit(t *testing.T) {
	t.Parallel()
	mem := vfs.NewCrashableMem()
	f := &fault{match: ops("", ".log", errorfs.OpFileSync, errorfs.OpFileSyncData), err: errBroken}
	c, err := Open(testDir, Options{FS: faulty(mem, f), Logger: quiet(), memtableBytes: 64 << 10})
	require.NoError(t, err)
	synced := uint64(0)
	for i := uint64(1); i < 1000; i++ {
		b := c.NewBatch()
		fillRows(b, int(i))
		b.PutStore(StoreState{NextSeq: i})
		f.on.Store(i == 500)
		if err := c.Commit(bg, b, true); err != nil {
			require.ErrorIs(t, err, skep.Failed)
			break
		}
		synced = i
	}
	require.EqualValues(t, 499, synced)
	after := open(t, mem.CrashClone(vfs.CrashCloneCfg{}))
	require.Contains(t, []uint64{499, 500}, held(t, after))
}

// Table files that cannot be written make commits wait, then fail; they go on when
// there is room again.
//
// Alone: goroutines of the whole process are counted.
func TestAFullDiskUnderTablesRefusesCommitsUntilThereIsRoom(t *testing.T) {
	noLeaks(t)
	for _, tc := range []struct {
		name  string
		kinds []errorfs.OpKind
	}{{"create", []errorfs.OpKind{errorfs.OpCreate}}, {"write", []errorfs.OpKind{errorfs.OpFileWrite}},
		{"sync", []errorfs.OpKind{errorfs.OpFileSync, errorfs.OpFileSyncData, errorfs.OpFileSyncTo}}} {
		t.Run(tc.name, func(t *testing.T) {
			f := &fault{match: ops("", ".sst", tc.kinds...), err: syscall.ENOSPC}
			c := open(t, faulty(vfs.NewMem(), f), func(o *Options) {
				o.memtableBytes, o.Timeout = 64<<10, 200*time.Millisecond
			})
			f.on.Store(true)
			var refused error
			inTime(t, "committing", func() {
				for i := 0; refused == nil && i < 10_000; i++ {
					b := c.NewBatch()
					fillRows(b, i)
					err := c.Commit(bg, b, i%2 == 0)
					if errors.Is(err, skep.Deadline) { // the one that met the stall, and waited as long as it may
						continue
					}
					refused = err
				}
			})
			require.ErrorIs(t, refused, skep.Full)
			require.NoError(t, c.Err())
			require.Eventually(t, func() bool { // a busy machine may take longer than the timeout for one
				_, err := c.Groups(bg)
				return err == nil
			}, time.Minute, time.Millisecond, "reads go on")
			f.on.Store(false)
			require.Eventually(t, func() bool {
				b := c.NewBatch()
				fillRows(b, 1)
				return c.Commit(bg, b, true) == nil
			}, time.Minute, 10*time.Millisecond, "there is room again")
		})
	}
}

// Tables that fail for another reason than space, for longer than the timeout, fail
// the catalog.
func TestADeadDriveUnderTablesFailsTheCatalog(t *testing.T) {
	t.Parallel()
	f := &fault{match: ops("", ".sst", errorfs.OpCreate), err: errBroken}
	var failures atomic.Int64
	c, err := Open(testDir, Options{FS: faulty(vfs.NewMem(), f), Logger: quiet(), Timeout: 300 * time.Millisecond,
		OnFailure: func(error) { failures.Add(1) }, memtableBytes: 64 << 10})
	require.NoError(t, err)
	f.on.Store(true)
	inTime(t, "committing", func() {
		for i := 0; c.Err() == nil && i < 10_000; i++ {
			b := c.NewBatch()
			fillRows(b, i)
			if err := c.Commit(bg, b, false); err != nil && !errors.Is(err, skep.Deadline) {
				assert.ErrorIs(t, err, skep.Failed)
			}
		}
	})
	assert.ErrorIs(t, c.Err(), skep.Failed)
	inTime(t, "closing", func() { assert.ErrorIs(t, c.Close(), skep.Failed) })
	assert.Eventually(t, func() bool { return failures.Load() == 1 }, time.Minute, time.Millisecond)
}

// hang holds matching operations until it is let go.
type hang struct {
	match func(errorfs.Op) bool
	mu    sync.Mutex
	gate  chan struct{}
}

func (h *hang) String() string { return "hang" }
func (h *hang) MaybeError(op errorfs.Op) error {
	h.mu.Lock()
	gate := h.gate
	h.mu.Unlock()
	if gate != nil && h.match(op) {
		<-gate
	}
	return nil
}
func (h *hang) hold() (letGo func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	gate := make(chan struct{})
	h.gate = gate
	return func() {
		h.mu.Lock()
		h.gate = nil
		h.mu.Unlock()
		close(gate)
	}
}

// Alone: goroutines of the whole process are counted.
func TestADriveThatDoesNotAnswerCostsADeadline(t *testing.T) {
	noLeaks(t)
	h := &hang{match: ops("", ".log", errorfs.OpFileSync, errorfs.OpFileSyncData)}
	c := open(t, faulty(vfs.NewMem(), h), func(o *Options) { o.Timeout = 300 * time.Millisecond })
	put := func(ctx context.Context, i int) error {
		b := c.NewBatch()
		fillRows(b, i)
		return c.Commit(ctx, b, true)
	}
	letGo := h.hold()
	inTime(t, "committing", func() {
		assert.ErrorIs(t, put(bg, 9), skep.Deadline, "the catalog's timeout")
		for within := time.Millisecond; len(c.commits) < 2; within *= 2 { // where it is over too soon, none is in flight
			ctx, cancel := context.WithTimeout(bg, within)
			err := put(ctx, 2)
			cancel()
			assert.ErrorIs(t, err, skep.Deadline)
			assert.ErrorIs(t, err, context.DeadlineExceeded, "the caller's")
		}
		ctx, cancel := context.WithCancel(bg)
		cancel()
		assert.ErrorIs(t, put(ctx, 3), context.Canceled)
		// More than may be in flight, of which two are: those that begin are in doubt, the others did not happen.
		errs := make(chan error, 2*maxCommits)
		for i := range cap(errs) {
			go func() { errs <- put(bg, 10+i%30) }()
		}
		said := map[skep.Kind]int{}
		for range cap(errs) {
			said[skep.KindOf(<-errs)]++
		}
		assert.Equal(t, map[skep.Kind]int{skep.Deadline: maxCommits - 2, skep.Full: maxCommits + 2}, said)
	})
	letGo()
	require.Eventually(t, func() bool { return put(bg, 4) == nil }, time.Minute, time.Millisecond, "it answers again")
	rec, err := c.Block(bg, at(9, 9, 0, 0), nil)
	require.NoError(t, err, "a commit past its deadline may still happen")
	require.Len(t, rec, 2000)
	_, err = c.Block(bg, at(3, 3, 0, 0), nil)
	require.ErrorIs(t, err, skep.NotFound, "one whose context was over before did not")
}

func TestCloseDoesNotWaitForADriveThatDoesNotAnswer(t *testing.T) {
	t.Parallel()
	h := &hang{match: ops("", ".log", errorfs.OpFileSync, errorfs.OpFileSyncData)}
	c, err := Open(testDir, Options{FS: faulty(vfs.NewMem(), h), Logger: quiet(), Timeout: 300 * time.Millisecond})
	require.NoError(t, err)
	letGo := h.hold()
	defer letGo()
	b := c.NewBatch()
	fillRows(b, 1)
	inTime(t, "closing", func() {
		assert.ErrorIs(t, c.Commit(bg, b, true), skep.Deadline)
		assert.ErrorIs(t, c.Close(), skep.Failed)
	})
}

// An error at any operation of Open comes back from Open, and gives back the lock.
func TestOpenSurvivesAnErrorAtAnyOperation(t *testing.T) {
	t.Parallel()
	failed, opened := 0, 0
	for _, existing := range []bool{false, true} {
		for k := int32(0); ; k++ {
			mem := vfs.NewMem()
			if existing {
				c := open(t, mem, func(o *Options) { o.memtableBytes = 64 << 10 })
				for i := range 100 {
					commit(t, c, i%10 == 0, func(b *Batch) { fillRows(b, i) })
				}
				require.NoError(t, c.Close())
			}
			var n atomic.Int32
			nth := errorfs.InjectorFunc(func(errorfs.Op) error {
				if n.Add(1)-1 == k {
					return errBroken
				}
				return nil
			})
			c, err := Open(testDir, Options{FS: faulty(mem, nth), Logger: quiet(), memtableBytes: 64 << 10})
			if err == nil {
				opened++
				past := n.Load() <= k
				_ = c.Close() // may meet the error
				if past {
					break
				}
				continue
			}
			failed++
			c, err = Open(testDir, Options{FS: mem, Logger: quiet(), memtableBytes: 64 << 10})
			require.NoError(t, err, "open after a failed open, operation %d", k)
			if existing {
				_, err = c.Block(bg, at(98%16, 98, 0, 0), nil)
				require.NoError(t, err)
			}
			require.NoError(t, c.Close())
		}
	}
	t.Logf("%d opens failed, %d did not", failed, opened)
	require.Greater(t, failed, 30)
}

// A disk that is full from any operation of Open on is the end of that Open, at once;
// with room again, everything synced is there.
func TestOpenOnAFullDiskEnds(t *testing.T) {
	t.Parallel()
	left := vfs.NewCrashableMem()
	c := open(t, left, func(o *Options) { o.memtableBytes = 64 << 10 })
	for i := range 100 {
		commit(t, c, true, func(b *Batch) { fillRows(b, i) })
	}
	failed := 0
	for k := int32(0); ; k++ {
		mem := left.CrashClone(vfs.CrashCloneCfg{}) // as a crash leaves it: Open has a log to replay
		var n atomic.Int32
		full := errorfs.InjectorFunc(func(op errorfs.Op) error {
			if n.Add(1) > k && op.Kind.ReadOrWrite() == errorfs.OpIsWrite {
				return syscall.ENOSPC
			}
			return nil
		})
		var err error
		inTime(t, "opening", func() {
			var c *Catalog
			if c, err = Open(testDir, Options{FS: faulty(mem, full), Logger: quiet(), memtableBytes: 64 << 10}); err == nil {
				_ = c.Close() // may meet the full disk
			}
		})
		if err == nil {
			break
		}
		failed++
		c, err := Open(testDir, Options{FS: mem, Logger: quiet()})
		require.NoError(t, err, "operation %d", k)
		_, err = c.Block(bg, at(98%16, 98, 0, 0), nil)
		require.NoError(t, err, "operation %d", k)
		require.NoError(t, c.Close())
	}
	require.Greater(t, failed, 10)
	require.NoError(t, c.Close())
}

// Damage in a table is the reader's error, not the catalog's end.
//
// Alone: goroutines of the whole process are counted.
func TestADamagedTableIsDamagedToItsReaders(t *testing.T) {
	noLeaks(t)
	mem := vfs.NewMem()
	c := open(t, mem, func(o *Options) { o.memtableBytes = 64 << 10 })
	for i := range 200 {
		commit(t, c, false, func(b *Batch) { fillRows(b, i) })
	}
	commit(t, c, true, func(b *Batch) { b.PutDevice(&DeviceState{Index: 1}) })
	require.NoError(t, c.Close())
	names, err := mem.List(testDir)
	require.NoError(t, err)
	for _, name := range names {
		if !isTable(name) {
			continue
		}
		f, err := mem.Open(testDir + "/" + name)
		require.NoError(t, err)
		content, err := io.ReadAll(f)
		require.NoError(t, err)
		require.NoError(t, f.Close())
		for i := 100; i < len(content)/2; i += 1000 { // rows, not the footer
			content[i] ^= 0xff
		}
		w, err := mem.Create(testDir+"/"+name, vfs.WriteCategoryUnspecified)
		require.NoError(t, err)
		_, err = w.Write(content)
		require.NoError(t, err)
		require.NoError(t, w.Close())
	}
	c, err = Open(testDir, Options{FS: mem, Logger: quiet()})
	require.NoError(t, err)
	err = c.ScanBlocks(bg, 2, func(int, layout.Location, []byte) error { return nil })
	assert.ErrorIs(t, err, skep.Damaged)
	assert.NoError(t, c.Err())
	require.NoError(t, c.Close())
}

// lateLock is a filesystem that takes locks only when it is let.
type lateLock struct {
	vfs.FS
	gate  chan struct{}
	taken chan struct{}
}

func (l lateLock) Lock(name string) (io.Closer, error) {
	<-l.gate
	c, err := l.FS.Lock(name)
	close(l.taken)
	return c, err
}

func (l lateLock) Unwrap() vfs.FS { return l.FS }

// An open that was given up, and goes on behind its caller's back, does not keep the lock
// that it takes then.
func TestAnOpenGivenUpKeepsNoLock(t *testing.T) {
	t.Parallel()
	mem := vfs.NewMem()
	late := lateLock{FS: mem, gate: make(chan struct{}), taken: make(chan struct{})}
	_, err := Open(testDir, Options{FS: late, Logger: quiet(), OpenTimeout: 50 * time.Millisecond})
	require.ErrorIs(t, err, skep.Deadline)
	close(late.gate)
	<-late.taken
	var c *Catalog
	require.Eventually(t, func() bool {
		c, err = Open(testDir, Options{FS: mem, Logger: quiet()})
		return err == nil
	}, time.Minute, time.Millisecond, "it is locked")
	require.NoError(t, c.Close())
}
