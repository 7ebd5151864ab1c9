package fence

import (
	"time"

	"golang.org/x/sys/unix"
)

var started = time.Now()

// awake is how long the machine has run, its sleep included, which time.Since leaves out.
func awake() time.Duration {
	var t unix.Timespec
	if unix.ClockGettime(unix.CLOCK_BOOTTIME, &t) != nil {
		return time.Since(started)
	}
	return time.Duration(t.Nano())
}
