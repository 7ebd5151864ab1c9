package restore

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/index"
	"github.com/skepkv/skep/store/memory"
)

// What was read of a block that has been put over meanwhile is never in the DRAM tier, not for a moment: a restore that
// began after the put was acknowledged would take it from there. It does not push anything else out, either.
func TestWhatIsOutOfDateIsNeverCached(t *testing.T) {
	t.Parallel()
	const all = 1 << 20 // of the tier
	old, now, block := uint64(1<<40), uint64(2<<40), index.Fingerprint{1}
	rs := cached(t, all, index.Fingerprint{2})
	var err error
	rs.Index, err = index.New(index.Config{})
	require.NoError(t, err)
	_, _, err = rs.Index.Replace(index.Entry{FP: block, Location: now, Pages: 1, Namespace: 1, Opaque: true})
	require.NoError(t, err)

	admit := func(loc uint64) {
		b, err := rs.Arena.TryAlloc(4096, memory.BudgetIO)
		require.NoError(t, err)
		rs.admit(block, loc, skep.PartKV, 4096, []*memory.Buffer{b})
		b.Release() // the reader's
	}
	id, other := memory.IDOf(block, skep.PartKV), memory.IDOf(index.Fingerprint{2}, skep.PartKV)
	admit(old)
	require.False(t, rs.Cache.Has(id))
	require.True(t, rs.Cache.Has(other), "it was in the tier, which had no room for both")
	admit(now)
	require.True(t, rs.Cache.Has(id))
	require.False(t, rs.Cache.Has(other))
}
