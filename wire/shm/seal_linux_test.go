package shm

import (
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// Memory that is mapped cannot be taken away by who made it: an access past a file's end would end the process. Holes that
// its maker punches read as zero.
func TestAMappedRegionKeepsItsSize(t *testing.T) {
	t.Parallel()
	const size = 4 * pageSize
	theirs, err := Create(size)
	require.NoError(t, err)
	defer theirs.Close()
	mine, err := Open(theirs.Fd(), size)
	require.NoError(t, err)
	defer mine.Close()
	for i := range mine.Bytes() {
		mine.Bytes()[i] = 1
	}
	require.ErrorIs(t, unix.Ftruncate(theirs.Fd(), pageSize), unix.EPERM)
	require.ErrorIs(t, unix.Ftruncate(theirs.Fd(), 2*size), unix.EPERM)
	require.NoError(t, unix.Fallocate(theirs.Fd(), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, size))
	require.Equal(t, make([]byte, size), mine.Bytes())

	fd, err := unix.MemfdCreate("open", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	require.NoError(t, err)
	defer unix.Close(fd)
	require.NoError(t, unix.Ftruncate(fd, size))
	for _, seal := range []int{0, unix.F_SEAL_SHRINK, unix.F_SEAL_GROW} { // the last adds to what is there
		_, err := Open(fd, size)
		require.ErrorContains(t, err, "seals")
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seal)
		require.NoError(t, err)
	}
	r, err := Open(fd, size)
	require.NoError(t, err)
	require.NoError(t, r.Close())
}
