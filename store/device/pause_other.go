//go:build !linux

package device

import "time"

// Pause waits for d.
func Pause(d time.Duration) { time.Sleep(d) }
