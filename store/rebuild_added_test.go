package store

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
)

// Devices that were added have names of their own, and may lie elsewhere. A catalog that is made
// anew is made from them, too: those in the directory are found by what is on them, others because
// the catalog that was there named them.
func TestRebuildFindsDevicesThatWereAdded(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		under func(dir string) string
		lose  func(t *testing.T, o *Options, older string)
	}{
		{"in the directory, without a catalog", func(dir string) string { return filepath.Join(dir, "more") }, func(t *testing.T, o *Options, _ string) {
			require.NoError(t, os.RemoveAll(o.catalogDir()))
		}},
		{"elsewhere, with an older catalog", func(dir string) string { return dir + "-more" }, func(t *testing.T, o *Options, older string) {
			require.NoError(t, os.RemoveAll(o.catalogDir()))
			require.NoError(t, os.CopyFS(o.catalogDir(), os.DirFS(older)))
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			ctx := testContext(t)
			dir := tempRoot(t, "store")
			o := small(dir)
			s, err := Open(ctx, o)
			require.NoError(t, err)
			sc := openSpace(t, s, "n", skep.Durable, 1, true)
			require.NoError(t, s.AddDevice(ctx, NewDevice{Path: c.under(dir)}))
			first, second := chainKeys(1, 20), chainKeys(2, 20)
			requireOutcome(t, skep.Committed, putRun(t, s, sc, first, 8<<10))
			require.NoError(t, s.Close())
			older := filepath.Join(t.TempDir(), "older")
			require.NoError(t, os.CopyFS(older, os.DirFS(o.catalogDir())))
			s, err = Open(ctx, o)
			require.NoError(t, err)
			requireOutcome(t, skep.Committed, putRun(t, s, sc, second, 8<<10))
			require.NoError(t, s.Close())
			require.NoError(t, os.WriteFile(filepath.Join(dir, "notes"), []byte("somebody's"), 0o644))

			c.lose(t, &o, older)
			s, err = Open(context.Background(), o)
			require.NoError(t, err)
			requireChain(t, s, sc, first, 8<<10)
			requireChain(t, s, sc, second, 8<<10)
			require.NoError(t, s.Close())
		})
	}
}
