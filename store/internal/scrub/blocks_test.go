package scrub

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep/layout"
)

// As many blocks are read at once as memory allows, and one at a time when they are so large that two would take too
// much.
func TestReadersFor(t *testing.T) {
	t.Parallel()
	require.Equal(t, mostReaders, readersFor(1))
	require.Equal(t, 2, readersFor(mostBytes/2/layout.PageSize))
	require.Equal(t, 1, readersFor(2*mostBytes/layout.PageSize))
}
