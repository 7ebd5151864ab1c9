package store

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/device"
	"github.com/skepkv/skep/store/storetest"
)

// What is kept of a group is read several blocks at a time, and is there afterwards.
func TestCleaningReadsSeveralBlocksAtATime(t *testing.T) {
	t.Parallel()
	s, r, _ := openRig(t, func(o *Options) { unjudged(o); o.OpTimeout, o.taskEvery = hangs, hangs })
	sc, keys, g := putAway(t, s, skep.Durable)
	r.each(func(_ int, d *device.Fault) { d.MustInject(device.Rule{Action: device.Hold, Kinds: device.Reads}) })
	crew := storetest.NewCrew(t)
	crew.Go(func(t testing.TB) { require.NoError(t, s.cleaner.Clean(testContext(t), g, true)) })
	eventually(t, "several are being read", func() bool {
		held := 0
		r.each(func(_ int, d *device.Fault) { held += d.Held() })
		return held >= min(8, len(keys))
	})
	r.each(func(_ int, d *device.Fault) { d.Release() })
	crew.Wait()
	require.False(t, s.space.Has(g))
	requireChain(t, s, sc, keys, faultBlock)
	require.Empty(t, unsound(s))
	require.NoError(t, s.Close())
}
