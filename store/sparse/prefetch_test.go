package sparse

import (
	"runtime"
	"sync"
	"testing"
	"time"
	"weak"

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

// A record that prefetch after prefetch wants does not keep all that was read with it.
func TestAKeptRecordKeepsNoOthers(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	k := b.clustered()
	query := make([]float32, k.heads.QueryWidth())
	query[3] = 1
	var wanted []uint32
	for e := range uint32(30) {
		wanted = append(wanted, e)
	}
	for range learnedSteps {
		require.NoError(t, k.Observe(b.ctx, skep.Observation{Entries: wanted, Queries: query}))
	}
	y := k.layers[0]
	prefetch := func(budget int) map[uint32]*staged {
		require.NoError(t, k.Prefetch(b.ctx, 0, query, skep.Choice{Budget: budget}))
		k.background.Wait()
		y.mu.Lock()
		defer y.mu.Unlock()
		return y.mu.staged
	}
	first := func() (all []weak.Pointer[byte]) {
		for _, s := range prefetch(len(wanted)) {
			require.NotNil(t, s.data)
			all = append(all, weak.Make(&s.data[0]))
		}
		return all
	}()
	require.Len(t, first, len(wanted))
	require.Len(t, prefetch(1), 1)
	for _, p := range first {
		require.Eventually(t, func() bool { runtime.GC(); return p.Value() == nil }, time.Minute, time.Millisecond)
	}
	for e, s := range prefetch(1) {
		require.Equal(t, bedEntry(int(e)), s.data[:k.entry])
	}
	require.EqualValues(t, len(wanted), k.Info().PerLayer[0].PrefetchRead, "nothing was read twice")
}
