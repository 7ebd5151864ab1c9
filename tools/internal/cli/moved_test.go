package cli

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep/store"
)

// What was there and was not moved is accounted for.
func TestWhatADrainDidNotMoveIsSaid(t *testing.T) {
	t.Parallel()
	p := store.Progress{Found: 751, Blocks: 680}
	require.Contains(t, movedText(p), "71 more of the 751 that were there")
	p.Evicted = 71
	require.NotContains(t, movedText(p), "more of the")
	require.NotContains(t, movedText(store.Progress{Blocks: 751}), "more of the", "of a dry run")
}
