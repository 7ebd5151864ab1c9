package restore

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/index"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/memory"
)

// cached makes a restorer whose DRAM tier holds part kv of these blocks, of n bytes each.
func cached(t *testing.T, n int, blocks ...index.Fingerprint) *Restorer {
	t.Helper()
	arena, err := memory.New(memory.Options{IO: 1 << 20, Cache: 1 << 20})
	require.NoError(t, err)
	cache, err := memory.NewCache(arena, memory.CacheOptions{})
	require.NoError(t, err)
	t.Cleanup(func() {
		cache.Drop(func(memory.ID) bool { return true })
		require.NoError(t, arena.Close(context.Background()))
	})
	for _, fp := range blocks {
		b, err := arena.TryAlloc(n, memory.BudgetIO)
		require.NoError(t, err)
		_, err = cache.Put(memory.Item{ID: memory.IDOf(fp, skep.PartKV), Bufs: []*memory.Buffer{b}, Length: int64(n)})
		require.NoError(t, err)
	}
	rs := &Restorer{Parts: Parts{Arena: arena, Cache: cache}}
	rs.prefetch.got = map[index.Fingerprint]fetched{}
	return rs
}

// chunkOf is a chunk of part kv of a block, of n bytes, that was read.
func chunkOf(fp index.Fingerprint, n int64) *chunk {
	plan := &layout.ChainPlan{Chain: skep.Chain{Part: skep.PartKV}}
	ch := &chunk{chain: &chain{Asked: Asked{ChainPlan: plan}}, at: &Located{FP: fp}}
	ch.out.Bytes = n
	return ch
}

// What is read ahead a second time, since it left memory unused meanwhile, is charged once.
func TestReadingAheadAgainIsChargedOnce(t *testing.T) {
	t.Parallel()
	const n = 8 << 10
	one, other := index.Fingerprint{1}, index.Fingerprint{2}
	rs := cached(t, n, one, other)
	now := time.Now()
	job := &ahead{start: now, due: now.Add(time.Minute)}
	for _, fp := range []index.Fingerprint{one, other, one} {
		rs.prefetched(chunkOf(fp, n), job)
	}
	p := rs.Prefetch()
	require.EqualValues(t, 3*n, p.ReadBytes)
	require.EqualValues(t, 2*n, p.UnusedBytes)
	require.EqualValues(t, n, p.WastedBytes)
	rs.prefetch.used(one)
	p = rs.Prefetch()
	require.EqualValues(t, n, p.UsedBytes)
	require.EqualValues(t, n, p.UnusedBytes)
}
