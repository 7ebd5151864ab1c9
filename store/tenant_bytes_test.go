package store

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
)

// Shares are replaced as a whole while the store is open; one that would be refused at an open changes nothing.
func TestSharesAreReplaced(t *testing.T) {
	t.Parallel()
	o := small(tempRoot(t, "store"))
	o.TenantBytes = map[string]int64{"a": 1 << 20, "b": 2 << 20}
	s := openTest(t, o)
	shares := func() map[string]int64 {
		st, err := s.Stats(t.Context())
		require.NoError(t, err)
		out := map[string]int64{}
		for _, x := range st.Tenants {
			if x.ShareBytes > 0 {
				out[x.Name] = x.ShareBytes
			}
		}
		return out
	}
	require.Equal(t, o.TenantBytes, shares())
	next := map[string]int64{"b": 3 << 20, "c": 4 << 20}
	require.NoError(t, s.SetTenantBytes(next))
	assert.Equal(t, next, shares())
	assert.ErrorIs(t, s.SetTenantBytes(map[string]int64{"a": 1, "b": -1}), skep.Invalid)
	assert.Equal(t, next, shares())
}

// flooded has tenant a put .8 MB of 12 MiB, once, so many blocks at a time, and tenant b meanwhile four times what the
// store holds. declined says how many blocks of b were, and why.
func flooded(t *testing.T, shares map[string]int64, copies, each int) (
	s *Store, a skep.Scope, keys []skep.Key, declined map[skep.Kind]int,
) {
	o := small(tempRoot(t, "store"))
	o.CapacityBytes, o.CacheBytes, o.TenantBytes, o.SpaceTimeout = 12<<20, -1, shares, hangs/4
	unjudged(&o) // a drive that is found hung takes its room along
	s = openTest(t, o)
	open := func(tenant string) skep.Scope {
		spec := skep.NamespaceSpec{Tenant: tenant, Name: "n", Shape: anySize, Class: skep.Cache, Copies: copies}
		info, err := s.OpenNamespace(t.Context(), spec)
		require.NoError(t, err)
		return skep.Scope{Namespace: info.ID}
	}
	a, b := open("a"), open("b")
	keys, declined = chainKeys(1, 100), map[skep.Kind]int{}
	for i := range 4 * (12 << 20) / copies / 8000 / 50 {
		if n := i * each; n < len(keys) {
			putRun(t, s, a, keys[n:min(n+each, len(keys))], 8000)
		}
		for _, res := range putRun(t, s, b, chainKeys(1000+i, 50), 8000) {
			if res.Outcome != skep.Committed {
				declined[res.Reason]++
			}
		}
	}
	return s, a, keys, declined
}

// A tenant within its share keeps its blocks, though nobody has used them, as long as others are over theirs, or have
// none. What that costs is bounded: what is kept is moved out of the way once, and not again with every round.
func TestATenantWithinItsShareKeepsItsBlocks(t *testing.T) {
	t.Parallel()
	for name, shares := range map[string]map[string]int64{
		"the other is over its own": {"a": 4 << 20, "b": 4 << 20},
		"the other has none":        {"a": 4 << 20},
	} {
		for _, c := range []struct{ copies, each int }{{1, 100}, {1, 1}, {2, 100}, {2, 2}} {
			t.Run(fmt.Sprintf("%s, %d copies, put by %d", name, c.copies, c.each), func(t *testing.T) {
				t.Parallel()
				s, a, keys, declined := flooded(t, shares, c.copies, c.each)
				require.Empty(t, declined)
				there, why := requireRight(t, s, a, keys, 8000)
				assert.Equal(t, len(keys), there, why)
				st, err := s.Stats(t.Context())
				require.NoError(t, err)
				require.Positive(t, st.Evicted, "there was no room for all")
				require.Less(t, float64(st.MovedBytes), .1*float64(st.PutBytes))
			})
		}
	}
}

// Shares refuse nothing: of those that come to more than the store holds something goes.
func TestSharesOfMoreThanThereIsRefuseNoPut(t *testing.T) {
	t.Parallel()
	for copies := 1; copies <= 2; copies++ {
		_, _, _, declined := flooded(t, map[string]int64{"a": 1 << 30, "b": 1 << 30}, copies, 1)
		require.Empty(t, declined, copies)
	}
}
