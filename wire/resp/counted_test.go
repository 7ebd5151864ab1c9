package resp

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Lookups are what readers ask: SET, EXPIRE and DEL look for what they replace and are none, whether the key is there or
// not. So the hit ratio of a cache that is only written stays what its readers had.
func TestWhoSetsAsksNothing(t *testing.T) {
	t.Parallel()
	f := serve(t, nil, Options{})
	c := f.dial()
	asked := func() [3]int64 {
		s, err := f.store.Stats(t.Context())
		require.NoError(t, err)
		return [3]int64{s.Lookups, s.LookupKeys, s.LookupHits}
	}
	large := strings.Repeat("x", pieceBytes+1)
	for _, set := range [][]string{
		{"SET", "k", "v"}, {"SET", "k", "w"}, {"SET", "k", large}, {"SET", "k", large, "KEEPTTL"}, {"SET", "k", "v", "XX"},
		{"MSET", "a", "1", "b", "2"},
	} {
		require.Equal(t, "+OK", c.do(set...))
	}
	require.Equal(t, "1", c.do("EXPIRE", "k", "60"))
	require.Equal(t, "2", c.do("DEL", "a", "b"))
	require.Equal(t, [3]int64{}, asked())

	require.Equal(t, `"v"`, c.do("GET", "k"))
	require.Equal(t, "nil", c.do("GET", "none"))
	require.Equal(t, [3]int64{2, 2, 1}, asked())
	require.Equal(t, "1", c.do("EXISTS", "k"))
	require.Greater(t, asked()[0], int64(2), "a reader's question")
}
