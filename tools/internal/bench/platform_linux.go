package bench

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// directFlag opens a file past the page cache.
const directFlag = unix.O_DIRECT

// wantHuge asks for huge pages; memory is slower without them, nothing worse.
func wantHuge(m []byte) { _ = unix.Madvise(m, unix.MADV_HUGEPAGE) }

// endWithParent makes a child process end when this one does, however that happens.
func endWithParent() *syscall.SysProcAttr { return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }
