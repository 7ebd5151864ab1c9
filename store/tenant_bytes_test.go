package store

import (
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
