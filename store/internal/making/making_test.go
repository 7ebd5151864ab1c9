package making

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// A making that was cut off is undone: the empty files that it listed go. Where a device file holds something nothing
// goes, and a file that it did not list stays.
func TestUndo(t *testing.T) {
	t.Parallel()
	for _, holds := range []bool{false, true} {
		dir := t.TempDir()
		l := New(dir, nil)
		there, err := l.There()
		require.NoError(t, err)
		require.False(t, there)
		old, made := filepath.Join(dir, "device-0"), filepath.Join(dir, "device-1")
		require.NoError(t, os.WriteFile(old, make([]byte, 1<<20), 0o644))
		require.NoError(t, l.Begin([]string{old, made}))
		body := make([]byte, 1<<20)
		if holds {
			body[600<<10] = 1
		}
		require.NoError(t, os.WriteFile(made, body, 0o644)) // and here it was cut off
		there, err = l.There()
		require.NoError(t, err)
		require.True(t, there)
		empty, err := l.Undo(t.Context(), []string{old, made}, slog.New(slog.DiscardHandler))
		require.NoError(t, err)
		require.Equal(t, !holds, empty)
		require.FileExists(t, old, "it was there before")
		if holds {
			require.FileExists(t, made)
		} else {
			require.NoFileExists(t, made)
		}
		require.NoError(t, l.End())
		require.NoError(t, l.End(), "it is gone")
		require.NoFileExists(t, l.Path())
	}
}

// A store whose devices are no files of it has no list.
func TestNoList(t *testing.T) {
	t.Parallel()
	var l *List
	require.NoError(t, l.Begin([]string{"x"}))
	there, err := l.There()
	require.NoError(t, err)
	require.False(t, there)
	require.NoError(t, l.End())
	require.Empty(t, l.Path())
}
