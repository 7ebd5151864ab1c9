package store

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/device"
	"github.com/skepkv/skep/store/internal/health"
)

// A group that was opened, and spares that were made, while only one drive took new blocks are no
// reason to decline blocks of two copies when the other is well again.
func TestTwoCopiesAfterADriveCameBack(t *testing.T) {
	t.Parallel()
	s, r, _ := openRig(t, func(o *Options) {
		unjudged(o)
		o.rules.ProbeEvery, o.rules.Probes = o.rules.Tick, 1
	})
	defer func() { require.NoError(t, s.Close()) }()
	one := openSpace(t, s, "one", skep.Durable, 1, false)
	two := openSpace(t, s, "two", skep.Durable, 2, false)
	requireOutcome(t, skep.Committed, putRun(t, s, two, chainKeys(1, 2), faultBlock))
	r.faults[1].MustInject(device.Rule{Action: device.Fail, Kinds: device.Writes | device.Flushes})
	eventually(t, "the drive is fenced", func() bool {
		putRun(t, s, one, chainKeys(2, 1), faultBlock)
		return s.members.Opened[1].Condition() == health.Fenced
	})
	requireOutcome(t, skep.Committed, putRun(t, s, one, chainKeys(3, 1), faultBlock)) // beside it
	res, err := heapPut(testContext(t), s, putRequest(two, nil, 0, chainKeys(4, 1), faultBlock))
	require.NoError(t, err)
	requireOutcome(t, skep.Declined, res)
	r.faults[1].Clear()
	eventually(t, "the drive is let back in", func() bool { return s.members.Opened[1].Condition() == health.Healthy })
	requireOutcome(t, skep.Committed, putRun(t, s, two, chainKeys(4, 1), faultBlock))
	requireChain(t, s, two, chainKeys(4, 1), faultBlock)
}

// What a purge of a salt has hidden is nothing that a device must be read for before it is taken out.
func TestDrainAfterAPurgeOfASalt(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	s, _, _ := openRig(t, nil)
	defer func() { require.NoError(t, s.Close()) }()
	sc := openSpace(t, s, "n", skep.Durable, 1, false)
	keys := chainKeys(1, 6)
	requireOutcome(t, skep.Committed, putRun(t, s, sc, keys, faultBlock))
	salted := sc
	salted.Salt = "pepper"
	requireOutcome(t, skep.Committed, putRun(t, s, salted, keys, faultBlock))
	require.NoError(t, s.Purge(ctx, skep.Purge{Salt: &salted}))
	_, err := s.DrainDevice(ctx, "0", MoveOptions{})
	require.NoError(t, err)
	requireChain(t, s, sc, keys, faultBlock)
}
