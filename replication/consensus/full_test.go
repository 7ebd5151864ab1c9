package consensus

import (
	"fmt"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
)

// space has a node's file system say what is free.
func (h *host) space(free uint64) {
	h.fs.TestingSetDiskUsage(vfs.DiskUsage{AvailBytes: free, TotalBytes: 1 << 40})
}

// The disk of a leader's log is full, and then that of another node: the others agree on changes, the node says why it
// takes none, and has them all once there is space, without a start.
func TestALogWithoutSpace(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := three(t)
		defer w.end(t)
		for round := range 2 {
			full := w.awaitLeader(t)
			if round == 1 {
				full = 1 + full%3
			}
			h := w.nodes[full]
			last, err := h.m.logs.LastIndex()
			require.NoError(t, err)
			h.space(leastSpace - 1)
			by := w.nodes[1+full%3].m
			var epoch uint32
			for i := range 3 {
				epoch = change(t, by, *open1(fmt.Sprint("s", round, i)))
			}
			eventually(t, "another one leads", func() bool { id := w.leader(); return id != 0 && id != full })
			at, err := h.m.logs.LastIndex()
			require.NoError(t, err)
			require.Equal(t, last, at, "it has appended something")
			require.Less(t, epochOf(h.m.Map()), epoch)
			s := h.m.Status(t.Context())
			require.Contains(t, s.Error, "space in data/raft/log")
			require.Contains(t, s.Error, skep.Full.Error())

			h.space(2 * leastSpace)
			w.sameMaps(t, epoch)
			require.Empty(t, h.m.Status(t.Context()).Error)
		}
	})
}

// A cluster of one node whose log has no space refuses a change, says why, and takes it once there is.
func TestALoneLogWithoutSpace(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		defer w.end(t)
		m := w.start(t, 1, mapOf(1))
		was := change(t, m, *open1("s"))
		w.nodes[1].space(leastSpace - 1)
		_, err := m.Propose(t.Context(), open1("refused"))
		require.ErrorIs(t, err, skep.Unavailable)
		require.ErrorIs(t, err, skep.Full)
		require.Equal(t, was, m.Map().Epoch)
		w.nodes[1].space(2 * leastSpace)
		require.Equal(t, was+1, change(t, m, *open1("taken")))
	})
}

// A log without space is not cut at its end: raft would take the entries for gone, and find those refused that replace
// them. At its begin it is.
func TestALogWithoutSpaceIsNotCut(t *testing.T) {
	t.Parallel()
	fs := vfs.NewMem()
	s := open(t, fs)
	for i := range uint64(10) {
		require.NoError(t, s.StoreLog(&raft.Log{Index: 1 + i}))
	}
	last := func(want uint64) {
		t.Helper()
		at, err := s.LastIndex()
		require.NoError(t, err)
		require.Equal(t, want, at)
	}
	fs.TestingSetDiskUsage(vfs.DiskUsage{AvailBytes: spaceToCut - 1, TotalBytes: 1 << 40})
	require.ErrorIs(t, s.DeleteRange(6, 10), skep.Full)
	last(10)
	require.NoError(t, s.DeleteRange(1, 5))
	fs.TestingSetDiskUsage(vfs.DiskUsage{AvailBytes: spaceToCut, TotalBytes: 1 << 40})
	require.NoError(t, s.DeleteRange(6, 10))
	last(0)
	// The space goes meanwhile: raft takes the entries for gone, and once those are refused that replace them, it would
	// ask for what is not there until it starts again.
	fs.TestingSetDiskUsage(vfs.DiskUsage{AvailBytes: leastSpace - 1, TotalBytes: 1 << 40})
	require.NoError(t, s.StoreLog(&raft.Log{Index: 6}))
	require.ErrorIs(t, s.StoreLog(&raft.Log{Index: 7}), skep.Full)
	last(6)
	fs.TestingSetDiskUsage(vfs.DiskUsage{AvailBytes: leastSpace + 1<<20, TotalBytes: 1 << 40})
	require.ErrorIs(t, s.StoreLog(&raft.Log{Index: 7, Data: make([]byte, 1<<20)}), skep.Full)
	require.NoError(t, s.StoreLog(&raft.Log{Index: 7}))
	require.NoError(t, s.Close())
}

// A log that found no space all the same says where, and what is to be done.
func TestALogThatFoundNoSpace(t *testing.T) {
	t.Parallel()
	if !inChild(t) {
		return
	}
	var full atomic.Bool
	s := open(t, errorfs.Wrap(vfs.NewMem(), errorfs.InjectorFunc(func(op errorfs.Op) error {
		if full.Load() && op.Kind.ReadOrWrite() == errorfs.OpIsWrite {
			return syscall.ENOSPC
		}
		return nil
	})))
	full.Store(true)
	err := s.StoreLog(&raft.Log{Index: 1})
	require.ErrorIs(t, err, skep.Failed)
	require.Contains(t, err.Error(), "data/raft/log")
	require.Contains(t, err.Error(), "start the server again")
}

// muteFS does not say what is free while it is held, as it is once it is mute.
type muteFS struct {
	vfs.FS
	mute atomic.Bool
	held chan struct{}
}

