package store

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/device"
	"github.com/skepkv/skep/store/internal/space"
)

// Of the drives that a group lay on one is told that it is gone, the others not, since they failed just then; and
// that one is taken out of the store. The next open takes the others' headers for what they are.
func TestOnlyARemovedDriveKnewThatAGroupIsGone(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	s, r, o := openRig(t, func(o *Options) { o.DeviceCount = 3 })
	sc := openSpace(t, s, "n", skep.Durable, 1, false)
	keys := chainKeys(1, 6)
	requireOutcome(t, skep.Committed, putRun(t, s, sc, keys, faultBlock))
	g := openedBy(s, space.User)
	before := make([][]byte, 2)
	for i := range before {
		before[i] = device.AlignedBuffer(layout.PageSize)
		require.NoError(t, device.ReadAt(ctx, r.faults[i], before[i], g.Drives[i].SegmentOffset(g.Segments[i])))
	}
	_, err := s.RemoveDevice(ctx, "2", MoveOptions{})
	require.NoError(t, err)
	eventually(t, "the group is gone", func() bool { return isFreed(g) })
	require.NoError(t, s.Close())
	for i, page := range before {
		r.mems[i] = r.mems[i].Clone() // the one before was closed
		require.NoError(t, device.WriteAt(ctx, r.mems[i], page, g.Drives[i].SegmentOffset(g.Segments[i])))
	}
	s, err = Open(ctx, o)
	require.NoError(t, err)
	requireChain(t, s, sc, keys, faultBlock)
	require.NoError(t, s.Close())
}

// Groups that were made ready, and never written to, on a drive that is taken out are gone with it, though the catalog
// has refused to forget them: a crash brings no group back that nobody can read.
func TestSparesOfARemovedDrive(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	s, _, crash := crashRig(t, func(o *Options) { o.DeviceCount = 3 })
	sc := openSpace(t, s, "n", skep.Durable, 1, false)
	keys := chainKeys(1, 6)
	requireOutcome(t, skep.Committed, putRun(t, s, sc, keys, faultBlock))
	eventually(t, "there are spares", func() bool {
		s.space.Inside().Lock()
		defer s.space.Inside().Unlock()
		return len(s.space.Inside().Spares) > 1
	})
	s.space.Inside().Lock()
	for _, g := range s.space.Inside().Spares {
		g.Life.Become(space.Failed)
	}
	s.space.Inside().Doubted, s.space.Inside().Spares = append(s.space.Inside().Doubted, s.space.Inside().Spares...), nil
	s.space.Inside().Unlock()
	_, err := s.RemoveDevice(ctx, "0", MoveOptions{})
	require.NoError(t, err)
	o := crash("removed")
	require.NoError(t, s.Close())
	s, err = Open(ctx, o)
	require.NoError(t, err)
	require.Empty(t, s.space.GroupsOf(s.members.Opened[0]))
	_, err = s.DrainDevice(ctx, "1", MoveOptions{})
	require.NoError(t, err)
	requireChain(t, s, sc, keys, faultBlock)
	require.NoError(t, s.Close())
}
