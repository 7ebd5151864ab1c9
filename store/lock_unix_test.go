//go:build unix

package store

import (
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// A process that was forked has the lock's file open for as long as it has not started its program: a store that is
// closed meanwhile can be opened again.
func TestAClosedStoreIsFreeThoughAForkedProcessHasItsLock(t *testing.T) {
	t.Parallel()
	s, _, o := openRig(t, nil)
	inherited, err := syscall.Dup(int(s.lock.f.Fd())) // what fork does to every descriptor
	require.NoError(t, err)
	defer syscall.Close(inherited)
	require.NoError(t, s.Close())
	again, err := Open(testContext(t), o)
	require.NoError(t, err)
	require.NoError(t, again.Close())
}
