package store

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
)

// A lease of keys that stand alone counts with the bytes of all of them.
func TestLeasedBytesOfManyKeys(t *testing.T) {
	t.Parallel()
	const size, n = 8 << 10, 20
	s := openTest(t, small(t.TempDir()))
	sc := openSpace(t, s, "n", skep.Cache, 1, false)
	keys := chainKeys(1, n)
	requireOutcome(t, skep.Committed, putRun(t, s, sc, keys, size))
	r, err := s.Lookup(testContext(t), &skep.LookupRequest{Scope: sc, Keys: keys, Lease: skep.MaxLease})
	require.NoError(t, err)
	require.Equal(t, n, r.Blocks)
	require.EqualValues(t, n*size, statsOf(t, s).LeasedBytes)
}
