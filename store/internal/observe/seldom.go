package observe

import (
	"log/slog"
	"time"

	"github.com/skepkv/skep/store/internal/locks"
)

// Seldom lets a kind of log line through now and then, and says how many it held back: a drive
// that goes bad must not fill the log's disk as well. The zero value lets lines through.
type Seldom struct {
	mu     locks.Mutex[locks.SeldomMessages]
	from   time.Time
	passed int
	held   int64
}

// Lines let through in a span of time.
const (
	SeldomLines = 5
	seldomSpan  = 10 * time.Second
)

// Error logs at level Error, unless there was enough of it lately.
func (l *Seldom) Error(log *slog.Logger, text string, args ...any) {
	l.mu.Lock()
	now := time.Now()
	if now.Sub(l.from) > seldomSpan {
		l.from, l.passed = now, 0
	}
	if l.passed++; l.passed > SeldomLines {
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
