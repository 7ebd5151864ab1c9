package catalogdir

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
)

// catalogIn makes a directory look as one with a catalog.
func catalogIn(t *testing.T, dir string) string {
	t.Helper()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "MANIFEST-000001"), nil, 0o600))
	return dir
}

// A store's directory remembers where its catalog is, and forgets it when the catalog is in it again.
func TestADirectoryRemembersItsCatalog(t *testing.T) {
	t.Parallel()
	dir, fast := t.TempDir(), catalogIn(t, t.TempDir())
	usual := filepath.Join(dir, "catalog")
	is := func(want string, wantNamed bool) {
		t.Helper()
		at, named, err := Of(dir)
		require.NoError(t, err)
		require.Equal(t, want, at)
		require.Equal(t, wantNamed, named)
	}
	is(usual, false)
	require.NoError(t, remember(dir, usual))
	is(usual, false)
	for range 2 {
		require.NoError(t, remember(dir, fast))
		is(fast, true)
	}
	moved := filepath.Join(t.TempDir(), "moved")
	require.NoError(t, os.Rename(dir, moved))
	at, _, err := Of(moved)
	require.NoError(t, err, "moved, it is the same directory")
	require.Equal(t, fast, at)
	require.NoError(t, os.Rename(moved, dir))
	require.NoError(t, remember(dir, usual))
	is(usual, false)
	there, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, there)
}

// What does not lead to a catalog of this store's is refused, with what to do.
func TestWhatLeadsToNoCatalog(t *testing.T) {
	t.Parallel()
	dir, twin, fast := t.TempDir(), t.TempDir(), filepath.Join(t.TempDir(), "catalog")
	refused := func(dir string, kind skep.Kind) {
		t.Helper()
		_, named, err := Of(dir)
		require.ErrorIs(t, err, kind)
		require.ErrorContains(t, err, "--catalog-dir")
		require.False(t, named)
	}
	require.NoError(t, remember(dir, fast))
	refused(dir, skep.Missing)
	require.NoError(t, os.Mkdir(fast, 0o700))
	refused(dir, skep.Missing)
	catalogIn(t, fast)
	_, _, err := Of(dir)
	require.NoError(t, err)
	b, err := os.ReadFile(filepath.Join(dir, file))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(twin, file), b, 0o600))
	refused(twin, skep.Foreign)
	for _, text := range []string{"", "{}", `{"catalog":"here"}`, "null", string(b[:len(b)-1])} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600))
		refused(dir, skep.Damaged)
	}
	require.NoError(t, os.Remove(filepath.Join(dir, file)))
	require.NoError(t, os.Mkdir(filepath.Join(dir, file), 0o700))
	refused(dir, skep.Other)
}

// What a crash left of writing the file goes at the next open, whether the catalog is named then or not, and nothing
// else does.
func TestWhatACrashLeftIsRemoved(t *testing.T) {
	t.Parallel()
	for _, at := range []string{"", filepath.Join(t.TempDir(), "catalog")} {
		dir := t.TempDir()
		mine := []string{file + ".bak", file + ".", "other.json.12"}
		for _, name := range append([]string{file + ".8123", file + ".1"}, mine...) {
			require.NoError(t, os.WriteFile(filepath.Join(dir, name), nil, 0o600))
		}
		Remember(vfs.Default, dir, at, slog.New(slog.DiscardHandler))
		list, err := os.ReadDir(dir)
		require.NoError(t, err)
		var left []string
		for _, f := range list {
			if f.Name() != file {
				left = append(left, f.Name())
			}
		}
		require.ElementsMatch(t, mine, left)
	}
}
