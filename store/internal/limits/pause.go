package limits

import "time"

// Pause waits for d, and says whether closing is open still.
func Pause(closing <-chan struct{}, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-closing:
		return false
	case <-t.C:
		return true
	}
}
