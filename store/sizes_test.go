package store

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep/store/memory"
)

// Whoever limits a process says so in whatever numbers.
func TestAnyLimitGivesSizesThatAnArenaTakes(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(testSeed(t), 0))
	for i := range 100 {
		limit := 64<<20 + rng.Int64N(4<<30)
		if i == 0 {
			limit = 1_000_000_000
		}
		o := Options{Dir: "d"}
		o.defaultsWithin(limit)
		require.NoError(t, o.validate(), "%d", limit)
		a, err := memory.New(memory.Options{IO: o.IOBytes, Cache: o.CacheBytes})
		require.NoError(t, err, "%d", limit)
		require.NoError(t, a.Close(t.Context()))
	}
}

// So does whoever sets a size: 100 MB are no whole pages.
func TestAnySizeIsOneThatAnArenaTakes(t *testing.T) {
	t.Parallel()
	s, _, _ := openRig(t, func(o *Options) { o.CacheBytes, o.IOBytes = 100_000_000, 50_000_001 })
	require.EqualValues(t, 100_000_000/memory.PageSize*memory.PageSize, s.options.CacheBytes)
	require.EqualValues(t, 50_000_001/memory.PageSize*memory.PageSize, s.options.IOBytes)
	require.NoError(t, s.Close())
}

func TestDefaultSizesFollowTheMemoryOfTheControlGroup(t *testing.T) {
	t.Parallel()
	for _, limit := range []int64{64 << 20, 512 << 20, 1 << 30, 64 << 30} {
		o := Options{Dir: "d"}
		o.defaultsWithin(limit)
		sum := o.CacheBytes + o.IOBytes + o.CatalogCacheBytes + o.CallBytes + o.WriterBytes
		assert.LessOrEqual(t, sum, limit/8*5, "%d", limit)
		require.NoError(t, o.validate(), "%d", limit)
	}
	o := Options{Dir: "d", CacheBytes: 1 << 30, IOBytes: 2 << 30}
	o.defaultsWithin(512 << 20)
	assert.EqualValues(t, 1<<30, o.CacheBytes, "what is said is kept")
	assert.EqualValues(t, 2<<30, o.IOBytes)
}
