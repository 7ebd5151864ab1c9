package store

import (
	"errors"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/device"
	"github.com/skepkv/skep/store/internal/space"
)

// A group is emptied while no drive of it answers: nobody can be told that it is gone, and the
// catalog must go on knowing it. Else what lies on the drives, when they are back, is newer
// than anything the catalog has, and the next open refuses a sound one.
func TestAGroupEmptiedWhileItsDrivesAreAway(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	s, r, o := openRig(t, func(o *Options) {
		quick(o)
		o.DeviceCount = 1
	})
	sc := openSpace(t, s, "n", skep.Cache, 1, true)
	requireOutcome(t, skep.Committed, putRun(t, s, sc, chainKeys(1, 60), faultBlock))
	require.NoError(t, s.Flush(ctx))
	require.NoError(t, s.Purge(ctx, skep.Purge{Namespace: sc.Namespace}))
	require.NoError(t, s.Flush(ctx))
	groups := s.space.Groups()

	r.faults[0].MustInject(device.GoneRule())
	page := device.AlignedBuffer(layout.PageSize)
	eventually(t, "the drive is noticed", func() bool {
		_ = device.ReadAt(ctx, s.members.Opened[0].Dev, page, 0)
		return s.members.Opened[0].Away()
	})
	freed := 0
	for _, g := range groups {
		err := s.cleaner.Clean(ctx, g, false)
		for ; errors.Is(err, space.ErrBusy) && ctx.Err() == nil; err = s.cleaner.Clean(ctx, g, false) {
			runtime.Gosched()
		}
		if err != nil {
			t.Log(g.Num, err) // a log that cannot be read keeps its group
			continue
		}
		freed++
		eventually(t, "it is known whether its drives were told", func() bool { return !g.Telling.Load() })
		require.False(t, isFreed(g))
	}
	require.Positive(t, freed)

	r.faults[0].Clear()
	require.NoError(t, s.Close())
	s, err := Open(ctx, o)
	require.NoError(t, err)
	require.NoError(t, s.Close())
}

// A scrub holds on to a group while the cleaner empties and frees it. It does not take the mark of
// that in the headers for damage and write it away: the next open would find a group that the
// catalog has lost, and set a sound catalog aside.
func TestScrubOfAGroupThatIsFreed(t *testing.T) {
	t.Parallel()
	for _, dry := range []bool{false, true} {
		t.Run(sprintf("dry run: %v", dry), func(t *testing.T) {
			ctx := testContext(t)
			s, _, o := openRig(t, nil)
			sc := openSpace(t, s, "n", skep.Cache, 2, true)
			requireOutcome(t, skep.Committed, putRun(t, s, sc, chainKeys(1, 60), faultBlock))
			require.NoError(t, s.Flush(ctx))
			require.NoError(t, s.Purge(ctx, skep.Purge{Namespace: sc.Namespace}))
			g := s.space.Pin(s.space.Numbers(0)[0])
			require.NotNil(t, g)
			eventually(t, "nothing is written to it any more, and it is cleaned", func() bool { return s.cleaner.Clean(ctx, g, false) == nil })
			eventually(t, "its drives are told", func() bool { return isFreed(g) })

			rep := s.mends.Headers(ctx, dry, nil, []*space.Group{g})
			require.Empty(t, rep.Faults)
			require.Zero(t, rep.Headers)
			s.space.Unpin(g)
			require.NoError(t, s.Close())
			s, err := Open(ctx, o)
			require.NoError(t, err)
			require.NoError(t, s.Close())
		})
	}
}
