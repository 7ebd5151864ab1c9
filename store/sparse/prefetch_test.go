package sparse

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
)

// Who foresees faster than drives read does not pile up reads and their memory: while some are under way no more
// begin, and what was not read ahead is read when it is fetched.
func TestPrefetchesUnderWayAreFew(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	k := b.clustered()
	queries := make([][]float32, 2)
	for i := range queries {
		queries[i] = make([]float32, k.heads.QueryWidth())
		queries[i][3+i] = 1
		for range learnedSteps {
			entries := []uint32{uint32(1 + i), uint32(20 + i), uint32(40 + i)}
			require.NoError(t, k.Observe(b.ctx, skep.Observation{Entries: entries, Queries: queries[i]}))
		}
	}
	stuck := make(chan struct{})
	release := sync.OnceFunc(func() { close(stuck) })
	t.Cleanup(release)
	wait := func() { <-stuck }
	b.st.restore.Store(&wait)
	for i := range 100 {
		require.NoError(t, k.Prefetch(b.ctx, 0, queries[i%2], skep.Choice{Budget: 3}))
	}
	read := k.Info().PerLayer[0].PrefetchRead
	require.Positive(t, read)
	require.LessOrEqual(t, read, int64(3*maxPrefetches))
	release()
	require.NoError(t, b.fetch(k, bedTokens))
	k.background.Wait()
	require.NoError(t, k.Prefetch(b.ctx, 0, queries[0], skep.Choice{Budget: 3}))
	require.NoError(t, k.Prefetch(b.ctx, 0, queries[1], skep.Choice{Budget: 3}))
	require.Greater(t, k.Info().PerLayer[0].PrefetchRead, read, "others begin once those are through")
}
