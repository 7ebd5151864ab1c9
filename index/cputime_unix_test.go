//go:build unix

package index

import (
	"time"

	"golang.org/x/sys/unix"
)

// cpuTime is what the process has used, on a shared machine the steadier figure.
func cpuTime() time.Duration {
	var u unix.Rusage
	_ = unix.Getrusage(unix.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
