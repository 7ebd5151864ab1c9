package store

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/internal/health"
	"github.com/skepkv/skep/store/internal/segio"
)

// Most drives of a store are lost at once, so that no group has two logs that can be read, or one. Each is replaced all
// the same, whether the store is in use or was opened without them: what can be read is there afterwards, the
// dry run has counted the rest, and what was deleted stays so, even for a rebuild.
func TestDrivesThatWereLostTogetherAreReplaced(t *testing.T) {
	t.Parallel()
	const n, size = 240, 9000
	for _, copies := range []int{1, 2} {
		for _, lost := range [][]int{{1, 3}, {1, 2, 3}} {
			for _, live := range []bool{false, true} {
				t.Run(fmt.Sprintf("%d copies, %v lost, live %v", copies, lost, live), func(t *testing.T) {
					t.Parallel()
					ctx := testContext(t)
					o := small(tempRoot(t, "store"))
					o.DeviceCount, o.CapacityBytes, o.CacheBytes, o.Logger = 4, 24<<20, -1, testLog(t)
					s, err := Open(ctx, o)
					require.NoError(t, err)
					sc := openSpace(t, s, "n", skep.Cache, copies, false)
					keys := chainKeys(1, n)
					requireOutcome(t, skep.Committed, putRun(t, s, sc, keys, size))
					for i := range keys[:20] { // each has its own log entry, on drives of its own
						_, err = s.Delete(ctx, sc, keys[i:i+1])
						require.NoError(t, err)
					}
					deleted, keys := keys[:20], keys[20:]
					if !live {
						require.NoError(t, s.Close())
					}
					for _, d := range lost {
						if live {
							s.space.Exclude(s.members.All()[d], health.Dead, segio.ErrNoDrive)
						}
						require.NoError(t, os.Remove(filepath.Join(o.Dir, "device-"+strconv.Itoa(d))))
					}
					if !live {
						s, err = Open(ctx, o)
						require.NoError(t, err)
					}
					readable, _ := requireRight(t, s, sc, keys, size)
					require.NotZero(t, readable)
					require.Less(t, readable, len(keys))

					for i, d := range lost {
						name, successor := strconv.Itoa(d), NewDevice{Path: filepath.Join(o.Dir, "device-"+strconv.Itoa(4+i))}
						dry, err := s.ReplaceDevice(ctx, name, successor, MoveOptions{DryRun: true})
						require.NoError(t, err)
						p, err := s.ReplaceDevice(ctx, name, successor, MoveOptions{})
						require.NoError(t, err)
						require.Equal(t, dry.Unreadable, p.Unreadable)
						require.Zero(t, p.GivenUp)
						if i == 0 {
							require.EqualValues(t, len(keys)-readable, p.Unreadable)
						}
					}
					again := func() {
						t.Helper()
						got, reasons := requireRight(t, s, sc, keys, size)
						require.Equal(t, readable, got, "%v", reasons)
						got, _ = requireRight(t, s, sc, deleted, size)
						require.Zero(t, got, "deleted")
						require.Empty(t, unsound(s))
					}
					again()
					require.NoError(t, s.Close())
					require.NoError(t, os.RemoveAll(filepath.Join(o.Dir, "catalog")))
					_, err = Rebuild(ctx, o, false, nil)
					require.NoError(t, err)
					s, err = Open(ctx, o)
					require.NoError(t, err)
					again()
					require.NoError(t, s.Close())
				})
			}
		}
	}
}

// Durable blocks that only lost drives had keep these in the store, and no successor is made. By force they are given
// up, and counted.
func TestDurableBlocksOfDrivesThatWereLostTogether(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	o := small(tempRoot(t, "store"))
	o.DeviceCount, o.CapacityBytes, o.CacheBytes, o.Logger = 4, 24<<20, -1, testLog(t)
	s, err := Open(ctx, o)
	require.NoError(t, err)
	sc := openSpace(t, s, "n", skep.Durable, 2, false)
	keys := chainKeys(1, 120)
	requireOutcome(t, skep.Committed, putRun(t, s, sc, keys, 9000))
	for _, d := range []int{1, 3} {
		s.space.Exclude(s.members.All()[d], health.Dead, segio.ErrNoDrive)
	}
	readable, _ := requireRight(t, s, sc, keys, 9000)
	lost := len(keys) - readable
	require.Positive(t, lost)
	successor := NewDevice{Path: filepath.Join(o.Dir, "device-4")}
	for _, dry := range []bool{true, false} {
		_, err = s.ReplaceDevice(ctx, "1", successor, MoveOptions{DryRun: dry})
		requireKind(t, skep.DeviceFailed, err)
		require.ErrorContains(t, err, fmt.Sprintf("durable blocks that cannot be read is %d", lost))
		require.ErrorContains(t, err, "bring device 1, 3 back")
		require.NoFileExists(t, successor.Path)
	}
	p, err := s.RemoveDevice(ctx, "1", MoveOptions{}) // what can be read is moved
	requireKind(t, skep.DeviceFailed, err)
	require.ErrorContains(t, err, fmt.Sprintf("durable blocks that cannot be read is %d", lost))
	require.EqualValues(t, readable, p.Blocks)
	st, err := s.Stats(ctx)
	require.NoError(t, err)
	require.Contains(t, st.Devices[1].State, segio.ErrNoDrive.Error(), "that it is to go hides no cause")

	p, err = s.ReplaceDevice(ctx, "1", successor, MoveOptions{Force: true})
	require.NoError(t, err)
	require.Equal(t, []int64{int64(lost), int64(lost)}, []int64{p.Unreadable, p.GivenUp})
	_, err = s.ReplaceDevice(ctx, "3", NewDevice{Path: filepath.Join(o.Dir, "device-5")}, MoveOptions{})
	require.NoError(t, err)
	got, _ := requireRight(t, s, sc, keys, 9000)
	require.Equal(t, readable, got)
	require.Empty(t, unsound(s))
	require.NoError(t, s.Close())
}

