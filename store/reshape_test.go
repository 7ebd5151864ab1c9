package store

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/device"
	"github.com/skepkv/skep/store/internal/compact"
	"github.com/skepkv/skep/store/internal/health"
	"github.com/skepkv/skep/store/internal/segio"
	"github.com/skepkv/skep/store/internal/space"
	"github.com/skepkv/skep/store/segment"
)

// Chains whose blocks were put in turns lie scattered, and half of them are deleted: a
// compaction puts the others in order, frees groups, loses nothing, and finds nothing to
// do the second time.
func TestCompact(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	s, _, o := openRig(t, func(o *Options) {
		well(o)
		o.CapacityBytes, o.SegmentBytes = 48<<20, 512<<10
		o.DeviceCount = 3
		o.taskEvery = hangs
	})
	sc := openSpace(t, s, "n", skep.Durable, 1, true)
	const chains, length = 24, 20
	keys := make([][]skep.Key, chains)
	for c := range keys {
		keys[c] = chainKeys(c, length)
	}
	for i := range length {
		for c := range keys {
			var parent *skep.Key
			if i > 0 {
				parent = &keys[c][i-1]
			}
			res, err := s.Put(ctx, putRequest(sc, parent, i, keys[c][i:i+1], faultBlock))
			require.NoError(t, err)
			requireOutcome(t, skep.Committed, res)
		}
	}
	for c := 0; c < chains; c += 2 {
		_, err := s.Delete(ctx, sc, keys[c])
		require.NoError(t, err)
	}
	plan, err := s.Compact(ctx, MoveOptions{DryRun: true})
	require.NoError(t, err)
	require.Positive(t, plan.Groups)
	require.Greater(t, plan.Disorder, 0.9)
	require.Zero(t, plan.Blocks)
	st, err := s.Stats(ctx)
	require.NoError(t, err)
	require.Zero(t, st.MovedBytes, "a dry run moves nothing")

	events, err := s.Events(ctx, skep.Cursor{}, false)
	require.NoError(t, err)
	r, err := s.Compact(ctx, MoveOptions{})
	require.NoError(t, err)
	requireMoved(t, events, int(r.Blocks))
	require.InDelta(t, plan.Groups, r.GroupsDone, 1, "one may have been in use")
	require.Positive(t, r.GroupsFreed)
	require.False(t, r.OutOfRoom)
	require.Less(t, r.DisorderLeft, 0.2)
	for c := 1; c < chains; c += 2 {
		requireChain(t, s, sc, keys[c], faultBlock)
	}
	eventually(t, "segments come free", func() bool { return s.space.Free() > r.FreeBefore })
	require.Equal(t, length*chains/2, countBlocks(t, s))
	again, err := s.Compact(ctx, MoveOptions{})
	require.NoError(t, err)
	require.Zero(t, again.Blocks, "it is in order")
	require.NoError(t, s.Close())
	s, err = Open(ctx, o)
	require.NoError(t, err)
	for c := 1; c < chains; c += 2 {
		requireChain(t, s, sc, keys[c], faultBlock)
	}
	for c := 0; c < chains; c += 2 {
		n, _ := requireRight(t, s, sc, keys[c], faultBlock)
		require.Zero(t, n, "nothing deleted comes back")
	}
	require.NoError(t, s.Close())
}

// requireMoved reads of so many blocks that they moved, or of more.
func requireMoved(t *testing.T, events skep.EventStream, blocks int) {
	into := make([]skep.Event, 64)
	for moved := 0; moved < blocks; {
		n, err := events.Next(testContext(t), into)
		require.NoError(t, err)
		for _, e := range into[:n] {
			if e.Kind == skep.EventMoved {
				require.Equal(t, skep.TierDevice, e.Tier)
				moved++
			}
		}
	}
	require.NoError(t, events.Close())
}

func countBlocks(t *testing.T, s *Store) int {
	st, err := s.Stats(testContext(t))
	require.NoError(t, err)
	return int(st.Blocks)
}

// A store that is as full as it gets can be compacted too, and drops nothing for it.
func TestCompactWhenFull(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	s, _, _ := openRig(t, func(o *Options) { well(o); o.taskEvery = hangs })
	defer func() { require.NoError(t, s.Close()) }()
	sc := openSpace(t, s, "n", skep.Durable, 1, false)
	var kept []skep.Key
	for i := 0; ; i++ {
		k := keyOf(uint32(i), 5)
		if putRun(t, s, sc, []skep.Key{k}, faultBlock)[0].Outcome != skep.Committed {
			break
		}
		kept = append(kept, k)
	}
	var gone, left []skep.Key
	for i, k := range kept {
		if i%3 == 0 {
			gone = append(gone, k)
		} else {
			left = append(left, k)
		}
	}
	n, err := s.Delete(ctx, sc, gone)
	require.NoError(t, err)
	require.Equal(t, len(gone), n)
	r, err := s.Compact(ctx, MoveOptions{})
	require.NoError(t, err)
	require.Positive(t, r.GroupsFreed, "%+v", r)
	requireChain(t, s, sc, left, faultBlock)
	require.Equal(t, len(left), countBlocks(t, s))
}

