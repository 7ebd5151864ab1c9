package store

import (
	"context"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/device"
	"github.com/skepkv/skep/store/internal/paths"
	"github.com/skepkv/skep/store/internal/segio"
	"github.com/skepkv/skep/store/segment"
)

// A device that the catalog refuses leaves no file that carries the store's name and the number that the next one
// gets.
func TestAnAddThatTheCatalogRefusesLeavesNothing(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	var refuse atomic.Bool
	o := small(tempRoot(t, "store"))
	o.taskEvery = hangs
	o.refuseCommits = func() error {
		if refuse.Load() {
			return &skep.Error{Op: "commit", Kind: skep.Full}
		}
		return nil
	}
	s, err := Open(ctx, o)
	require.NoError(t, err)
	sc := openSpace(t, s, "n", skep.Durable, 1, true)
	outside := o.Dir + "-outside"
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(outside)) })
	for _, path := range []string{filepath.Join(o.Dir, "device-2"), outside} {
		refuse.Store(true)
		requireKind(t, skep.Full, s.AddDevice(ctx, NewDevice{Path: path}))
		refuse.Store(false)
		require.NoFileExists(t, path)
	}
	require.Zero(t, s.opening.Places.Outside(), "nothing is said of a device that is not the store's")
	require.NoError(t, s.AddDevice(ctx, NewDevice{Path: filepath.Join(o.Dir, "device-3")}))
	keys := chainKeys(1, 40)
	requireOutcome(t, skep.Committed, putRun(t, s, sc, keys, 8<<10))
	require.NoError(t, s.Close())
	require.NoError(t, os.RemoveAll(o.catalogDir()))
	s, err = Open(context.Background(), o)
	require.NoError(t, err)
	require.Len(t, s.members.Opened, 3)
	requireChain(t, s, sc, keys, 8<<10)
	require.NoError(t, s.Close())
}

// What was there before an add that fails, a block device, carries nothing of the store afterwards.
func TestAnAddThatFailsTakesItsNameBack(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	for nth := 1; nth <= 4; nth++ { // superblock, flush, superblock, flush
		s, r, o := openRig(t, quick)
		path := filepath.Join(o.Dir, "device-2")
		require.NoError(t, os.Mkdir(path, 0o755)) // it is there, and no file; what is opened is of memory
		inner := s.opening.OpenDevice
		s.opening.OpenDevice = func(i int, path string, _ bool, size int64) (device.Device, error) {
			d, err := inner(i, path, true, 4<<20)
			if err == nil {
				r.faults[i].MustInject(device.Rule{Action: device.Fail, Kinds: device.Writes | device.Flushes, Nth: nth, Times: 1})
			}
			return d, err
		}
		requireKind(t, skep.DeviceFailed, s.AddDevice(ctx, NewDevice{Path: path}))
		first := device.AlignedBuffer(layout.SuperblockPages * layout.PageSize)
		again, err := inner(2, path, false, 0)
		require.NoError(t, err)
		r.faults[2].Clear()
		require.NoError(t, device.ReadAt(ctx, again, first, 0))
		require.NoError(t, again.Close())
		require.True(t, segment.Blank(first), "operation %d failed", nth)
		require.NoError(t, s.Close())
	}
}

// leftByAnAdd is what the end of a process leaves between a device's superblock and its row.
func leftByAnAdd(t testing.TB, s *Store, path string) {
	t.Helper()
	n := len(s.members.All())
	d, err := s.opening.CreateDrive(testContext(t), n, n+1, path, layout.SegmentOffset(3, s.space.SegmentBytes), 0)
	require.NoError(t, err)
	require.NoError(t, d.Dev.Close())
}

// A process ended in the midst of an add, and the next add is of another name: both devices have one number then. The
// one that holds something is the store's, whatever their names are.
func TestADeviceLeftByAnAddIsNotTakenForTheNextOne(t *testing.T) {
	t.Parallel()
	for _, names := range [][2]string{{"device-2", "other"}, {"half", "other"}, {"half", "device-2"}, {"other", "half"}} {
		for _, named := range []bool{false, true} {
			t.Run(names[0]+" was left, "+names[1]+" is added, named "+map[bool]string{true: "each", false: "none"}[named], func(t *testing.T) {
				ctx := testContext(t)
				o := small(tempRoot(t, "store"))
				s, err := Open(ctx, o)
				require.NoError(t, err)
				left, added := filepath.Join(o.Dir, names[0]), filepath.Join(o.Dir, names[1])
				leftByAnAdd(t, s, left)
				require.NoError(t, s.Close())
				s, err = Open(ctx, o)
				require.NoError(t, err)
				sc := openSpace(t, s, "n", skep.Durable, 1, true)
				require.NoError(t, s.AddDevice(ctx, NewDevice{Path: added}))
				keys := chainKeys(1, 40)
				requireOutcome(t, skep.Committed, putRun(t, s, sc, keys, 8<<10))
				require.NoError(t, s.Close())
				if named {
					o.Devices = []string{filepath.Join(o.Dir, "device-0"), filepath.Join(o.Dir, "device-1"), left, added}
					s, err = Open(ctx, o)
					require.NoError(t, err)
					require.Len(t, s.members.Opened, 3)
					requireChain(t, s, sc, keys, 8<<10)
					require.NoError(t, s.Close())
				}
				require.NoError(t, os.RemoveAll(o.catalogDir()))
				s, err = Open(ctx, o)
				require.NoError(t, err)
				require.Len(t, s.members.Opened, 3)
				require.Equal(t, paths.Real(added), paths.Real(s.members.Opened[2].Path))
				requireChain(t, s, sc, keys, 8<<10)
				require.NoError(t, s.Close())
				sb, err := segio.PeekSuperblock(left)
				require.NoError(t, err, "it is left alone")
				require.Equal(t, 2, sb.DeviceIndex)
			})
		}
	}
}

// What an add takes out of its way is what an add has left: a device on which something was written stays as it is.
func TestAnAddDoesNotClearWhatHoldsSomething(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	o := small(tempRoot(t, "store"))
	o.taskEvery = hangs
	s, err := Open(ctx, o)
	require.NoError(t, err)
	sc := openSpace(t, s, "n", skep.Durable, 2, true)
	requireOutcome(t, skep.Committed, putRun(t, s, sc, chainKeys(1, 40), 8<<10))
	require.NoError(t, s.Flush(ctx))
	path := s.members.Opened[0].Path
	require.NoError(t, s.Close())
	before, err := os.ReadFile(path)
	require.NoError(t, err)
	s, err = Open(ctx, o)
	require.NoError(t, err)
	unknown := filepath.Join(o.Dir, "unknown")
	require.NoError(t, os.WriteFile(unknown, before, 0o600))
	sb, err := segio.PeekSuperblock(unknown)
	require.NoError(t, err)
	err = s.opening.Disown(ctx, unknown, &sb)
	requireKind(t, skep.Conflict, err)
	require.ErrorContains(t, err, "rebuild")
	after, err := os.ReadFile(unknown)
	require.NoError(t, err)
	require.Equal(t, before, after)
	require.NoError(t, s.Close())
}