// A replacement that found no room has added its device, and goes on with it when it is asked for once more.
func TestAReplacementGoesOnWithTheDeviceItAdded(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	o := small(tempRoot(t, "store"))
	o.DeviceCount, o.CapacityBytes, o.CacheBytes, o.Logger = 3, 12<<20, -1, testLog(t)
	s, err := Open(ctx, o)
	require.NoError(t, err)
	sc := openSpace(t, s, "n", skep.Durable, 1, false)
	keys := chainKeys(1, 60)
	requireOutcome(t, skep.Committed, putRun(t, s, sc, keys, 9000))
	successor := NewDevice{Path: filepath.Join(o.Dir, "device-3")}
	require.NoError(t, s.AddDevice(ctx, successor))
	_, err = s.ReplaceDevice(ctx, "1", successor, MoveOptions{})
	requireKind(t, skep.Conflict, err) // nothing was begun with the two
	_, err = s.DrainDevice(ctx, "1", MoveOptions{})
	require.NoError(t, err)
	_, err = s.ReplaceDevice(ctx, "1", successor, MoveOptions{})
	require.NoError(t, err)
	require.ErrorIs(t, s.FindDevice("1"), skep.NotFound)
	require.Equal(t, 3, s.space.UsableDrives())
	requireChain(t, s, sc, keys, 9000)
	require.NoError(t, s.Close())
}

// What only the logs of lost drives said of names and deletions is said again when they are given up: a rebuild of
// the drives that are left knows it.
func TestWhatTheLogsOfLostDrivesSaidIsSaidAgain(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	o := small(tempRoot(t, "store"))
	o.DeviceCount, o.CapacityBytes, o.CacheBytes, o.NoRebalance, o.Logger = 4, 24<<20, -1, true, testLog(t)
	s, err := Open(ctx, o)
	require.NoError(t, err)
	only := func(list ...int) { // these take new groups
		for i, d := range s.members.All() {
			s.space.Exclude(d, health.Fenced, segio.ErrNoDrive)
			for _, n := range list {
				if n == i {
					s.space.Include(d, health.Healthy)
				}
			}
		}
	}
	only(1, 3)
	sc := openSpace(t, s, "n", skep.Cache, 1, false) // they know of the namespace
	only(0, 2)
	keys := chainKeys(1, 40)
	requireOutcome(t, skep.Committed, putRun(t, s, sc, keys, 9000))
	only(1, 3)
	_, err = s.Delete(ctx, sc, keys[38:]) // and of this
	require.NoError(t, err)
	only(0, 1, 2, 3)
	for _, d := range []int{1, 3} {
		s.space.Exclude(s.members.All()[d], health.Dead, segio.ErrNoDrive)
	}
	for i, name := range []string{"1", "3"} {
		_, err = s.ReplaceDevice(ctx, name, NewDevice{Path: filepath.Join(o.Dir, "device-"+strconv.Itoa(4+i))}, MoveOptions{})
		require.NoError(t, err)
	}
	require.NoError(t, s.Close())
	for _, name := range []string{"catalog", "device-1", "device-3"} {
		require.NoError(t, os.RemoveAll(filepath.Join(o.Dir, name)))
	}
	_, err = Rebuild(ctx, o, false, nil)
	require.NoError(t, err)
	s, err = Open(ctx, o)
	require.NoError(t, err)
	got, _ := requireRight(t, s, sc, keys[38:], 9000)
	require.Zero(t, got, "deleted")
	got, reasons := requireRight(t, s, sc, keys[:38], 9000)
	require.Equal(t, 38, got, "%v", reasons)
	require.NoError(t, s.Close())
}

// The catalog of a store is no place for another.
func TestNoStoreIsMadeInACatalog(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	o := small(tempRoot(t, "store"))
	s, err := Open(ctx, o)
	require.NoError(t, err)
	require.NoError(t, s.Close())
	inside := small(filepath.Join(o.Dir, "catalog"))
	before, err := os.ReadDir(inside.Dir)
	require.NoError(t, err)
	_, err = Open(ctx, inside)
	requireKind(t, skep.Conflict, err)
	require.ErrorContains(t, err, inside.Dir+", a store's catalog")
	after, err := os.ReadDir(inside.Dir)
	require.NoError(t, err)
	require.Equal(t, len(before), len(after))
}
