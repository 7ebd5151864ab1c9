//go:build unix

package bench

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// processCPU is the CPU time of this process so far, in seconds, kernel included.
func processCPU() float64 {
	var u unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return float64(u.Utime.Nano()+u.Stime.Nano()) / 1e9
}

// hugeMemory maps n bytes off the Go heap, in huge pages where the kernel gives them.
func hugeMemory(n int64) ([]byte, func(), error) {
	const huge = 2 << 20
	n = (n + huge - 1) &^ (huge - 1)
	m, err := unix.Mmap(-1, 0, int(n), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, nil, fmt.Errorf("map %d bytes: %w", n, err)
	}
	wantHuge(m)
	for i := 0; i < len(m); i += 4096 {
		m[i] = 1 // touched now, not while it is timed
	}
	return m, func() { unix.Munmap(m) }, nil
}

// syncAll writes everything out that the system holds for later.
func syncAll() { unix.Sync() }
