package store

import (
	"github.com/skepkv/skep/store/internal/locks"
	"log/slog"
	"os"
	"sync/atomic"
	"time"
)

// What a drive gives that is not what was written, and what becomes of its file: two faults
// that no operation of it fails for. The drive is judged by them.

// watchedFile is the file of a drive, which somebody may remove, move or replace while it is
// open: then what is written to it is lost when it is closed.
type watchedFile struct {
	path    string
	was     os.FileInfo
	gone    atomic.Bool
	looking atomic.Bool // a file system may take its time; the monitor does not wait for it
	looked  time.Time
}

// watchFile is nil for what is no regular file, or is not there: some tests have such devices.
func (s *Store) watchFile(d *drive) *watchedFile {
	if s.options.customDevices || d.dev.Info().Raw {
		return nil
	}
	st, err := os.Stat(d.path)
	if err != nil || !st.Mode().IsRegular() {
		return nil
	}
	return &watchedFile{path: d.path, was: st, looked: time.Now()}
}

// unlinked says whether the file is known not to be where it was; it looks again now and then.
func (f *watchedFile) unlinked(every time.Duration) bool {
	if f == nil {
		return false
	}
	if time.Since(f.looked) >= every && f.looking.CompareAndSwap(false, true) {
		f.looked = time.Now()
		go func() { // ends with the look
			defer f.looking.Store(false)
			st, err := os.Stat(f.path)
			if err == nil || os.IsNotExist(err) { // another error says nothing of the file
				f.gone.Store(err != nil || !os.SameFile(st, f.was))
			}
		}()
	}
	return f.gone.Load()
}

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
