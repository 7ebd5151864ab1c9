package store

import (
	"log/slog"
	"time"

	"github.com/skepkv/skep/store/internal/locks"
)

// seldom lets a kind of log line through now and then, and says how many it held back: a drive
// that goes bad must not fill the log's disk as well.
type seldom struct {
	mu     locks.Mutex[locks.SeldomMessages]
	from   time.Time
	passed int
	held   int64
}

// Lines let through in a span of time.
const (
	seldomLines = 5
	seldomSpan  = 10 * time.Second
)

// error logs at level Error, unless there was enough of it lately.
func (l *seldom) error(log *slog.Logger, text string, args ...any) {
	l.mu.Lock()
	now := time.Now()
	if now.Sub(l.from) > seldomSpan {
		l.from, l.passed = now, 0
	}
	if l.passed++; l.passed > seldomLines {
		l.held++
		l.mu.Unlock()
		return
	}
	held := l.held
	l.held = 0
	l.mu.Unlock()
	if held > 0 {
		args = append(args, "more_like_it", held)
	}
	log.Error(text, args...)
}
