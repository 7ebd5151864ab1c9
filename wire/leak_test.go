package wire

import (
	"os"
	"runtime"
	"testing"
	"time"
)

// descriptors counts the open descriptors of the process; 0 where that cannot be told.
func descriptors(t testing.TB) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return 0
	}
	return len(list)
}

// settled is the number of goroutines once it has stopped falling: no fewer than there are when
// nothing is under way.
func settled(t testing.TB) int {
	t.Helper()
	n := runtime.NumGoroutine()
	for same := 0; same < 20; {
		time.Sleep(10 * time.Millisecond)
		if now := runtime.NumGoroutine(); now < n {
			n, same = now, 0
		} else {
			same++
		}
	}
	return n
}