// Restores and deletes go on during a compaction, and a delete is not undone by it.
func TestCompactUnderLoad(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	s, _, _ := openRig(t, func(o *Options) { well(o); o.CapacityBytes = 24 << 20; o.taskEvery = hangs })
	defer func() { require.NoError(t, s.Close()) }()
	sc := openSpace(t, s, "n", skep.Durable, 2, false)
	var keys []skep.Key
	for i := range 300 {
		keys = append(keys, keyOf(uint32(i), 6))
	}
	requireOutcome(t, skep.Committed, putRun(t, s, sc, keys, faultBlock))
	_, err := s.Delete(ctx, sc, keys[:100])
	require.NoError(t, err)
	done := make(chan error, 1)
	go func() {
		_, err := s.Compact(ctx, MoveOptions{Rate: 20 << 20})
		done <- err
	}()
	for i := 100; i < 200; i++ {
		n, err := s.Delete(ctx, sc, keys[i:i+1])
		require.NoError(t, err)
		require.Equal(t, 1, n)
		requireChain(t, s, sc, keys[200:230], faultBlock)
	}
	require.NoError(t, <-done)
	n, _ := requireRight(t, s, sc, keys[:200], faultBlock)
	require.Zero(t, n)
	requireChain(t, s, sc, keys[200:], faultBlock)
}

// A device is added, filled, and another is taken out: files, by their paths.
func TestAddRebalanceRemove(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	o := small(tempRoot(t, "store"))
	well(&o)
	o.CacheBytes, o.CapacityBytes = -1, 8<<20
	o.taskEvery = hangs
	s, err := Open(ctx, o)
	require.NoError(t, err)
	sc := openSpace(t, s, "n", skep.Durable, 1, true)
	var runs [][]skep.Key
	for i := range 20 {
		runs = append(runs, chainKeys(i, 12))
		requireOutcome(t, skep.Committed, putRun(t, s, sc, runs[i], faultBlock))
	}
	all := func() {
		t.Helper()
		for _, keys := range runs {
			requireChain(t, s, sc, keys, faultBlock)
		}
	}
	require.NoError(t, s.Close())

	added := filepath.Join(o.Dir, "device-2")
	s, err = AddDevices(ctx, o, NewDevice{Path: added})
	require.NoError(t, err)
	all()
	_, err = s.Rebalance(ctx, MoveOptions{})
	require.NoError(t, err)
	d := s.members.All()[2]
	eventually(t, "the new device has its share", func() bool {
		s.space.Inside().Lock()
		defer s.space.Inside().Unlock()
		return float64(len(d.Free))/float64(d.Segments) < 0.85
	})
	all()
	require.NoError(t, s.Close())

	s, err = Open(ctx, o) // the device is known by what is written on it
	require.NoError(t, err)
	require.Len(t, s.members.All(), 3)
	all()
	plan, err := s.RemoveDevice(ctx, "0", MoveOptions{DryRun: true})
	require.NoError(t, err)
	require.Positive(t, plan.Blocks)
	p, err := s.RemoveDevice(ctx, s.members.Opened[0].Path, MoveOptions{})
	require.NoError(t, err)
	require.Positive(t, p.Blocks)
	require.Empty(t, s.space.GroupsOf(s.members.Opened[0]))
	all()
	_, err = s.DrainDevice(ctx, "0", MoveOptions{})
	requireKind(t, skep.NotFound, err)
	require.NoError(t, s.Close())
	require.NoFileExists(t, filepath.Join(o.Dir, "device-0"))
	s, err = Open(ctx, o)
	require.NoError(t, err)
	all()
	st, err := s.Stats(ctx)
	require.NoError(t, err)
	require.Len(t, st.Devices, 2)
	require.NoError(t, s.Close())
	s, err = AddDevices(ctx, o, NewDevice{Path: filepath.Join(o.Dir, "device-0")})
	require.NoError(t, err)
	require.EqualValues(t, 3, s.members.All()[3].Index, "an index is not used again")
	all()
	require.NoError(t, s.Close())

	// The devices alone still know how many they are.
	require.NoError(t, os.RemoveAll(filepath.Join(o.Dir, "catalog")))
	s, err = Open(ctx, o)
	require.NoError(t, err)
	all()
	require.NoError(t, s.Close())
}