func (f *muteFS) GetDiskUsage(dir string) (vfs.DiskUsage, error) {
	if f.mute.Load() {
		<-f.held
	}
	return f.FS.GetDiskUsage(dir)
}

// A file system that does not answer when it is asked for its space fails the log in time, as one does that does not
// write: nobody waits for ever.
func TestALogWhoseFileSystemDoesNotAnswer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		fs := &muteFS{FS: vfs.NewMem(), held: make(chan struct{})}
		s := open(t, fs)
		fs.mute.Store(true)
		for range 3 { // who only looks goes by what was seen before, and the log is well
			require.NoError(t, s.seen())
		}
		select {
		case <-s.failed:
			t.Error("the log failed")
		default:
		}
		done := make(chan error, 1)
		go func() { done <- s.StoreLog(&raft.Log{Index: 1}) }()
		time.Sleep(2 * patience)
		synctest.Wait()
		if len(done) == 0 {
			t.Error("an entry waits for ever")
		} else {
			require.ErrorIs(t, <-done, skep.Failed)
			require.ErrorIs(t, s.space(leastSpace), skep.Failed)
		}
		close(fs.held)
		_ = s.db.Close()
	})
}

// Who looks while somebody else does is told what that one sees, and not what there was before: of a node that has
// looked for nothing yet, that is nothing.
func TestWhoLooksBesideAnotherIsToldTheSame(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		mem := vfs.NewMem()
		fs := &muteFS{FS: mem, held: make(chan struct{})}
		s := open(t, fs)
		mem.TestingSetDiskUsage(vfs.DiskUsage{AvailBytes: leastSpace - 1, TotalBytes: 1 << 40})
		fs.mute.Store(true)
		told := make(chan error, 2)
		for range cap(told) {
			go func() { told <- s.seen() }()
		}
		synctest.Wait()
		require.Empty(t, told)
		close(fs.held)
		for range cap(told) {
			require.ErrorIs(t, <-told, skep.Full)
		}
		require.NoError(t, s.Close())
	})
}

// To cut the log's end needs more space than an entry: that there is too little for that does not say that the node
// takes no entries.
func TestSpaceToCutIsNotSpaceForEntries(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		mem := vfs.NewMem()
		fs := &muteFS{FS: mem, held: make(chan struct{})}
		s := open(t, fs)
		for i := range uint64(3) {
			require.NoError(t, s.StoreLog(&raft.Log{Index: 1 + i}))
		}
		mem.TestingSetDiskUsage(vfs.DiskUsage{AvailBytes: spaceToCut - 1, TotalBytes: 1 << 40})
		require.ErrorIs(t, s.DeleteRange(2, 3), skep.Full)
		fs.mute.Store(true)
		require.NoError(t, s.seen(), "what was seen last")
		close(fs.held)
		require.NoError(t, s.Close())
	})
}

// A process that was stopped finds that much time has gone when it goes on. A call that has ended meanwhile counts, and
// one that goes on has its patience yet.
func TestALogOutlivesAStop(t *testing.T) {
	t.Parallel()
	s := open(t, vfs.NewMem())
	late := make(chan time.Time, patienceParts)
	done := make(chan error, 1)
	for range 100 {
		late <- time.Time{}
		done <- nil
		require.NoError(t, s.await(done, late), "it may have seen first that time has gone")
		for len(late) > 0 {
			<-late
		}
	}
	for range patienceParts - 1 {
		late <- time.Time{}
	}
	ended := make(chan error, 1)
	go func() { ended <- s.await(done, late) }()
	require.Eventually(t, func() bool { return len(late) == 0 }, time.Minute, time.Millisecond)
	done <- nil
	require.NoError(t, <-ended)
	for range patienceParts {
		late <- time.Time{}
	}
	require.ErrorIs(t, s.await(done, late), skep.Failed)
	require.NoError(t, s.db.Close())
}

// A node that has refused entries for their size says that it is short of space, until they would fit.
func TestEntriesThatAreTooLargeAreToldOf(t *testing.T) {
	t.Parallel()
	mem := vfs.NewMem()
	s := open(t, mem)
	large := &raft.Log{Index: 2, Data: make([]byte, 1<<20)}
	require.NoError(t, s.StoreLog(&raft.Log{Index: 1}))
	mem.TestingSetDiskUsage(vfs.DiskUsage{AvailBytes: leastSpace + 1<<20, TotalBytes: 1 << 40})
	require.NoError(t, s.seen())
	require.ErrorIs(t, s.StoreLog(large), skep.Full)
	require.ErrorIs(t, s.seen(), skep.Full)
	require.NoError(t, s.StoreLog(&raft.Log{Index: 2}), "a small one fits")
	require.ErrorIs(t, s.seen(), skep.Full)
	mem.TestingSetDiskUsage(vfs.DiskUsage{AvailBytes: leastSpace + 2<<20, TotalBytes: 1 << 40})
	require.NoError(t, s.seen())
	large.Index = 3
	require.NoError(t, s.StoreLog(large))
	mem.TestingSetDiskUsage(vfs.DiskUsage{AvailBytes: leastSpace, TotalBytes: 1 << 40})
	require.NoError(t, s.seen(), "what was taken is wanted no more")
	require.NoError(t, s.Close())
}
