package device

import (
	"time"

	"golang.org/x/sys/unix"
)

// Pause waits for d by the system's clock, to within about 0.1 ms; it takes a thread meanwhile. The runtime's own
// timers are up to 1 ms late in a process that has nothing else to do, which a simulation of something faster
// does not bear.
func Pause(d time.Duration) {
	for until := time.Now().Add(d); d > 0; d = time.Until(until) { // a signal ends it early
		t := unix.NsecToTimespec(int64(d))
		_ = unix.Nanosleep(&t, nil)
	}
}
