package rebuild

import (
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/catalog"
)

// Rows that cannot be written to the new catalog end a rebuild.
func TestRowsOfARebuildThatCannotBeWritten(t *testing.T) {
	t.Parallel()
	c, err := catalog.Open("/catalog", catalog.Options{FS: vfs.NewMem()})
	require.NoError(t, err)
	require.NoError(t, c.Close())
	var w rowWriter
	w.start(c, rowMemory)
	var rows rowSet
	for i := 0; rows.bytes < rowTableBytes; i++ {
		rows.add(&w, layout.Location{Group: 1, Page: uint32(i)}.Pack(), make([]byte, 64<<10))
	}
	require.ErrorIs(t, w.done(t.Context(), 0, &rows), skep.Closed)
}
