//go:build unix

package dirlock

import (
	"os"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
)

// A process that was forked has the lock's file open for as long as it has not started its program: a directory that
// is given back meanwhile can be taken again.
func TestAReleasedLockIsFreeThoughAForkedProcessHasItsFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	l, err := Take(dir, false)
	require.NoError(t, err)
	require.True(t, l.Made)
	_, err = Take(dir, false)
	require.Equal(t, skep.Locked, skep.KindOf(err), "this process has it")
	inherited, err := syscall.Dup(int(l.f.Fd())) // what fork does to every descriptor
	require.NoError(t, err)
	defer syscall.Close(inherited)
	require.NoError(t, l.Release())
	l, err = Take(dir, false)
	require.NoError(t, err)
	require.False(t, l.Made)
	require.NoError(t, l.Release())
}

// Root is told whose directory it is, before it makes files there that its owner cannot open.
func TestRootInAnothersDirectory(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	require.NoError(t, owned(dir, 1))
	require.NoError(t, owned(dir+"/none", 0))
	err := os.Chown(dir, 4242, -1)
	if err != nil {
		t.Skip("only root can give a directory away")
	}
	err = owned(dir, 0)
	require.ErrorIs(t, err, skep.Denied)
	require.ErrorContains(t, err, "sudo -u '#4242'")
	require.NoError(t, owned(dir, 4242))
	require.NoError(t, os.Chown(dir, 0, -1))
	require.NoError(t, owned(dir, 0))
}
