package store

import (
	"context"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/device"
)

// askedForDone tells when its Done is first asked for.
type askedForDone struct {
	context.Context
	once  sync.Once
	asked chan struct{}
}

func (c *askedForDone) Done() <-chan struct{} {
	c.once.Do(func() { close(c.asked) })
	return c.Context.Done()
}

// Of two drains of the last two devices, begun at one time, one is refused: it would leave nowhere to put anything.
func TestTheLastTwoDevicesAreNotBothDrained(t *testing.T) {
	t.Parallel()
	h, mem := &slowLog{}, vfs.NewMem()
	s, _, _ := openRig(t, func(o *Options) { o.CatalogFS, o.DeviceCount = errorfs.Wrap(mem, h), 2 })
	sc := openSpace(t, s, "n", skep.Cache, 1, false)
	requireOutcome(t, skep.Committed, putRun(t, s, sc, chainKeys(1, 3), faultBlock))
	letGo := h.hold() // the first cannot say in the catalog that it retires its device
	over, cancel := context.WithCancel(testContext(t))
	errs := make(chan error, 2)
	for _, name := range []string{"0", "1"} {
		ctx := &askedForDone{Context: over, asked: make(chan struct{})}
		go func() {
			_, err := s.DrainDevice(ctx, name, MoveOptions{})
			errs <- err
		}()
		<-ctx.asked
	}
	letGo()
	first := <-errs
	if skep.KindOf(first) == skep.Invalid {
		cancel() // the other may be long in finding room
	}
	second := <-errs
	if skep.KindOf(first) != skep.Invalid { // the other had done it before this one was refused
		first, second = second, first
	}
	cancel()
	requireKind(t, skep.Invalid, first)
	require.ErrorContains(t, first, "devices left in working order")
	require.NotEqual(t, skep.Invalid, skep.KindOf(second))
	require.False(t, s.members.Opened[0].Retired.Load() && s.members.Opened[1].Retired.Load())
	require.NoError(t, s.Close())
}

// A device whose freed headers are still being written is not out of the store, and not wiped: they would land on what
// is somebody else's by then.
func TestADeviceIsRemovedWhenNothingIsWrittenToItAnyMore(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	s, r, _ := openRig(t, func(o *Options) { o.DeviceCount, o.OpTimeout = 3, time.Second })
	sc := openSpace(t, s, "n", skep.Durable, 1, false)
	requireOutcome(t, skep.Committed, putRun(t, s, sc, chainKeys(1, 6), faultBlock))
	seg := s.space.SegmentBytes
	atHeader := func(op *device.Op) bool {
		return op.Offset >= layout.SegmentOffset(0, seg) && (op.Offset-layout.SegmentOffset(0, seg))%seg == 0
	}
	rule := r.faults[2].MustInject(device.Rule{Action: device.Hold, Kinds: device.Writes, Match: atHeader})
	_, err := s.RemoveDevice(ctx, "2", MoveOptions{})
	requireKind(t, skep.Deadline, err)
	require.False(t, s.members.Opened[2].Removed.Load())
	require.NotZero(t, r.faults[2].Held())

	rule.Remove()
	r.faults[2].Release()
	_, err = s.RemoveDevice(ctx, "2", MoveOptions{})
	require.NoError(t, err)
	require.Zero(t, r.faults[2].Held())
	require.NoError(t, s.Close())
}

// The file of a device that was removed is closed, and gives its room back, while the store goes on. Its readers come
// first.
func TestTheFileOfARemovedDeviceIsClosed(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("which files are open is read from /proc")
	}
	ctx := testContext(t)
	o := small(t.TempDir())
	o.DeviceCount = 3
	s := openTest(t, o)
	sc := openSpace(t, s, "n", skep.Cache, 1, false)
	keys := chainKeys(1, 6)
	requireOutcome(t, skep.Committed, putRun(t, s, sc, keys, 4<<10))
	d := s.members.Opened[2]
	held := s.space.GroupsOf(d)[0]
	held.Readers.Add(1)
	_, err := s.RemoveDevice(ctx, "2", MoveOptions{})
	require.NoError(t, err)
	require.NoFileExists(t, d.Path)
	open := func() bool {
		fds, err := filepath.Glob("/proc/self/fd/*")
		if err != nil {
			return true
		}
		for _, fd := range fds {
			if to, _ := os.Readlink(fd); to == d.Path+" (deleted)" {
				return true
			}
		}
		return false
	}
	require.True(t, open(), "somebody reads it")
	require.NoError(t, device.ReadAt(ctx, d.Dev, device.AlignedBuffer(layout.PageSize),
		d.SegmentOffset(held.Segments[0])))

	held.Readers.Add(-1)
	s.space.Kick()
	require.Eventually(t, func() bool { return !open() }, time.Minute, time.Millisecond)
	require.ErrorIs(t, device.ReadAt(ctx, d.Dev, device.AlignedBuffer(layout.PageSize), 0), device.ErrClosed)
	require.NoError(t, s.Flush(ctx))
	requireOutcome(t, skep.Committed, putRun(t, s, sc, chainKeys(2, 6), 4<<10))
	n, _ := requireRight(t, s, sc, keys, 4<<10)
	require.Equal(t, len(keys), n)
	require.NoError(t, s.Close())
}

// What a drain has no group to write to is kept by the cleaner, which has one in reserve: nothing is dropped for it.
// What is dropped is counted.
func TestADrainKeepsWhatTheCleanerHasRoomFor(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		fill  int // blocks that are put
		drops bool
	}{{"much room", 16, false}, {"no room", 600, true}} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			ctx := testContext(t)
			s, _, o := openRig(t, func(o *Options) { o.DeviceCount, o.NoRebalance = 3, true })
			sc := openSpace(t, s, "n", skep.Cache, 1, false)
			keys := chainKeys(1, c.fill)
			for i := range keys {
				putRun(t, s, sc, keys[i:i+1], faultBlock)
			}
			size := layout.SegmentOffset(3, s.space.SegmentBytes)
			for i := range 2 {
				require.NoError(t, s.AddDevice(ctx, NewDevice{Path: filepath.Join(o.Dir, "more-"+itoa(i)),
					Bytes: size, Smaller: true}))
			}
			p, err := s.DrainDevice(ctx, "0", MoveOptions{})
			require.NoError(t, err)
			require.Equal(t, c.drops, p.Evicted > 0, "%+v", p)
			if !c.drops {
				n, _ := requireRight(t, s, sc, keys, faultBlock)
				require.Equal(t, len(keys), n)
				require.GreaterOrEqual(t, p.Blocks, int64(1))
			}
			require.NoError(t, s.Close())
		})
	}
}