// With two copies a drive that is lost is made up for: all blocks have two copies on the
// others, and the next loss costs nothing either.
func TestCopiesAreMadeAgain(t *testing.T) {
	t.Parallel()
	for _, size := range []int{faultBlock, largeBlock} {
		t.Run(itoa(size), func(t *testing.T) {
			s, r, _ := openRig(t, func(o *Options) {
				quick(o)
				o.DeviceCount, o.SegmentBytes, o.CapacityBytes, o.BlockBytes = 4, 6<<20, 4*(20*6<<20+64<<10), 1<<20
				o.IOBytes = 64 << 20
				o.rules.LostAfter, o.taskEvery, o.taskRetry = 20*time.Millisecond, 10*time.Millisecond, 10*time.Millisecond
			})
			defer func() {
				eventually(t, "the last loss is noticed", func() bool { return s.members.Opened[2].Condition() == health.Dead })
				require.NoError(t, s.Close())
			}()
			sc := openSpace(t, s, "n", skep.Durable, 2, true)
			var runs [][]skep.Key
			for i := range 6 {
				runs = append(runs, chainKeys(i, 6))
				requireOutcome(t, skep.Committed, putRun(t, s, sc, runs[i], size))
			}
			r.faults[1].MustInject(device.GoneRule())
			for _, keys := range runs {
				requireChain(t, s, sc, keys, size)
			}
			eventually(t, "all copies are there again", func() bool { return wholeWithout(t, s, s.members.Opened[1]) })
			r.faults[2].MustInject(device.GoneRule())
			for _, keys := range runs {
				requireChain(t, s, sc, keys, size)
			}
			eventually(t, "the task is told of", func() bool { return len(s.Tasks()) > 0 })
			require.Equal(t, "re-replicate", s.Tasks()[0].Task)
			require.Positive(t, s.Tasks()[0].Bytes)
		})
	}
}

// No drive gives the copies that are left when those of a lost drive are to be made again. They are made when one does.
func TestCopiesThatCannotBeReadAreMadeLater(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	s, r, _ := openRig(t, func(o *Options) {
		quick(o)
		o.DeviceCount, o.CapacityBytes, o.NoRebalance = 4, 16<<20, true
		o.rules.LostAfter, o.rules.Errors = 20*time.Millisecond, 1<<30 // reads that fail make no drive lost
		o.taskEvery, o.taskRetry = 10*time.Millisecond, 10*time.Millisecond
	})
	defer func() { require.NoError(t, s.Close()) }()
	sc, keys := openSpace(t, s, "n", skep.Durable, 2, true), chainKeys(1, 24)
	requireOutcome(t, skep.Committed, putRun(t, s, sc, keys, faultBlock))
	lost := s.members.Opened[1]
	r.each(func(i int, d *device.Fault) {
		if i != int(lost.Index) {
			d.MustInject(device.Rule{Action: device.Fail, Kinds: device.Reads})
		}
	})
	r.faults[lost.Index].MustInject(device.GoneRule())
	eventually(t, "some could not be read", func() bool {
		_ = device.ReadAt(ctx, lost.Dev, device.AlignedBuffer(layout.PageSize), 0) // it is noticed that it is gone
		list := s.Tasks()
		return len(list) > 0 && list[0].Unreadable > 0
	})
	r.each(func(i int, d *device.Fault) {
		if i != int(lost.Index) {
			d.Clear()
		}
	})
	eventually(t, "all copies are there again", func() bool { return wholeWithout(t, s, lost) })
	requireChain(t, s, sc, keys, faultBlock)
}

// A second drive is lost when the copies of the first are made again. Those it held are made again, too, of a group
// that is too full to be compacted.
func TestCopiesOfASecondLostDriveAreMadeAgain(t *testing.T) {
	t.Parallel()
	s, r, _ := openRig(t, func(o *Options) {
		quick(o)
		o.DeviceCount, o.CapacityBytes, o.NoRebalance = 4, 16<<20, true
		o.rules.LostAfter, o.taskEvery, o.taskRetry = 20*time.Millisecond, 10*time.Millisecond, 10*time.Millisecond
	})
	defer func() { require.NoError(t, s.Close()) }()
	durable, cache := openSpace(t, s, "d", skep.Durable, 2, true), openSpace(t, s, "c", skep.Cache, 1, true)
	keys := chainKeys(1, 4)
	requireOutcome(t, skep.Committed, putRun(t, s, durable, keys, faultBlock))
	requireOutcome(t, skep.Committed, putRun(t, s, cache, chainKeys(2, 26), faultBlock))
	g := s.space.Groups()[0]
	for _, i := range []int{1, 2} {
		stays := 0
		for at, rec := range recordsOf(t, s) {
			if at.Group == g.Num && rec.Flags&segment.RecordDurable != 0 {
				stays++
			}
		}
		require.Positive(t, stays)
		lost := s.members.Opened[i]
		r.faults[i].MustInject(device.GoneRule())
		eventually(t, "its copies are there again", func() bool {
			_ = device.ReadAt(testContext(t), lost.Dev, device.AlignedBuffer(layout.PageSize), 0)
			return wholeWithout(t, s, lost)
		})
	}
	requireChain(t, s, durable, keys, faultBlock)
}

