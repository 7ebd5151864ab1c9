package store

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/device"
)

// A session whose Close gave up waiting for a drive keeps nothing once the drive has given its chunks back, though
// nobody closes it again: skep.Load's caller has no session to close.
func TestASessionThatIsNotClosedAgainKeepsNothing(t *testing.T) {
	t.Parallel()
	const size = 8 << 10
	for name, lent := range map[string]bool{"into the caller's memory": false, "lent": true} {
		t.Run(name, func(t *testing.T) {
			ctx := testContext(t)
			s, r, _ := openRig(t, unjudged)
			sc := openSpace(t, s, "n", skep.Cache, 1, true)
			keys := chainKeys(1, 4)
			requireOutcome(t, skep.Committed, putRun(t, s, sc, keys, size))
			r.each(func(_ int, d *device.Fault) { d.MustInject(device.Rule{Action: device.Hold, Kinds: device.Reads}) })
			c := skep.Chain{Scope: sc, Keys: keys}
			if !lent {
				c.Dest = skep.Destination{Memory: device.AlignedBuffer(len(keys) * size), Stride: size}
			}
			ses, err := s.Restore(ctx, &skep.RestoreRequest{Chains: []skep.Chain{c}})
			require.NoError(t, err)
			require.NoError(t, waitHeld(r, 1))
			requireKind(t, skep.NotReleased, ses.Close(brief(t)))
			under, _ := s.calls.Under()
			require.Positive(t, under, "a drive has its chunks")
			require.Equal(t, 1, s.restores.State().Sessions)

			r.each(func(_ int, d *device.Fault) { d.Clear(); d.Release() })
			eventually(t, "it keeps nothing", func() bool {
				under, _ := s.calls.Under()
				return under == 0 && s.calls.Tenants() == 0 && s.restores.State().Sessions == 0
			})
			require.NoError(t, ses.Close(ctx), "closed again, it lets go of nothing twice")
			under, _ = s.calls.Under()
			require.Zero(t, under)
			requireChain(t, s, sc, keys, size)
			require.NoError(t, s.Close())
		})
	}
}
