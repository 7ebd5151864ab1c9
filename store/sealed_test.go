package store

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/internal/clean"
	"github.com/skepkv/skep/store/internal/space"
	"github.com/skepkv/skep/store/segment"
)

// A group is sealed because a log page does not fit, while cells of its rows are empty. Its
// cleaning would fill the next group as far, for the next page that does not fit, for ever:
// so it is full with what it holds.
func TestAGroupWithoutRoomForALogPageIsFull(t *testing.T) {
	t.Parallel()
	s, _, _ := openRig(t, func(o *Options) {
		o.DeviceCount, o.SegmentBytes, o.CapacityBytes = 6, 64<<10, 6*(4*64<<10+8<<10)
		o.FlushInterval = time.Hour
	})
	defer func() { require.NoError(t, s.Close()) }()
	sc := openSpace(t, s, "n", skep.Durable, 3, false)
	g := s.space.Find(1)
	for i := 0; ; i++ { // a row has cells for the copies of two
		s.space.Inside().Lock()
		f, st := g.Filler, layout.FillerStats{}
		if f != nil {
			st = f.Stats()
		}
		s.space.Inside().Unlock()
		require.NotNil(t, f, "sealed before there was a row with cells and no page for a log")
		if st.Free < 2*s.options.DeviceCount && st.Open > 0 {
			break
		}
		requireOutcome(t, skep.Committed, putRun(t, s, sc, []skep.Key{keyOf(uint32(i))}, 4<<10))
	}
	sealed := func() bool {
		s.space.Inside().Lock()
		defer s.space.Inside().Unlock()
		return g.Life.State() == space.Sealed && g.Pending == 0
	}
	var w segment.LogWriter
	require.NoError(t, w.Tombstone(&segment.Tombstone{}))
	for range 10 { // until there is no room for a page more
		if !sealed() {
			require.NoError(t, s.appends.Entries(testContext(t), space.User, 0, w.Bytes()))
		}
	}
	eventually(t, "the group is sealed, and at rest", sealed)
	eventually(t, "the store's own cleaner leaves it", func() bool { return s.space.Claim(g, space.Claim{By: space.Mover}) })
	defer s.space.Release(g)
	c := s.newCleaner()
	require.ErrorIs(t, c.EmptyGroup(testContext(t), g), clean.ErrNoGain)
}
