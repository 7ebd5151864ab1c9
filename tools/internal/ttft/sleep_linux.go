package ttft

import (
	"time"

	"golang.org/x/sys/unix"
)

// sleep waits for d, to within about 0.1 ms. The runtime's own timers are up to 1 ms late in a process that
// has nothing else to do, which in a short prompt's few steps is seen.
func sleep(d time.Duration) {
	for until := time.Now().Add(d); d > 0; d = time.Until(until) { // a signal ends it early
		t := unix.NsecToTimespec(int64(d))
		_ = unix.Nanosleep(&t, nil)
	}
}
