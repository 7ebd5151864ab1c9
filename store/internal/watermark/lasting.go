package watermark

import (
	"log/slog"
	"time"
)

// Lasting is time over restarts. Promises end with the process and go by Clock, which is steady and knows no restart.
// What is kept with a time of its own, such as a Redis key's time to live, goes by Lasting: it begins at what the
// machine's clock says at an open, or at the latest time the store knew before, whichever is later, and goes on
// steadily. So what has expired once stays expired, however the machine's clock is set, running or not.
type Lasting struct {
	Clock func() time.Time
	lead  time.Duration // before Clock
	noted time.Time     // see Note
}

// Now is the time by which what is kept expires: it never goes back, over restarts neither.
func (l *Lasting) Now() time.Time { return l.Clock().Add(l.lead).Round(0) }

// Millis is Now as the root row keeps it.
func (l *Lasting) Millis() uint64 { return uint64(max(l.Now().UnixMilli(), 0)) }

// Begin has Lasting begin where the machine's clock is, wall, or at ms if that is later. It precedes all but Now.
func (l *Lasting) Begin(wall time.Time, ms uint64, log *slog.Logger) {
	// Compared by what they show: both may carry a monotonic reading.
	l.lead = wall.Round(0).Sub(l.Clock().Round(0))
	known := time.UnixMilli(int64(min(ms, 1<<53)))
	if behind := known.Sub(wall.Round(0)); behind > 0 {
		l.lead += behind
		if behind > time.Second {
			log.Warn("the machine's clock is behind the latest time this store knew: what expires goes by the later",
				"clock", wall, "known", known, "behind", behind)
		}
	}
}

// NotedEvery is how often an idle store notes the time.
const NotedEvery = time.Minute

// Note has save keep the time when that was not done for a while. One goroutine calls it.
func (l *Lasting) Note(save func() error) {
	if now := l.Clock(); now.Sub(l.noted) >= NotedEvery && save() == nil {
		l.noted = now
	}
}
