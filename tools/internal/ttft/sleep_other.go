//go:build !linux

package ttft

import "time"

// sleep waits for d.
func sleep(d time.Duration) { time.Sleep(d) }
