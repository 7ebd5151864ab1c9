package serve

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/memory"
	"github.com/skepkv/skep/wire"
)

func TestSizesFollowTheMemoryOfTheControlGroup(t *testing.T) {
	t.Parallel()
	dir := map[string]string{"dir": "d"}
	c, err := loadWithin(0, "", nil, dir)
	require.NoError(t, err)
	want := Default()
	assert.Equal(t, want.Store, c.Store, "no limit")
	assert.Equal(t, want.Limits, c.Limits)

	for _, limit := range []int64{128 << 20, 256 << 20, 512 << 20, 1 << 30, 4 << 30, 64 << 30, 1_000_000_001, 1500 << 20} {
		c, err := loadWithin(limit, "", nil, dir)
		require.NoError(t, err, "%d", limit)
		held := int64(c.Store.DRAMBytes + c.Store.IOBytes)
		assert.LessOrEqual(t, held, limit/8*5, "%d", limit)
		assert.LessOrEqual(t, c.Limits.MemoryBytes, c.Store.IOBytes)
		assert.Positive(t, c.Store.DRAMBytes)
		assert.Zero(t, c.Store.DRAMBytes%memory.PageSize+c.Store.IOBytes%memory.PageSize, "%d: as an arena takes them", limit)
	}

	c, err = loadWithin(512<<20, "", nil, map[string]string{"dir": "d", "store.dram_bytes": "200MiB"})
	require.NoError(t, err)
	assert.Equal(t, Size(200<<20), c.Store.DRAMBytes, "what is said is kept")
	assert.Equal(t, Size(128<<20), c.Store.IOBytes)

	for _, much := range []string{"257MiB", "1GiB", "8EiB"} {
		_, err = loadWithin(512<<20, "", nil, map[string]string{"dir": "d", "store.dram_bytes": much})
		require.ErrorIs(t, err, skep.Invalid, much)
	}
	assert.Len(t, (&Config{Store: StoreConfig{DRAMBytes: 1 << 62, IOBytes: 1 << 62}}).tooLarge(512<<20), 1,
		"no sum overflows")
	_, err = loadWithin(512<<20, "", nil, map[string]string{"dir": "d", "store.dram_bytes": "257MiB"})
	assert.ErrorContains(t, err,
		"store.dram_bytes and store.io_bytes is 257MiB and 128MiB, must be at most 384MiB together")
}

// A store that was made for small blocks holds none of a size that is said of it later: who says so is told.
func TestLargerBlocksThanAStoreWasMadeFor(t *testing.T) {
	t.Parallel()
	c := local(t)
	c.RESP, c.HTTP, c.Store.BlockBytes = None, None, 64<<10
	s := start(t, c, Options{})
	st, err := wire.Dial(t.Context(), wire.Options{Addr: "unix:" + c.Unix})
	require.NoError(t, err)
	defer st.Close()
	ns, err := skep.OpenNamespace(t.Context(), st, skep.NamespaceSpec{Tenant: "default", Name: "n",
		Shape: skep.Shape{Kind: skep.Opaque, BlockTokens: 1}})
	require.NoError(t, err)
	for i := range 80 { // some segments are full then
		res, err := ns.Put(t.Context(), []skep.Key{{1, byte(i)}}, 0, make([]byte, 256<<10))
		require.NoError(t, err)
		require.NotEqual(t, skep.Declined, res[0].Outcome)
	}
	require.NoError(t, s.stop())
	const warned = "this one was made for smaller blocks"
	for size, says := range map[Size]bool{64 << 10: false, 256 << 10: false, 798_720: false, 1 << 20: true,
		128 << 20: true} {
		c.Store.BlockBytes = size
		s := start(t, c, Options{})
		require.Equal(t, says, strings.Contains(s.log.String(), warned), "%v: %s", size, s.log)
		require.NoError(t, s.stop())
	}
}
