//go:build unix

package serve

import (
	"os"

	"golang.org/x/sys/unix"
)

// narrow gives a socket that is not bound yet a mode, which the file has from its bind on, less the umask. Only Linux
// knows that.
func narrow(fd uintptr, mode os.FileMode) { _ = unix.Fchmod(int(fd), uint32(mode)) }

// raiseLimit has the process have as many descriptors as it may, and says how many that are. The runtime does
// so by itself, but not where the soft limit was lowered on purpose.
func raiseLimit() int {
	var l unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &l) != nil {
		return 1024
	}
	if l.Cur < l.Max {
		raised := l
		raised.Cur = raised.Max
		if unix.Setrlimit(unix.RLIMIT_NOFILE, &raised) == nil {
			l = raised
		}
	}
	return int(min(uint64(l.Cur), 1<<20))
}
