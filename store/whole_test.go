package store

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/device"
	"github.com/skepkv/skep/store/internal/space"
)

// A drive takes reads and does not answer them. What cleaning moves, and what a scrub and a compaction read, comes
// from the other copy, and nobody uses memory again that the drive may still write to.
func TestBlocksAreMovedAroundADriveThatDoesNotAnswer(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	s, r, _ := openRig(t, func(o *Options) {
		unjudged(o)
		o.OpTimeout, o.CapacityBytes = 100*time.Millisecond, 16<<20
	})
	sc := openSpace(t, s, "n", skep.Durable, 2, false)
	keys := chainKeys(1, 12)
	requireOutcome(t, skep.Committed, putRun(t, s, sc, keys, faultBlock))
	s.space.SealOpen(space.User)
	eventually(t, "the store is at rest", func() bool { return !s.space.Sparing() })
	silent := func(i int, d *device.Fault) {
		if i == 1 {
			d.MustInject(device.Rule{Action: device.Hold, Kinds: device.Reads})
		}
	}
	r.each(silent)
	for _, g := range s.space.Groups() {
		// Not at once where a machine has so much to do that a sound drive is late, too.
		eventually(t, "the group is cleaned", func() bool { return s.space.Find(g.Num) == nil || s.cleaner.Clean(ctx, g, true) == nil })
	}
	require.Zero(t, s.count.Damaged.Load())
	r.each(func(_ int, d *device.Fault) { d.Clear(); d.Release() })
	requireChain(t, s, sc, keys, faultBlock)
	require.NoError(t, s.Close())
}
