package store

import (
	"slices"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/device"
	"github.com/skepkv/skep/store/internal/space"
	"github.com/skepkv/skep/store/storetest"
)

// holdPut has a put whose write the first drive never answers, by itself; where that drive is found dead, the blocks
// are put elsewhere. Released is told when the memory of the put is back.
func holdPut(t *testing.T, s *Store, r *rig, sc skep.Scope, keys []skep.Key) (held *space.Group, released *atomic.Bool) {
	t.Helper()
	ctx := testContext(t)
	d := s.members.Opened[0]
	var at atomic.Int64
	r.faults[0].MustInject(device.Rule{Action: device.Hold, Kinds: device.Writes, Times: 1, Match: func(op *device.Op) bool {
		first := op.Offset >= d.SegmentOffset(0)
		if first {
			at.CompareAndSwap(0, op.Offset)
		}
		return first
	}})
	req, _ := alignedPut(sc, keys, faultBlock)
	released = new(atomic.Bool)
	req.Released = func() { released.Store(true) }
	results, err := s.Put(ctx, req)
	requireKind(t, skep.NotReleased, err)
	require.Len(t, results, len(keys))
	require.Equal(t, 1, r.faults[0].Held())
	for _, g := range s.space.Groups() {
		for i, o := range g.Drives {
			if from := d.SegmentOffset(g.Segments[i]); o == d && at.Load() >= from && at.Load() < from+s.space.SegmentBytes {
				held = g
			}
		}
	}
	require.NotNil(t, held)
	return held, released
}

// A drive that holds a write for ever is taken out of the store: its blocks are made again from their copies, and
// nobody waits for the write. What the write is made from is not given back before it has ended.
func TestADriveThatHoldsAWriteIsRemoved(t *testing.T) {
	t.Parallel()
	t.Run("found dead", func(t *testing.T) { removeADriveThatHolds(t, quick, true) })
	t.Run("well otherwise", func(t *testing.T) { removeADriveThatHolds(t, lateHeaders, false) })
}

func removeADriveThatHolds(t *testing.T, judged func(*Options), elsewhere bool) {
	ctx := testContext(t)
	s, r, o := openRig(t, func(o *Options) {
		judged(o)
		o.DeviceCount, o.CapacityBytes = 3, 12<<20
	})
	sc := openSpace(t, s, "n", skep.Durable, 2, true)
	keys := chainKeys(1, 30)
	requireOutcome(t, skep.Committed, putRun(t, s, sc, keys, faultBlock))
	more := chainKeys(2, 4)
	g, released := holdPut(t, s, r, sc, more)

	_, err := s.RemoveDevice(ctx, "0", MoveOptions{})
	require.NoError(t, err)
	require.Equal(t, 1, r.faults[0].Held(), "the drive has the write yet")
	require.False(t, released.Load())
	require.Nil(t, s.space.Find(g.Num), "its group is gone")
	if !elsewhere {
		requireOutcome(t, skep.Committed, putRun(t, s, sc, more, faultBlock))
	}
	requireChain(t, s, sc, keys, faultBlock)
	requireChain(t, s, sc, more, faultBlock)
	require.False(t, released.Load())
	letGo(t, r)
	eventually(t, "the memory is back", released.Load)
	require.NoError(t, s.Close())
	s, err = Open(ctx, o)
	require.NoError(t, err)
	requireChain(t, s, sc, keys, faultBlock)
	requireChain(t, s, sc, more, faultBlock)
	require.NoError(t, s.Close())
}

// The group of a write that is held is cleaned without it. Its segment on that drive is nobody's before the write has
// landed: it would land in the group that has the segment by then. Its others are free.
func TestAHeldWriteDoesNotLandInTheNextGroup(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	s, r, _ := openRig(t, func(o *Options) {
		quick(o)
		o.DeviceCount, o.CapacityBytes, o.taskEvery = 3, 12<<20, hangs
	})
	sc := openSpace(t, s, "n", skep.Durable, 2, true)
	keys := chainKeys(1, 30)
	requireOutcome(t, skep.Committed, putRun(t, s, sc, keys, faultBlock))
	g, released := holdPut(t, s, r, sc, chainKeys(2, 4))
	crew := storetest.NewCrew(t)
	crew.Go(func(t testing.TB) {
		_, err := s.DrainDevice(ctx, "0", MoveOptions{})
		require.NoError(t, err)
	})
	crew.Wait()
	for i, d := range g.Drives {
		if d != s.members.Opened[0] {
			eventually(t, "its segments elsewhere are free, or used again", func() bool {
				s.space.Kick()
				return isFree(s, d, g.Segments[i]) || isUsed(s, d, g.Segments[i])
			})
		}
	}
	require.False(t, isFree(s, s.members.Opened[0], segmentOn(g, s.members.Opened[0])))
	require.False(t, isUsed(s, s.members.Opened[0], segmentOn(g, s.members.Opened[0])))
	letGo(t, r)
	eventually(t, "so is the one whose write has landed", func() bool { return isFree(s, s.members.Opened[0], segmentOn(g, s.members.Opened[0])) })
	eventually(t, "the memory is back", released.Load)
	requireChain(t, s, sc, keys, faultBlock)
	require.NoError(t, s.Close())
}

// isUsed says whether a group, or what is kept to be one, has a segment.
func isUsed(s *Store, d *space.Drive, seg uint32) bool {
	s.space.Inside().Lock()
	defer s.space.Inside().Unlock()
	list := slices.Concat(slices.Collect(s.space.Inside().Groups.Each()), s.space.Inside().Spares, s.space.Inside().Making)
	return slices.ContainsFunc(list, func(g *space.Group) bool { return g.Has(d) && segmentOn(g, d) == seg })
}

func segmentOn(g *space.Group, d *space.Drive) uint32 {
	for i, o := range g.Drives {
		if o == d {
			return g.Segments[i]
		}
	}
	return 0
}
