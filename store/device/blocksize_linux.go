package device

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// blockSize is the size of a block device in bytes, by BLKGETSIZE64.
func blockSize(fd int) (int64, error) {
	var n uint64
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.BLKGETSIZE64, uintptr(unsafe.Pointer(&n)))
	if errno != 0 {
		return 0, errno
	}
	return int64(n), nil
}
