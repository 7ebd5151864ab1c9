package commit

import (
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep/index"
	"github.com/skepkv/skep/store/memory"
)

// Whoever takes a block out of the index forgets its copy after that. When the key has been put again in between, and
// accepted, what is in the DRAM tier is the only copy of what the index shows.
func TestALateForgetSparesWhatWasAcceptedSince(t *testing.T) {
	t.Parallel()
	arena, err := memory.New(memory.Options{IO: 1 << 20, Cache: 1 << 20})
	require.NoError(t, err)
	r := New(slog.New(slog.DiscardHandler))
	r.Cache, err = memory.NewCache(arena, memory.CacheOptions{})
	require.NoError(t, err)
	t.Cleanup(func() {
		r.Cache.Close()
		require.NoError(t, arena.Close(t.Context()), "no buffer is in use")
	})
	r.Index, err = index.New(index.Config{})
	require.NoError(t, err)
	fp := index.Fingerprint{1}
	id := memory.IDOf(fp, "kv")
	put := func() {
		b, err := arena.TryAlloc(4096, memory.BudgetCache)
		require.NoError(t, err)
		_, err = r.Cache.Put(memory.Item{ID: id, Bufs: []*memory.Buffer{b}, Length: 4096, Dirty: true})
		require.NoError(t, err)
		_, _, err = r.Index.Insert(index.Entry{FP: fp, Pages: 1, Namespace: 1})
		require.NoError(t, err)
	}
	put()
	r.forgetCached(fp)
	require.True(t, r.Cache.Has(id))

	_, ok := r.Index.Remove(fp, index.AnyLocation)
	require.True(t, ok)
	r.forgetCached(fp)
	require.False(t, r.Cache.Has(id))

	put()
	require.True(t, r.Index.Move(fp, 0, 1<<40)) // it is on drives
	r.forgetCached(fp)
	require.False(t, r.Cache.Has(id))
}
