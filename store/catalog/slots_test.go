package catalog

import (
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout"
)

// More commits at once than may be in flight, and then there is no space for their log for longer than a commit waits,
// and the log is synced long after there is: of each it is known whether it happened. Those that waited for others
// did not.
func TestWithoutSpaceNoCommitIsInDoubt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const timeout, all = 30 * time.Second, maxCommits + 20
		var full, slow atomic.Bool
		begun, synced := make(chan struct{}), make(chan struct{})
		log := ops("", ".log", errorfs.OpFileWrite)
		sync := ops("", ".log", errorfs.OpFileSync, errorfs.OpFileSyncData, errorfs.OpFileSyncTo)
		disk := errorfs.InjectorFunc(func(op errorfs.Op) error {
			switch {
			case full.Load() && log(op):
				<-begun
				return syscall.ENOSPC
			case slow.Load() && sync(op):
				<-synced
			}
			return nil
		})
		c, err := Open(testDir, Options{FS: faulty(vfs.NewMem(), disk), Logger: quiet(), Timeout: timeout})
		require.NoError(t, err)
		defer func() { require.NoError(t, c.Close()) }()

		full.Store(true)
		slow.Store(true)
		results := make(chan error, all)
		for i := range all {
			b := c.NewBatch()
			b.PutBlock(at(1, uint32(i), 0, 0), []byte("row"))
			go func() { results <- c.Commit(bg, b, true) }()
		}
		synctest.Wait()
		require.Len(t, c.commits, maxCommits)
		close(begun)
		time.Sleep(timeout * 3 / 2)
		require.Positive(t, c.spares.waiting.Load())
		full.Store(false)
		time.Sleep(timeout * 3 / 4)
		require.Zero(t, c.spares.waiting.Load())
		close(synced)

		happened, refused := 0, 0
		for range all {
			if err := <-results; err == nil {
				happened++
			} else {
				require.ErrorIs(t, err, skep.Full)
				refused++
			}
		}
		require.Equal(t, maxCommits, happened)
		require.Equal(t, all-maxCommits, refused)
		rows := 0
		require.NoError(t, c.ScanGroup(bg, 1, func(layout.Location, []byte) error { rows++; return nil }))
		require.Equal(t, happened, rows)
	})
}

// There is space for the log, whose files are used again, and none for tables: memtables fill up, and commits wait for a flush.
// More are made than may be in flight, and space comes long after a commit waits otherwise. Of each it is known whether it
// happened, and the catalog goes on.
func TestWithoutSpaceForTablesNoCommitIsInDoubt(t *testing.T) {
	t.Parallel() // it waits
	const timeout, all = 3 * time.Second, 3 * maxCommits
	var full atomic.Bool
	var tries atomic.Int64
	begun, table := make(chan struct{}), ops("", ".sst", errorfs.OpFileWrite)
	disk := errorfs.InjectorFunc(func(op errorfs.Op) error {
		if !full.Load() || !table(op) {
			return nil
		}
		<-begun
		tries.Add(1)
		return syscall.ENOSPC
	})
	c := open(t, faulty(vfs.NewMem(), disk), func(o *Options) {
		o.memtableBytes, o.Timeout, o.Patience = 64<<10, timeout, time.Hour
	})
	full.Store(true)
	results := make(chan error, all)
	for i := range all {
		b := c.NewBatch()
		b.PutBlock(at(1, uint32(i), 0, 0), make([]byte, 8<<10))
		go func() { results <- c.Commit(bg, b, true) }()
	}
	eventually := func(what string, f func() bool) {
		t.Helper()
		require.Eventually(t, f, time.Minute, time.Millisecond, what)
	}
	eventually("as many wait for a flush as may be in flight", func() bool { return c.health.stalled.Load() && len(c.commits) == maxCommits })
	close(begun)
	eventually("the others are answered", func() bool { return len(results) >= all-maxCommits })
	eventually("who has begun waits on", func() bool { return tries.Load() > 8+2*int64(timeout/time.Second) }) // they come a second after each other by then
	require.NoError(t, c.Err())
	full.Store(false)

	happened, refused := 0, 0
	for range all {
		if err := <-results; err == nil {
			happened++
		} else {
			require.ErrorIs(t, err, skep.Full)
			refused++
		}
	}
	require.GreaterOrEqual(t, happened, maxCommits)
	require.Positive(t, refused)
	rows := 0
	require.NoError(t, c.ScanGroup(bg, 1, func(layout.Location, []byte) error { rows++; return nil }))
	require.Equal(t, happened, rows)
	require.NoError(t, c.Err())
}
