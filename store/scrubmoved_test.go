package store

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/device"
	"github.com/skepkv/skep/store/internal/space"
)

// Blocks no copy of which is right are deleted while a scrub reads them. They are not lost.
func TestAScrubLosesNothingThatIsDeletedMeanwhile(t *testing.T) {
	t.Parallel()
	for name, dry := range map[string]bool{"mending": false, "dry": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx := testContext(t)
			s, r, _ := openRig(t, func(o *Options) { unjudged(o); o.DeviceCount, o.OpTimeout = 1, hangs })
			defer func() { require.NoError(t, s.Close()) }()
			sc := openSpace(t, s, "n", skep.Durable, 1, true)
			keys := chainKeys(1, 16)
			requireOutcome(t, skep.Committed, putRun(t, s, sc, keys, 4<<10))
			for _, rec := range recordsOf(t, s) {
				damageCopy(t, s, &rec, 0)
			}
			begin := s.members.Opened[0].SegmentOffset(openedBy(s, space.User).Segments[0])
			r.faults[0].MustInject(device.Rule{Action: device.Hold, Kinds: device.Reads, From: begin + layout.PageSize,
				Match: func(op *device.Op) bool { return len(op.Bufs) == 1 && len(op.Bufs[0]) == layout.PageSize }})
			var rep ScrubReport
			var err error
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				rep, err = s.Scrub(ctx, ScrubOptions{Rate: 1 << 40, DryRun: dry})
			}()
			require.NoError(t, r.faults[0].WaitHeld(ctx, 8))
			n, e := s.Delete(ctx, sc, keys)
			require.NoError(t, e)
			require.Equal(t, len(keys), n)
			r.faults[0].Release()
			<-ended
			require.NoError(t, err)
			require.True(t, rep.Sound(), "%+v", rep)
		})
	}
}
