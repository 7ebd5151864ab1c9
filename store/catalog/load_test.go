package catalog

import (
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout"
)

// loadRows writes a table of rows from page a to page b of a group.
func loadRows(t *testing.T, c *Catalog, group, a, b uint32, rec string) Table {
	t.Helper()
	table, err := c.WriteTable(t.Context(), int(b-a), func(i int) (layout.Location, []byte) {
		return layout.Location{Group: group, Page: a + uint32(i)}, []byte(rec)
	})
	require.NoError(t, err)
	return table
}

func blockRows(t *testing.T, c *Catalog) map[layout.Location]string {
	t.Helper()
	rows := map[layout.Location]string{}
	require.NoError(t, c.ScanBlocks(t.Context(), 1, func(_ int, l layout.Location, rec []byte) error {
		rows[l] = string(rec)
		return nil
	}))
	return rows
}

// Rows of tables are rows like others once they are taken in, and survive a crash; tables
// that were not taken in are nothing, and Empty removes them.
func TestTablesOfRows(t *testing.T) {
	t.Parallel()
	fs := vfs.NewCrashableMem()
	require.NoError(t, fs.MkdirAll("c", 0o755))
	root, err := fs.OpenDir("/")
	require.NoError(t, err)
	require.NoError(t, root.Sync())
	c, err := Open("c", Options{FS: fs})
	require.NoError(t, err)
	require.NoError(t, c.Empty(t.Context()))
	tables := []Table{loadRows(t, c, 1, 0, 1000, "a"), loadRows(t, c, 2, 0, 10, "b")}
	over := loadRows(t, c, 1, 5, 6, "newer")
	lost := loadRows(t, c, 3, 0, 10, "not taken in")
	require.NotEqual(t, lost, over)
	require.Empty(t, blockRows(t, c))
	require.NoError(t, c.Ingest(t.Context(), tables))
	require.NoError(t, c.Ingest(t.Context(), []Table{over}))
	require.Len(t, blockRows(t, c), 1010)
	after := fs.CrashClone(vfs.CrashCloneCfg{})
	require.NoError(t, c.Close())

	c, err = Open("c", Options{FS: after})
	require.NoError(t, err)
	rows := blockRows(t, c)
	require.Len(t, rows, 1010)
	require.Equal(t, "newer", rows[layout.Location{Group: 1, Page: 5}])
	require.Equal(t, "a", rows[layout.Location{Group: 1, Page: 6}])
	require.NoError(t, c.Empty(t.Context()))
	require.Empty(t, blockRows(t, c))
	names, err := after.List("c")
	require.NoError(t, err)
	for _, name := range names {
		require.NotContains(t, name, loadPrefix)
	}
	require.NoError(t, c.Ingest(t.Context(), []Table{loadRows(t, c, 1, 0, 3, "anew")}))
	require.Len(t, blockRows(t, c), 3)
	require.NoError(t, c.Close())
}

func TestTablesRefuse(t *testing.T) {
	t.Parallel()
	c, err := Open("c", Options{FS: vfs.NewMem()})
	require.NoError(t, err)
	_, err = c.WriteTable(t.Context(), 0, nil)
	require.Equal(t, skep.Invalid, skep.KindOf(err))
	_, err = c.WriteTable(t.Context(), 2, func(int) (layout.Location, []byte) { return layout.Location{Page: 1}, nil })
	require.ErrorContains(t, err, "strictly increasing")
	require.NoError(t, c.Close())
	_, err = c.WriteTable(t.Context(), 1, func(int) (layout.Location, []byte) { return layout.Location{Page: 1}, nil })
	require.Equal(t, skep.Closed, skep.KindOf(err))
	require.Equal(t, skep.Closed, skep.KindOf(c.Ingest(t.Context(), []Table{{path: "c/none"}})))
	require.Equal(t, skep.Closed, skep.KindOf(c.Empty(t.Context())))
}
