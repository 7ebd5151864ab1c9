package store

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/device"
	"github.com/skepkv/skep/store/internal/space"
)

// A group is cleaned, its drives are told that it is free, and the machine crashes. The catalog says so, too: it was
// synced before the drives were told. Nobody is sent to a group that its own headers give away.
func TestACrashAfterAGroupWasFreed(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	s, _, crash := crashRig(t, func(*Options) {})
	sc := openSpace(t, s, "n", skep.Cache, 1, true)
	keys := chainKeys(1, 6)
	requireOutcome(t, skep.Committed, putRun(t, s, sc, keys, faultBlock))
	require.NoError(t, s.Flush(ctx))
	s.space.SealOpen(space.User)
	g := s.space.Groups()[0]
	eventually(t, "nobody writes to it", func() bool { return s.space.IsIdle(g) })
	require.NoError(t, s.cleaner.Clean(ctx, g, true))
	eventually(t, "its drives are told", func() bool { s.space.Kick(); return isFreed(g) })
	o := crash("freed")
	require.NoError(t, s.Close())

	s, err := Open(ctx, o)
	require.NoError(t, err)
	require.False(t, s.space.Find(g.Num) != nil, "its headers say that it is free")
	requireChain(t, s, sc, keys, faultBlock)
	rep, err := s.Scrub(ctx, ScrubOptions{DryRun: true})
	require.NoError(t, err)
	require.Empty(t, rep.Faults)
	require.NoError(t, s.Close())
}

// cleanOne puts blocks into a group, has it cleaned and gives it. What its drives are told of that comes later.
func cleanOne(t *testing.T, s *Store, before func(g *space.Group)) *space.Group {
	ctx := testContext(t)
	sc := openSpace(t, s, "n", skep.Cache, 1, true)
	requireOutcome(t, skep.Committed, putRun(t, s, sc, chainKeys(1, 6), faultBlock))
	require.NoError(t, s.Flush(ctx))
	s.space.SealOpen(space.User)
	g := s.space.Groups()[0]
	eventually(t, "nobody writes to it", func() bool { return s.space.IsIdle(g) })
	before(g)
	require.NoError(t, s.cleaner.Clean(ctx, g, true))
	return g
}

// headerWrites matches writes of the headers of g.
func headerWrites(g *space.Group) func(*device.Op) bool {
	return func(op *device.Op) bool {
		for i, d := range g.Drives {
			if op.Kind == device.Write && op.Offset == d.SegmentOffset(g.Segments[i]) {
				return true
			}
		}
		return false
	}
}

// A crash comes when the catalog has a group as free and its drives were not told. The next open tells them, before it
// lets the group's row go; the one after it, which finds neither the row nor a valid header, has nothing to doubt.
func TestACrashBeforeTheHeadersSayFree(t *testing.T) {
	t.Parallel()
	s, r, crash := crashRig(t, func(*Options) {})
	g := cleanOne(t, s, func(g *space.Group) {
		r.each(func(_ int, d *device.Fault) {
			d.MustInject(device.Rule{Action: device.Fail, Kinds: device.Writes, Match: headerWrites(g)})
		})
	})
	require.NoError(t, s.Flush(testContext(t)))
	o := crash("not told")
	r.each(func(_ int, d *device.Fault) { d.Clear() })
	require.NoError(t, s.Close())

	for range 3 {
		s, err := Open(context.Background(), o)
		require.NoError(t, err)
		require.Nil(t, s.space.Find(g.Num))
		require.NoError(t, s.Close())
	}
}

// A drive says that it has written that a group is free, and has not. The header is read again before the row goes,
// and written again: a sound catalog is not taken for one older than its devices.
func TestADriveLiesAboutAFreedGroup(t *testing.T) {
	t.Parallel()
	s, r, o := openRig(t, func(o *Options) { o.DeviceCount = 1 })
	g := cleanOne(t, s, func(g *space.Group) {
		r.each(func(_ int, d *device.Fault) {
			d.MustInject(device.Rule{Action: device.Drop, Kinds: device.Writes, Match: headerWrites(g), Times: 1})
		})
	})
	eventually(t, "its drive was told", func() bool { s.space.Kick(); return isFreed(g) })
	r.each(func(_ int, d *device.Fault) { d.Clear() })
	require.NoError(t, s.Close())

	s, err := Open(context.Background(), o)
	require.NoError(t, err)
	require.Nil(t, s.space.Find(g.Num))
	require.NoError(t, s.Close())
}
