package intents

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/catalog"
	"github.com/skepkv/skep/store/internal/watermark"
	"github.com/skepkv/skep/store/segment"
)

// What could not be carried out comes back, and until it does somebody is at it.
func TestIntentsComeBack(t *testing.T) {
	t.Parallel()
	l := New(watermark.New(func() catalog.StoreState { return catalog.StoreState{} }))
	require.True(t, l.None())
	l.Add(catalog.Intent{Number: 1}, catalog.Intent{Number: 2})
	require.False(t, l.None())
	require.False(t, l.Underway())

	list := l.Take()
	require.Len(t, list, 2)
	require.Empty(t, l.Take(), "the first has them all")
	require.True(t, l.Tried())
	require.True(t, l.Underway())
	require.False(t, l.None(), "they are not carried out before whoever took them says so")
	l.Add(list[1:]...)
	require.False(t, l.Tried())
	require.False(t, l.Underway())

	require.Equal(t, list[1:], l.Take())
	require.True(t, l.Tried())
	require.True(t, l.None())
}

// Tombstones fit the pages that a log has: few to an append where segments are small.
func TestTombstonesOfSmallSegments(t *testing.T) {
	t.Parallel()
	list := make([]segment.Tombstone, 201)
	for segmentPages, want := range map[int64]int{63: 5, 64: 2} {
		parts, err := Tombstones(segmentPages*layout.PageSize, list)
		require.NoError(t, err)
		require.Len(t, parts, want)
	}
}
