package store

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/device"
)

// A group's log could not be compared with the catalog, for once. It is again after a while, and not at once: else the
// group were stale for as long as it is there.
func TestALogThatWasNotComparedIsAgain(t *testing.T) {
	t.Parallel()
	for _, why := range []string{"reads fail", "the catalog refuses"} {
		t.Run(why, func(t *testing.T) {
			t.Parallel()
			ctx := testContext(t)
			refuser := &refuser{}
			s, r, _ := openRig(t, func(o *Options) { well(o); o.taskEvery, o.refuseCommits = hangs, refuser.refuse })
			defer func() { require.NoError(t, s.Close()) }()
			_, _, g := putAway(t, s, skep.Cache)
			rests := func() time.Time {
				s.space.Inside().Lock()
				defer s.space.Inside().Unlock()
				return g.Rests
			}
			if why == "reads fail" {
				r.each(func(_ int, d *device.Fault) {
					d.MustInject(device.Rule{Action: device.Fail, Kinds: device.Reads})
				})
			} else {
				refuser.on.Store(true)
			}
			s.space.Suspect(g)
			eventually(t, "it is tried", func() bool {
				s.logs.ReconcileStale(ctx)
				return !rests().IsZero()
			})
			r.each(func(_ int, d *device.Fault) { d.Clear() })
			refuser.on.Store(false)
			require.Nil(t, s.space.NextSuspect(), "it rests")
			require.Equal(t, 1, s.space.SealSuspects(), "and is not forgotten")

			s.space.Inside().Lock()
			g.Rests = time.Time{}
			s.space.Inside().Unlock()
			eventually(t, "it is compared", func() bool {
				s.logs.ReconcileStale(ctx)
				return !s.space.AnyStale()
			})
		})
	}
}
