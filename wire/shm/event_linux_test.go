package shm

import (
	"encoding/binary"
	"math"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/skepkv/skep"
)

func eventfd(t *testing.T, flags int) int {
	t.Helper()
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|flags)
	require.NoError(t, err)
	return fd
}

// count takes what the eventfd counts, or 0.
func count(t *testing.T, fd int) uint64 {
	t.Helper()
	var b [8]byte
	unix.SetNonblock(fd, true)
	if _, err := unix.Read(fd, b[:]); err != nil {
		require.ErrorIs(t, err, unix.EAGAIN)
		return 0
	}
	return binary.NativeEndian.Uint64(b[:])
}

func TestSignalCountsOnAnEventfdOfAnother(t *testing.T) {
	t.Parallel()
	fd := eventfd(t, unix.EFD_NONBLOCK)
	defer unix.Close(fd)
	theirs, err := unix.Dup(fd)
	require.NoError(t, err)
	e, err := OpenEvent(theirs)
	require.NoError(t, err)
	for range 3 {
		e.Signal()
	}
	require.EqualValues(t, 3, count(t, fd))
	require.NoError(t, e.Close())
	e.Signal() // over: nobody's
	require.Zero(t, count(t, fd))
}

// Whoever made the eventfd clears O_NONBLOCK, fills the counter up again and again, between any two system calls of a
// signal, and never makes room: no signal waits.
func TestSignalDoesNotWaitForWhoMadeTheEventfd(t *testing.T) {
	t.Parallel()
	fd := eventfd(t, 0)
	defer unix.Close(fd)
	theirs, err := unix.Dup(fd)
	require.NoError(t, err)
	e, err := OpenEvent(theirs)
	require.NoError(t, err)
	defer e.Close()
	var signals atomic.Int64
	var over atomic.Bool
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for !over.Load() {
			e.Signal()
			signals.Add(1)
		}
	}()
	full := binary.NativeEndian.AppendUint64(nil, math.MaxUint64-1)
	defer func() {
		over.Store(true)
		for waits := true; waits; {
			select {
			case <-ended:
				waits = false
			default:
				count(t, fd) // lets go who waits
			}
		}
	}()
	for range 300 {
		count(t, fd)
		_, err := unix.Write(fd, full) // not blocking: count has set that
		if err != nil {
			require.ErrorIs(t, err, unix.EAGAIN) // a signal came before
		}
		require.NoError(t, unix.SetNonblock(fd, false))
		seen := signals.Load()
		require.Eventually(t, func() bool { return signals.Load() > seen+1 }, 10*time.Second, 50*time.Microsecond, "a signal waits")
	}
	unix.SetNonblock(fd, true)
}

// A full counter wakes who waits all the same.
func TestSignalOfAFullCounter(t *testing.T) {
	t.Parallel()
	fd := eventfd(t, unix.EFD_NONBLOCK)
	defer unix.Close(fd)
	theirs, err := unix.Dup(fd)
	require.NoError(t, err)
	e, err := OpenEvent(theirs)
	require.NoError(t, err)
	defer e.Close()
	_, err = unix.Write(fd, binary.NativeEndian.AppendUint64(nil, math.MaxUint64-1))
	require.NoError(t, err)
	e.Signal()
	e.Signal()
	p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	n, err := unix.Poll(p, 0)
	require.NoError(t, err)
	require.Equal(t, 1, n)
}

func TestOpenEventRefusesWhatIsNoEventfd(t *testing.T) {
	t.Parallel()
	named, err := os.Create(t.TempDir() + "/anon_inode:[eventfd]")
	require.NoError(t, err)
	defer named.Close()
	var pipe [2]int
	require.NoError(t, unix.Pipe2(pipe[:], unix.O_CLOEXEC))
	defer unix.Close(pipe[0])
	defer unix.Close(pipe[1])
	memfd, err := unix.MemfdCreate("anon_inode:[eventfd]", unix.MFD_CLOEXEC)
	require.NoError(t, err)
	defer unix.Close(memfd)
	for _, fd := range []int{int(named.Fd()), pipe[1], memfd, 1 << 20} {
		_, err := OpenEvent(fd)
		require.ErrorIs(t, err, skep.Invalid)
	}
}
