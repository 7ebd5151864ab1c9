package store

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/catalog"
	"github.com/skepkv/skep/store/internal/health"
	"github.com/skepkv/skep/store/internal/segio"
	"github.com/skepkv/skep/store/internal/space"
	"github.com/skepkv/skep/store/segment"
)

// A rebuild goes on without a drive that alone had some groups. What only that drive had is deleted and put over, and
// in time the store forgets that it was. The drive comes back, and the catalog is lost again: nobody takes the drive
// for one of the store's, and nobody is asked once more whether to go on without it.
func TestADriveThatWasGivenUpStaysAway(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		then    func(ctx context.Context, o *Options, s *Store) error
		given   []uint16 // up, in the end
		opened  bool     // it is the open that makes the catalog anew
		newest  bool     // the drive's own superblock is
		unclean bool     // its places in groups are there still
		alone   bool     // another drive is away while the store knows of it first
	}{
		"rebuilt":        {given: []uint16{0}},
		"opened":         {given: []uint16{0}, opened: true},
		"its own is new": {given: []uint16{0}, newest: true},
		"in groups":      {given: []uint16{0}, unclean: true},
		"one was added": {given: []uint16{0}, then: func(ctx context.Context, o *Options, s *Store) error {
			return s.AddDevice(ctx, NewDevice{Path: filepath.Join(o.Dir, "device-4")})
		}},
		"one was removed": {given: []uint16{0}, then: func(ctx context.Context, _ *Options, s *Store) error {
			_, err := s.RemoveDevice(ctx, "3", MoveOptions{})
			return err
		}},
		"it was removed": {given: []uint16{0}, then: func(ctx context.Context, _ *Options, s *Store) error {
			_, err := s.RemoveDevice(ctx, "0", MoveOptions{})
			return err
		}},
		"another does not know": {given: []uint16{0}, unclean: true, alone: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx := testContext(t)
			o := small(tempRoot(t, "store"))
			well(&o)
			o.DeviceCount, o.CapacityBytes, o.CacheBytes, o.Logger, o.taskEvery = 4, 16<<20, -1, testLog(t), hangs
			s, err := Open(ctx, o)
			require.NoError(t, err)
			once := openSpace(t, s, "once", skep.Cache, 1, false)
			twice := openSpace(t, s, "twice", skep.Durable, 2, false)
			deleted, over, gone, kept := chainKeys(1, 6), chainKeys(2, 6), chainKeys(3, 6), chainKeys(4, 6)
			for _, d := range s.members.All()[1:] {
				s.space.Exclude(d, health.Fenced, segio.ErrNoDrive)
			}
			requireOutcome(t, skep.Committed, putRun(t, s, once, slices.Concat(deleted, over, gone), 5000))
			for _, d := range s.members.All()[1:] {
				s.space.Include(d, health.Healthy)
			}
			s.space.SealOpen(space.User)
			requireOutcome(t, skep.Committed, putRun(t, s, twice, kept, 9000))
			require.NoError(t, s.Close())

			here, away := filepath.Join(o.Dir, "device-0"), filepath.Join(t.TempDir(), "away")
			if c.newest {
				raiseSuperblock(t, here)
			}
			require.NoError(t, os.Rename(here, away))
			require.NoError(t, os.RemoveAll(o.catalogDir()))
			o.Degraded = DegradedAlways
			rep, err := Rebuild(ctx, o, false, nil)
			require.NoError(t, err)
			require.Equal(t, 1, rep.Missing)
			o.Degraded = DegradedAuto
			other, aside := filepath.Join(o.Dir, "device-3"), filepath.Join(t.TempDir(), "aside")
			if c.alone {
				o.Degraded = DegradedAlways
				raiseSuperblock(t, other)
				require.NoError(t, os.Rename(other, aside))
			}
			s, err = Open(ctx, o)
			require.NoError(t, err)
			requireOutcome(t, skep.Committed, putRun(t, s, once, slices.Concat(over, gone), 9000))
			_, err = s.Delete(ctx, once, slices.Concat(deleted, gone))
			require.NoError(t, err)
			if !c.unclean {
				eventually(t, "no tombstone is left", func() bool { return !cleanStones(ctx, s) })
			}
			if c.then != nil {
				require.NoError(t, c.then(ctx, &o, s))
			}
			require.NoError(t, s.Close())

			if c.alone {
				o.Degraded = DegradedAuto
				require.NoError(t, os.Rename(aside, other))
			}
			require.NoError(t, os.Rename(away, here))
			require.NoError(t, os.RemoveAll(o.catalogDir()))
			if !c.opened && c.then == nil { // it does not fill the place of one that is missing
				require.NoError(t, os.Rename(other, aside))
				_, err := Rebuild(ctx, o, false, nil)
				requireKind(t, skep.Missing, err)
				require.NoError(t, os.Rename(aside, other))
			}
			if !c.opened {
				rep, err := Rebuild(ctx, o, false, nil)
				require.NoError(t, err)
				require.Zero(t, rep.Missing)
				require.Len(t, rep.Faults, 1, "it is said which device was left alone")
				require.Equal(t, here, rep.Faults[0].Device)
				require.Contains(t, rep.Faults[0].Problem, "an earlier rebuild went on without")
			}
			if !c.unclean { // nothing is to be moved off it any more
				o.Degraded = DegradedNever
			}
			s, err = Open(ctx, o)
			require.NoError(t, err)
			requireChain(t, s, once, over, 9000)
			requireChain(t, s, twice, kept, 9000)
			for _, size := range []int{5000, 9000} {
				n, _ := requireRight(t, s, once, slices.Concat(deleted, gone), size)
				require.Zero(t, n, "deleted")
			}
			require.Empty(t, unsound(s))
			require.Equal(t, c.given, s.members.GivenUp())
			rows, err := s.catalog.Groups(ctx)
			require.NoError(t, err)
			require.False(t, slices.ContainsFunc(rows, func(g catalog.GroupState) bool {
				return g.State == catalog.GroupFree
			}), "groups that are gone are told to the drives that are there, and forgotten")
			requireOutcome(t, skep.Committed, putRun(t, s, twice, chainKeys(5, 6), 9000))
			require.NoError(t, s.Close())
		})
	}
}

