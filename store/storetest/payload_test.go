package storetest

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
)

func TestPayloadIsOfItsKeyAndPart(t *testing.T) {
	t.Parallel()
	a, b := skep.KeyOf([]byte("a")), skep.KeyOf([]byte("b"))
	require.Equal(t, Payload(a, "kv", 1000), Payload(a, "kv", 1000))
	require.Equal(t, Payload(a, "kv", 1001)[:1000], Payload(a, "kv", 1000), "a longer one begins with a shorter one")
	require.NotEqual(t, Payload(a, "kv", 16), Payload(b, "kv", 16))
	require.NotEqual(t, Payload(a, "kv", 16), Payload(a, "state", 16))
	require.Empty(t, Payload(a, "kv", 0))
}

// A block of 2 layers, 2 heads and 2 tokens of one byte, so that an offset is a place
// that can be counted by hand.
func TestLayoutCountedByHand(t *testing.T) {
	t.Parallel()
	s := skep.Shape{Kind: skep.Attention, Layers: 2, KVHeads: 2, HeadDim: 1, Element: skep.I8, BlockTokens: 2}
	require.Equal(t, 16, sizeOf(s, 0))
	off := func(s skep.Shape, layer, plane, head, token int) int {
		o, size := at(s, layer, plane, head, token)
		require.Equal(t, 1, size)
		return o
	}
	require.Equal(t, 0, off(s, 0, 0, 0, 0))
	require.Equal(t, 1, off(s, 0, 0, 0, 1), "tokens are neighbours")
	require.Equal(t, 2, off(s, 0, 0, 1, 0))
	require.Equal(t, 4, off(s, 0, 1, 0, 0), "V follows K")
	require.Equal(t, 8, off(s, 1, 0, 0, 0), "layers are apart")
	s.Order = skep.NHD
	require.Equal(t, 1, off(s, 0, 0, 1, 0), "heads are neighbours")
	require.Equal(t, 2, off(s, 0, 0, 0, 1))
	require.Equal(t, 4, off(s, 0, 1, 0, 0))
	block := []byte("0123456789abcdef")
	require.Equal(t, "4567", string(block[4:8]))
	page := []byte("....")
	fillPage(page, block, s, 0, 1, skep.HND, skep.All)
	require.Equal(t, "4657", string(page), "[token][head] became [head][token]")
	require.Equal(t, "89abcdef", string(pick(block, asked(s, skep.Range{From: 1, To: 2}, skep.All))))
}
