//go:build !unix

package index

import "time"

var began = time.Now()

// cpuTime is the time that passes, where nobody says what the process has used.
func cpuTime() time.Duration { return time.Since(began) }
