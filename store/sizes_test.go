package store

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

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
