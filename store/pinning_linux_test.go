package store

import (
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// A store takes memory as it is used, whatever it may take, and of what it has registered it says that it has it.
func TestMemoryIsTakenAsItIsUsed(t *testing.T) {
	t.Parallel()
	o := small(tempRoot(t, "store"))
	o.IOBytes, o.CacheBytes = 512<<20, 512<<20
	s := openTest(t, o)
	require.LessOrEqual(t, residentBytes(t, s.arena.Bytes()), int64(128<<20), "of a GiB, and nothing was asked for")
	idle := func() int64 {
		for _, m := range s.memoryTable() {
			if m.Name == rowPinned {
				return m.Used
			}
		}
		return -1
	}
	mem, err := s.Alloc(t.Context(), 1<<20)
	require.NoError(t, err)
	defer mem.Release()
	st, err := s.Stats(t.Context())
	require.NoError(t, err)
	if st.Backend == "iouring" {
		eventually(t, "what is registered is told", func() bool { return idle() > 32<<20 })
	}
	require.LessOrEqual(t, residentBytes(t, s.arena.Bytes()), int64(256<<20))
}

// residentBytes is how much of mem the system has given.
func residentBytes(t *testing.T, mem []byte) (n int64) {
	pages := make([]byte, len(mem)/4096)
	_, _, errno := unix.Syscall(unix.SYS_MINCORE, uintptr(unsafe.Pointer(unsafe.SliceData(mem))), uintptr(len(mem)), uintptr(unsafe.Pointer(unsafe.SliceData(pages))))
	require.Zero(t, errno)
	for _, p := range pages {
		n += int64(p&1) * 4096
	}
	return n
}
