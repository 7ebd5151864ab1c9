//go:build unix

package catalog

import (
	"os"
	"syscall"
)

// lockHolder is the process that holds the POSIX lock on a file, 0 when unknown.
func lockHolder(name string) int {
	f, err := os.OpenFile(name, os.O_RDWR, 0)
	if err != nil {
		return 0
	}
	defer f.Close()
	l := syscall.Flock_t{Type: syscall.F_WRLCK}
	if err := syscall.FcntlFlock(f.Fd(), syscall.F_GETLK, &l); err != nil || l.Type == syscall.F_UNLCK {
		return 0
	}
	return int(l.Pid)
}
