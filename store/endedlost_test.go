package store

import (
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/internal/health"
	"github.com/skepkv/skep/store/internal/segio"
	"github.com/skepkv/skep/store/internal/space"
)

// rebuildWithout removes a store's catalog, and the files of some devices, and rebuilds it without them.
func rebuildWithout(t *testing.T, o Options, devices ...int) {
	t.Helper()
	require.NoError(t, os.RemoveAll(filepath.Join(o.Dir, "catalog")))
	for _, d := range devices {
		require.NoError(t, os.Remove(filepath.Join(o.Dir, "device-"+strconv.Itoa(d))))
	}
	rep, err := Rebuild(testContext(t), o, false, nil)
	require.NoError(t, err)
	require.Zero(t, rep.Unnamed)
}

// requireEnded opens a store and finds all of what stays, and no other namespace; and closes it.
func requireEnded(t *testing.T, o Options, stays skep.Scope, keys []skep.Key) {
	t.Helper()
	s, err := Open(testContext(t), o)
	require.NoError(t, err)
	list, err := s.Namespaces(t.Context())
	require.NoError(t, err)
	require.Len(t, list, 1, "a namespace that was deleted is back")
	requireChain(t, s, stays, keys, 3000)
	require.NoError(t, s.Close())
}

// oneStaysOneGoes makes a store with a namespace of three copies that stays, and one of so many that was deleted, and
// closes it.
func oneStaysOneGoes(t *testing.T, devices, copies int) (o Options, stays skep.Scope, keys []skep.Key) {
	t.Helper()
	ctx := testContext(t)
	o = small(tempRoot(t, "store"))
	o.DeviceCount, o.CacheBytes, o.Degraded = devices, -1, DegradedAlways
	s, err := Open(ctx, o)
	require.NoError(t, err)
	stays, keys = openSpace(t, s, "stays", skep.Durable, 3, true), chainKeys(1, 7)
	gone := openSpace(t, s, "gone", skep.Durable, copies, true)
	requireOutcome(t, skep.Committed, putRun(t, s, stays, keys, 3000))
	requireOutcome(t, skep.Committed, putRun(t, s, gone, keys, 3000))
	require.NoError(t, s.DeleteNamespace(ctx, gone.Namespace))
	require.NoError(t, s.Close())
	return o, stays, keys
}

// With three copies two drives may be lost, and the catalog with them: whichever they are, a namespace that was deleted
// stays so, and one that was not is known.
func TestADeletionSurvivesAsManyDrivesAsItsBlocks(t *testing.T) {
	t.Parallel()
	o, stays, keys := oneStaysOneGoes(t, 5, 3)
	for first := range o.DeviceCount {
		for second := range first {
			t.Run(sprintf("without %d and %d", second, first), func(t *testing.T) {
				from, o := o.Dir, o
				o.Dir = tempRoot(t, "copy")
				copyStore(t, from, o.Dir)
				rebuildWithout(t, o, first, second)
				requireEnded(t, o, stays, keys)
			})
		}
	}
}

// Two drives are lost, one after another, and the catalog each time: what the first rebuild knew of a namespace that
// was deleted the second knows as well.
func TestARebuildWithoutADriveHasDeletionsLoggedAgain(t *testing.T) {
	t.Parallel()
	o, stays, keys := oneStaysOneGoes(t, 4, 1)
	for first := range o.DeviceCount {
		for second := range o.DeviceCount {
			if second == first {
				continue
			}
			t.Run(sprintf("%d then %d", first, second), func(t *testing.T) {
				from, o := o.Dir, o
				o.Dir = tempRoot(t, "copy")
				copyStore(t, from, o.Dir)
				for _, d := range []int{first, second} {
					rebuildWithout(t, o, d)
					requireEnded(t, o, stays, keys)
				}
			})
		}
	}
}

// Devices are added to a store, and what the logs say of a deletion goes to those alone. They are lost together while
// the store is in use, and its group is cleaned: the deletion is said again, since other logs say what it was.
func TestADeletionThatOnlyLostDrivesSaid(t *testing.T) {
	t.Parallel()
	for _, held := range []bool{false, true} {
		t.Run(sprintf("first group held: %v", held), func(t *testing.T) {
			t.Parallel()
			deletionOnLostDrives(t, held)
		})
	}
}

// deletionOnLostDrives is TestADeletionThatOnlyLostDrivesSaid; held: who moves blocks has the group that says what was
// deleted, until the others were compared, as the store closes.
func deletionOnLostDrives(t *testing.T, held bool) {
	ctx := testContext(t)
	o := small(tempRoot(t, "store"))
	o.CacheBytes, o.Degraded, o.NoRebalance, o.Logger = -1, DegradedAlways, true, testLog(t)
	o.closeTimeout = hangs
	s, err := Open(ctx, o)
	require.NoError(t, err)
	stays, keys := openSpace(t, s, "stays", skep.Durable, 2, true), chainKeys(1, 20)
	gone := openSpace(t, s, "gone", skep.Durable, 1, true)
	requireOutcome(t, skep.Committed, putRun(t, s, stays, keys, 3000))
	requireOutcome(t, skep.Committed, putRun(t, s, gone, keys[:2], 3000))
	s.space.SealOpen(space.User)
	eventually(t, "the store is at rest", func() bool { return !s.space.Sparing() })
	s.dropSpares()
	for i := range 2 {
		require.NoError(t, s.AddDevice(ctx, NewDevice{Path: filepath.Join(o.Dir, sprintf("device-%d", 2+i)), Bytes: 4 << 20}))
	}
	w, err := s.space.Current(ctx, space.User, time.Now())
	require.NoError(t, err)
	require.Len(t, w.Drives, 4)
	first := entriesOf(t, *s.names.Get(stays.Namespace).Entry(s.root.Next()))
	require.NoError(t, s.appends.Entries(ctx, space.User, 0, first), "the next goes to the other two")
	require.NoError(t, s.DeleteNamespace(ctx, gone.Namespace))
	deleteAnother(t, s)
	for i := range 2 {
		s.space.Exclude(s.members.All()[2+i], health.Dead, segio.ErrNoDrive)
	}
	s.space.Seal(w)
	eventually(t, "the group whose log cannot be read is cleaned", func() bool {
		return s.space.Find(w.Num) == nil || s.cleaner.Clean(ctx, w, false) == nil
	})
	if g := s.space.Groups()[0]; held {
		eventually(t, "nobody else has it", func() bool { return s.space.Claim(g, space.Claim{By: space.Mover}) })
		s.background.Go(func() {
			<-s.closing
			for stale := true; stale && s.ctx.Err() == nil; { // until the others have been compared
				runtime.Gosched()
				stale = slices.ContainsFunc(s.space.Groups(), func(o *space.Group) bool { return o != g && o.Stale.Load() })
			}
			s.space.Release(g)
		})
	}
	require.NoError(t, s.Close())
	rebuildWithout(t, o, 2, 3)
	requireEnded(t, o, stays, keys)
}
