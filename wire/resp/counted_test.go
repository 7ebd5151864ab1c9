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
	asked := f.asked
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
}

// asked is how many lookups, keys and hits the store has counted.
func (f *fixture) asked() [3]int64 {
	s, err := f.store.Stats(f.t.Context())
	require.NoError(f.t, err)
	return [3]int64{s.Lookups, s.LookupKeys, s.LookupHits}
}

// A reader's question is one lookup a key, however large the value, whether it is asked with others or read in pieces.
func TestAReadersKeyIsOneLookup(t *testing.T) {
	t.Parallel()
	f := serve(t, nil, Options{})
	c := f.dial()
	c.do("SET", "small", "v")
	c.do("SET", "large", strings.Repeat("x", 3*pieceBytes+1))
	for _, ask := range []struct {
		command    string
		keys, hits int64
	}{
		{"GET small", 1, 1}, {"GET large", 1, 1}, {"GET none", 1, 0}, {"STRLEN large", 1, 1},
		{"EXISTS large", 1, 1}, {"EXISTS small large none", 3, 2}, {"TTL large", 1, 1},
		{"MGET small large none", 3, 2}, {"MGET none also-none", 2, 0}, {"MGET small", 1, 1},
	} {
		before := f.asked()
		c.do(strings.Fields(ask.command)...)
		after := f.asked()
		require.Equal(t, [3]int64{ask.keys, ask.keys, ask.hits},
			[3]int64{after[0] - before[0], after[1] - before[1], after[2] - before[2]}, ask.command)
	}
}
