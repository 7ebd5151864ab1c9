//go:build iouring && linux

package device

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

const refusedEnv = "SKEP_TEST_ENTER_REFUSED"

// The kernel permits io_uring_setup and refuses io_uring_enter, in a process of its own, by a seccomp filter
// as containers have them.
func TestEnterRefused(t *testing.T) {
	t.Parallel()
	if v := os.Getenv(refusedEnv); v != "" {
		n, err := strconv.Atoi(v)
		require.NoError(t, err)
		withEnterRefused(t, unix.Errno(n))
		return
	}
	probe, err := Create(filepath.Join(t.TempDir(), "d"), Align, Options{Backend: IOUring})
	if errors.Is(err, ErrUnavailable) {
		t.Skip(err)
	}
	require.NoError(t, err)
	require.NoError(t, probe.Close())
	for _, errno := range []unix.Errno{unix.EPERM, unix.ENOSYS, unix.ENOMEM} {
		t.Run(errno.Error(), func(t *testing.T) {
			t.Parallel()
			c := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestEnterRefused$", "-test.v")
			c.Env = append(os.Environ(), refusedEnv+"="+strconv.Itoa(int(errno)))
			out, err := c.CombinedOutput()
			require.NoError(t, err, string(out))
			if strings.Contains(string(out), "--- SKIP") {
				t.Skip(string(out))
			}
			assert.Contains(t, string(out), "--- PASS: TestEnterRefused", "it ran")
		})
	}
}

func withEnterRefused(t *testing.T, errno unix.Errno) {
	refuseEnter(t, errno)
	dir := t.TempDir()
	d, err := Create(filepath.Join(dir, "auto"), 4*Align, Options{})
	require.NoError(t, err)
	assert.Equal(t, Pool, d.Info().Backend)
	assert.Contains(t, d.Info().Reason, "io_uring_enter")
	assert.Contains(t, d.Info().Reason, errno.Error())
	require.NoError(t, Run(context.Background(), d, &Op{Kind: Write, Bufs: [][]byte{AlignedBuffer(Align)}}))
	require.NoError(t, d.Close())

	_, err = Create(filepath.Join(dir, "asked"), 4*Align, Options{Backend: IOUring})
	require.ErrorIs(t, err, ErrUnavailable)
	require.ErrorIs(t, err, errno)
	assert.NoFileExists(t, filepath.Join(dir, "asked"))
}

// refuseEnter has the kernel answer io_uring_enter with errno, in every thread of this process.
func refuseEnter(t *testing.T, errno unix.Errno) {
	const (
		retErrno, retAllow     = 0x00050000, 0x7fff0000
		setFilter, syncThreads = 1, 1
	)
	filter := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 0}, // the number of the system call
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jt: 0, Jf: 1, K: unix.SYS_IO_URING_ENTER},
		{Code: unix.BPF_RET | unix.BPF_K, K: retErrno | uint32(errno)},
		{Code: unix.BPF_RET | unix.BPF_K, K: retAllow},
	}
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	runtime.LockOSThread() // the filter's flag has all others follow this thread
	defer runtime.UnlockOSThread()
	require.NoError(t, unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
	_, _, failed := unix.Syscall(unix.SYS_SECCOMP, setFilter, syncThreads, uintptr(unsafe.Pointer(&program)))
	if failed != 0 {
		t.Skipf("no seccomp filter here: %v", failed)
	}
}
