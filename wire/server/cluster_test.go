package server

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
)

// A request by a map that the node hears of in a moment waits for it, and is not refused.
func TestARequestWaitsForTheMapThatItWasMadeBy(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var s Server
		s.cluster.Store(&clusterState{epoch: 7, over: make(chan struct{})})
		inVain := uint32(0)
		for epoch := uint32(8); epoch < 10; epoch++ {
			done := make(chan error, 1)
			go func() { done <- s.byEpoch(t.Context(), "get", 9, &inVain) }()
			synctest.Wait()
			require.Empty(t, done, "it waits")
			require.NoError(t, s.SetCluster(nil, epoch, 0))
			synctest.Wait()
			if epoch == 9 {
				require.NoError(t, <-done)
			} else {
				time.Sleep(behindPatience)
				require.ErrorIs(t, <-done, skep.Behind)
				inVain = 0
			}
		}
		began := time.Now()
		require.ErrorIs(t, s.byEpoch(t.Context(), "get", 12, &inVain), skep.Behind)
		require.Equal(t, behindPatience, time.Since(began))
		require.ErrorIs(t, s.byEpoch(t.Context(), "get", 12, &inVain), skep.Behind)
		require.ErrorIs(t, s.byEpoch(t.Context(), "get", 11, &inVain), skep.Behind)
		require.Equal(t, behindPatience, time.Since(began), "what was waited for in vain is not waited for again")
		require.ErrorIs(t, s.byEpoch(t.Context(), "get", 8, &inVain), skep.StaleMap)
	})
}
