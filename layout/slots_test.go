package layout

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// What a block takes of an index's room: the slots it has of a page that it shares, and else its whole pages.
func TestSlotsOf(t *testing.T) {
	t.Parallel()
	require.Equal(t, 1, SlotsOf(1, 1))
	require.Equal(t, 2, SlotsOf(1, SlotSize+1))
	require.Equal(t, 7, SlotsOf(1, MaxPacked))
	require.Equal(t, SlotsPerPage, SlotsOf(1, MaxPacked+1), "it has the page for itself")
	require.Equal(t, 3*SlotsPerPage, SlotsOf(3, 100), "its parts are padded each")
	require.Equal(t, int64(3*SlotSize), SlotBytes(3))
	require.Equal(t, int64(2), SlotPages(SlotsPerPage+1))
}