// wholeWithout says whether every Durable block has all its copies on drives other than d.
func wholeWithout(t *testing.T, s *Store, d *space.Drive) bool {
	whole := true
	for _, g := range s.space.Groups() {
		require.NoError(t, s.catalog.ScanGroup(context.Background(), g.Num, func(_ layout.Location, row []byte) error {
			var rec segment.Record
			if err := segment.DecodeRecord(row, &rec); err != nil {
				return err
			}
			_, ok := segio.RecordUnits(&rec, len(g.Drives)).Survive(func(i int) bool { return g.Drives[i] != d })
			whole = whole && (ok || rec.Flags&segment.RecordDurable == 0)
			return nil
		}))
	}
	return whole
}

// A device is missing at an open.
func TestMissingDevice(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name     string
		class    skep.Class
		copies   int
		degraded string
		opens    bool
		found    string // "all", "some"
	}{
		{"durable, one copy", skep.Durable, 1, "", false, ""},
		{"durable, one copy, whatever it costs", skep.Durable, 1, DegradedAlways, true, "some"},
		{"durable, two copies", skep.Durable, 2, "", true, "all"},
		{"durable, two copies, never", skep.Durable, 2, DegradedNever, false, ""},
		{"cache, one copy", skep.Cache, 1, "", true, "some"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			ctx := testContext(t)
			o := small(tempRoot(t, "store"))
			well(&o)
			o.CacheBytes, o.DeviceCount, o.taskEvery = -1, 3, hangs
			s, err := Open(ctx, o)
			require.NoError(t, err)
			sc := openSpace(t, s, "n", tt.class, tt.copies, true)
			keys := chainKeys(1, 30)
			requireOutcome(t, skep.Committed, putRun(t, s, sc, keys, faultBlock))
			require.NoError(t, s.Close())
			path := filepath.Join(o.Dir, "device-1")
			away := filepath.Join(t.TempDir(), "away")
			require.NoError(t, os.Rename(path, away))

			o.Degraded = tt.degraded
			s, err = Open(ctx, o)
			if !tt.opens {
				requireKind(t, skep.Missing, err)
			} else {
				require.NoError(t, err)
				n, reasons := requireRight(t, s, sc, keys, faultBlock)
				if tt.found == "all" {
					require.Equal(t, len(keys), n)
				} else {
					require.Less(t, n, len(keys))
					require.Positive(t, n)
					require.Equal(t, len(keys)-n, reasons[skep.DeviceFailed])
				}
				requireOutcome(t, skep.Committed, putRun(t, s, sc, chainKeys(2, 10), faultBlock))
				st, err := s.Stats(ctx)
				require.NoError(t, err)
				require.Contains(t, st.Devices[1].State, "dead")
				require.NoError(t, s.Close())
			}
			// And when it is back, under another name, everything is there.
			require.NoError(t, os.Rename(away, filepath.Join(o.Dir, "device-renamed")))
			s, err = Open(ctx, o)
			require.NoError(t, err)
			requireChain(t, s, sc, keys, faultBlock)
			require.NoError(t, s.Close())
		})
	}
}

// The index counts one copy of a block: groups that are full of copies have no holes.
func TestCopiesAreNoHoles(t *testing.T) {
	t.Parallel()
	s, _, _ := openRig(t, func(o *Options) { well(o); o.CapacityBytes = 16 << 20; o.taskEvery = hangs })
	defer func() { require.NoError(t, s.Close()) }()
	sc := openSpace(t, s, "n", skep.Durable, 2, true)
	for i := range 20 {
		requireOutcome(t, skep.Committed, putRun(t, s, sc, chainKeys(i, 20), faultBlock))
	}
	require.Greater(t, len(s.index.Groups()), 10)
	require.Empty(t, compact.Unasked.Choose(s.space.Costs(s.space.Groups())))
}
