package serve

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
)

func TestSizesFollowTheMemoryOfTheControlGroup(t *testing.T) {
	t.Parallel()
	dir := map[string]string{"dir": "d"}
	c, err := loadWithin(0, "", nil, dir)
	require.NoError(t, err)
	want := Default()
	assert.Equal(t, want.Store, c.Store, "no limit")
	assert.Equal(t, want.Limits, c.Limits)

	for _, limit := range []int64{128 << 20, 256 << 20, 512 << 20, 1 << 30, 4 << 30, 64 << 30} {
		c, err := loadWithin(limit, "", nil, dir)
		require.NoError(t, err, "%d", limit)
		held := int64(c.Store.DRAMBytes + c.Store.IOBytes)
		assert.LessOrEqual(t, held, limit/8*5, "%d", limit)
		assert.LessOrEqual(t, c.Limits.MemoryBytes, c.Store.IOBytes)
		assert.Positive(t, c.Store.DRAMBytes)
	}

	c, err = loadWithin(512<<20, "", nil, map[string]string{"dir": "d", "store.dram_bytes": "200MiB"})
	require.NoError(t, err)
	assert.Equal(t, Size(200<<20), c.Store.DRAMBytes, "what is said is kept")
	assert.Equal(t, Size(128<<20), c.Store.IOBytes)

	for _, much := range []string{"257MiB", "1GiB", "8EiB"} {
		_, err = loadWithin(512<<20, "", nil, map[string]string{"dir": "d", "store.dram_bytes": much})
		require.ErrorIs(t, err, skep.Invalid, much)
	}
	assert.Len(t, (&Config{Store: StoreConfig{DRAMBytes: 1 << 62, IOBytes: 1 << 62}}).tooLarge(512<<20), 1, "no sum overflows")
	_, err = loadWithin(512<<20, "", nil, map[string]string{"dir": "d", "store.dram_bytes": "257MiB"})
	assert.ErrorContains(t, err, "store.dram_bytes and store.io_bytes is 257MiB and 128MiB, must be at most 384MiB together")
}