// Of two halves of a store each went on without the other. Which one is the store is for a person to say, who takes the
// other away.
func TestHalvesThatGaveEachOtherUp(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	o := small(tempRoot(t, "store"))
	o.DeviceCount, o.CapacityBytes, o.CacheBytes, o.Logger, o.Degraded = 2, 8<<20, -1, testLog(t), DegradedAlways
	s, err := Open(ctx, o)
	require.NoError(t, err)
	sc, keys := openSpace(t, s, "n", skep.Durable, 2, false), chainKeys(1, 5)
	requireOutcome(t, skep.Committed, putRun(t, s, sc, keys, 9000))
	require.NoError(t, s.Close())
	aside := t.TempDir()
	away := func(i int) (back func()) {
		name := "device-" + strconv.Itoa(i)
		require.NoError(t, os.Rename(filepath.Join(o.Dir, name), filepath.Join(aside, name)))
		return func() { require.NoError(t, os.Rename(filepath.Join(aside, name), filepath.Join(o.Dir, name))) }
	}
	for i := range 2 {
		back := away(i)
		require.NoError(t, os.RemoveAll(o.catalogDir()))
		s, err = Open(ctx, o)
		require.NoError(t, err)
		require.NoError(t, s.Close())
		back()
	}
	require.NoError(t, os.RemoveAll(o.catalogDir()))
	_, err = Rebuild(ctx, o, false, nil)
	requireKind(t, skep.Conflict, err)
	away(0)
	_, err = Rebuild(ctx, o, false, nil)
	require.NoError(t, err)
	s, err = Open(ctx, o)
	require.NoError(t, err)
	requireChain(t, s, sc, keys, 9000)
	require.NoError(t, s.Close())
}

// cleanStones cleans every group, dropping nothing, and says whether a tombstone is left in any.
func cleanStones(ctx context.Context, s *Store) (left bool) {
	for st := range space.Streams {
		s.space.SealOpen(st)
	}
	for _, g := range s.space.Groups() {
		_ = s.cleaner.Clean(ctx, g, true) // one that is busy is next time
		s.space.Kick()
	}
	for _, g := range s.space.Groups() {
		err := s.space.ScanGroupLogs(ctx, g, func(_ *segment.Append, e segment.Entry) error {
			left = left || e.Kind == segment.KindTombstone
			return nil
		})
		left = left || err != nil
	}
	return left
}

