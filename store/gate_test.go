package store

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
)

// Whoever is told how far a long call is may call the store from there, also while the store closes: that call is
// refused, and does not wait for a Close that waits for the call it is made in.
func TestACallWithinACallWhileTheStoreCloses(t *testing.T) {
	t.Parallel()
	s, _, _ := openRig(t, func(o *Options) {
		well(o)
		o.DeviceCount, o.CapacityBytes, o.taskEvery = 3, 9<<20, hangs
	})
	sc := openSpace(t, s, "n", skep.Durable, 1, true)
	for i := range 20 {
		requireOutcome(t, skep.Committed, putRun(t, s, sc, chainKeys(i, 12), faultBlock))
	}
	closed := make(chan error, 1)
	var once sync.Once
	var within []error
	_, _ = s.Compact(testContext(t), MoveOptions{All: true, Progress: func(Progress) {
		once.Do(func() { go func() { closed <- s.Close() }() })
		<-s.closing
		eventually(t, "Close waits for this call", func() bool { return s.gate.Closing() })
		_, err := s.Stats(testContext(t))
		within = append(within, err)
	}})
	require.NotEmpty(t, within)
	for _, err := range within {
		requireKind(t, skep.Closed, err)
	}
	require.NoError(t, <-closed)
	_, err := s.Stats(testContext(t))
	requireKind(t, skep.Closed, err)
}
