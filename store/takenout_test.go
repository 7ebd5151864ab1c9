package store

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/internal/health"
)

// A device that was taken out in order is nobody's concern: its file is gone because it was taken out. A server
// warned of a drive that counts as lost, and had verify count it.
func TestADeviceThatWasTakenOutIsNotMissed(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	o := small(tempRoot(t, "store"))
	o.DeviceCount = 3
	s, err := Open(ctx, o)
	require.NoError(t, err)
	sc := openSpace(t, s, "n", skep.Durable, 1, true)
	keys := chainKeys(1, 10)
	requireOutcome(t, skep.Committed, putRun(t, s, sc, keys, 8<<10))
	rules := health.DefaultRules // of a process that looks at once, and again
	rules.LostAfter, rules.FileEvery = 0, 0
	m := s.newMonitor(rules)
	_, err = s.RemoveDevice(ctx, "1", MoveOptions{})
	require.NoError(t, err)

	for range 5 {
		m.Look()
	}
	require.False(t, s.members.Opened[1].Standing.Lost(), "it counts as lost")
	requireChain(t, s, sc, keys, 8<<10)
	require.NoError(t, s.Close())
	rep, err := Verify(ctx, o, VerifyOptions{})
	require.NoError(t, err)
	require.Equal(t, 2, rep.Devices)
}
