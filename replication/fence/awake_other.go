//go:build !linux

package fence

import "time"

var started = time.Now()

// awake is how long the process has run. The machine's sleep may be left out.
func awake() time.Duration { return time.Since(started) }
