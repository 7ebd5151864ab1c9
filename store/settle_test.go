package store

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/device"
	"github.com/skepkv/skep/store/internal/space"
)

// Before an orderly end logs are compared with the catalog for no longer than Close can spare: a drive that does not
// answer leaves that to the next open.
func TestAnEndDoesNotWaitForLogsToBeCompared(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	s, r, _ := openRig(t, func(o *Options) { unjudged(o); o.OpTimeout, o.taskEvery = hangs, hangs })
	sc := openSpace(t, s, "n", skep.Durable, 1, true)
	requireOutcome(t, skep.Committed, putRun(t, s, sc, chainKeys(1, 4), 4<<10))
	g := openedBy(s, space.User)
	r.each(func(_ int, d *device.Fault) { d.Hold(device.Read) })
	s.space.Suspect(g) // the cleaner leaves it alone until it is sealed
	s.logs.Settle(ctx, 50*time.Millisecond)
	require.NoError(t, ctx.Err())
	require.True(t, g.Stale.Load())
	r.each(func(_ int, d *device.Fault) { d.Clear(); d.Release() })
	require.NoError(t, s.Close())
}
