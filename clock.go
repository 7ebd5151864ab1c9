package skep

import "time"

// started is when this process began, by both of its clocks.
var started = time.Now()

// Steady is the time that promises go by: leases, pins, times to live and deadlines. It
// begins at what the machine's clock says when the process starts and goes on at the pace of
// its monotonic clock, in all that can be asked of it, Unix times included. So the machine's
// clock may be set, by minutes or by years, and nothing ends early and nothing late. It is
// not for people: what they read comes from the machine's clock.
func Steady() time.Time { return started.Add(time.Since(started)) }
