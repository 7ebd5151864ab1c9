package dirlock

import (
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
)

// Who may not write where a store is gets a kind that fits, and what to do.
func TestADirectoryThatCannotBeWritten(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		why  error
		kind skep.Kind
		next string
	}{
		{syscall.EROFS, skep.ReadOnly, "or open the store read-only"},
		{syscall.EACCES, skep.Denied, "run as the user that owns it"},
		{syscall.EIO, skep.Other, "input/output error"},
	} {
		err := CannotWrite("lock store", "/store/LOCK", &fs.PathError{Op: "open", Path: "/store/LOCK", Err: tt.why})
		require.Equal(t, tt.kind, skep.KindOf(err), "%v", err)
		require.ErrorContains(t, err, tt.next)
		require.ErrorIs(t, err, tt.why)
	}
	_, err := Take(filepath.Join(t.TempDir(), "none"), false)
	require.ErrorIs(t, err, fs.ErrNotExist)

	dir := t.TempDir()
	require.NoError(t, os.Chmod(dir, 0o500))
	l, err := Take(dir, false)
	if err == nil {
		require.NoError(t, l.Release())
		t.Skip("this user may write anywhere")
	}
	require.Equal(t, skep.Denied, skep.KindOf(err), "%v", err)
	_, err = Take(dir, true)
	require.NoError(t, err, "who only looks needs to write nothing")
}