// raiseSuperblock gives the superblocks of a drive a higher number than the others have, as those have that alone did
// not take what was written to all.
func raiseSuperblock(t *testing.T, path string) {
	t.Helper()
	changeSuperblock(t, path, func(sb *segment.Superblock) { sb.Sequence += 9 })
}

func changeSuperblock(t *testing.T, path string, change func(*segment.Superblock)) {
	t.Helper()
	sb, err := segio.PeekSuperblock(path)
	require.NoError(t, err)
	change(&sb)
	page := make([]byte, layout.PageSize)
	require.NoError(t, sb.Encode(page))
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	require.NoError(t, err)
	for _, off := range []int64{segment.SuperblockOffsetA, segment.SuperblockOffsetB} {
		_, err = f.WriteAt(page, off)
		require.NoError(t, err)
	}
	require.NoError(t, f.Close())
}

// A store with devices of its caller's own is rebuilt without one of them, and once more while that one is away.
func TestOwnDevicesAreRebuiltWithoutOneGivenUp(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	s, r, o := openRig(t, func(o *Options) { o.DeviceCount, o.CapacityBytes = 3, 12<<20 })
	sc, keys := openSpace(t, s, "n", skep.Durable, 2, false), chainKeys(1, 5)
	requireOutcome(t, skep.Committed, putRun(t, s, sc, keys, 9000))
	require.NoError(t, s.Close())
	r.mems[1] = nil
	_, err := Rebuild(ctx, o, false, nil)
	requireKind(t, skep.Missing, err)
	o.Degraded = DegradedAlways
	rep, err := Rebuild(ctx, o, false, nil)
	require.NoError(t, err)
	require.Equal(t, 1, rep.Missing)
	o.Degraded = DegradedAuto
	for range 2 {
		s, err = Open(ctx, o)
		require.NoError(t, err)
		requireChain(t, s, sc, keys, 9000)
		require.EqualValues(t, 2, wearing{s}.Writable(), "what is not there is not written to")
		require.NoError(t, s.Close())
		rep, err = Rebuild(ctx, o, false, nil)
		require.NoError(t, err)
		require.Zero(t, rep.Missing)
		require.Empty(t, rep.Faults)
	}
}

// A drive that was given up is out of the store, and no superblock says so yet: a rebuild would take the drive again, and
// deletions are told to the drives for as long.
func TestADriveThatWasGivenUpAndNobodyKnows(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	o := small(tempRoot(t, "store"))
	o.DeviceCount, o.CapacityBytes, o.CacheBytes, o.Logger, o.Degraded = 3, 12<<20, -1, testLog(t), DegradedAlways
	s, err := Open(ctx, o)
	require.NoError(t, err)
	sc := openSpace(t, s, "n", skep.Durable, 2, false)
	requireOutcome(t, skep.Committed, putRun(t, s, sc, chainKeys(1, 5), 9000))
	require.NoError(t, s.Close())
	require.NoError(t, os.Remove(filepath.Join(o.Dir, "device-0")))
	_, err = Rebuild(ctx, o, false, nil)
	require.NoError(t, err)
	s, err = Open(ctx, o)
	require.NoError(t, err)
	_, err = s.RemoveDevice(ctx, "0", MoveOptions{})
	require.NoError(t, err)
	require.NoError(t, s.Close())
	for _, name := range []string{"device-1", "device-2"} {
		changeSuperblock(t, filepath.Join(o.Dir, name), func(sb *segment.Superblock) { sb.GivenUp = nil })
	}
	o.Degraded = DegradedNever
	for _, unknown := range []bool{true, false} {
		s, err = Open(ctx, o)
		require.NoError(t, err)
		require.Equal(t, unknown, s.space.AnyStale())
		require.Equal(t, []uint16{0}, s.members.GivenUp())
		require.NoError(t, s.Close())
	}
}
