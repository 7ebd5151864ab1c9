package observe

import (
	"bytes"
	"context"
	"github.com/skepkv/skep/store/internal/locks"
	"log/slog"
)

// LogTail keeps the last lines of the store's log, for the admin socket and a support
// bundle, whatever the caller's logger does with them.
type LogTail struct {
	mu    locks.Mutex[locks.LogRing]
	lines [][]byte
	next  int
}

const (
	logLines     = 512
	logLineBytes = 2048 // what is longer is cut
	// LogTailBytes is what the lines of a log take, most of them.
	LogTailBytes = logLines * 256
)

// Write takes one line, as slog's text handler writes it.
func (r *LogTail) Write(p []byte) (int, error) {
	line := bytes.Clone(p[:min(len(p), logLineBytes)])
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.lines) < logLines {
		r.lines = append(r.lines, line)
	} else {
		r.lines[r.next] = line
	}
	r.next = (r.next + 1) % logLines
	return len(p), nil
}

// Lines are what is kept, oldest first.
func (r *LogTail) Lines() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := make([]string, 0, len(r.lines))
	for i := range r.lines {
		at := i
		if len(r.lines) == logLines {
			at = (r.next + i) % logLines
		}
		out = append(out, string(bytes.TrimRight(r.lines[at], "\n")))
	}
	return out
}

// tee hands records to two handlers.
type tee struct{ first, second slog.Handler }

func (t tee) Enabled(ctx context.Context, l slog.Level) bool {
	return t.first.Enabled(ctx, l) || t.second.Enabled(ctx, l)
}

func (t tee) Handle(ctx context.Context, r slog.Record) (err error) {
	if t.second.Enabled(ctx, r.Level) {
		err = t.second.Handle(ctx, r.Clone())
	}
	if t.first.Enabled(ctx, r.Level) {
		err = t.first.Handle(ctx, r)
	}
	return err
}

func (t tee) WithAttrs(a []slog.Attr) slog.Handler {
	return tee{t.first.WithAttrs(a), t.second.WithAttrs(a)}
}

func (t tee) WithGroup(name string) slog.Handler {
	return tee{t.first.WithGroup(name), t.second.WithGroup(name)}
}

// WithTail is a logger that also keeps its last lines, from info up.
func WithTail(l *slog.Logger) (*slog.Logger, *LogTail) {
	r := &LogTail{}
	return slog.New(tee{l.Handler(), slog.NewTextHandler(r, &slog.HandlerOptions{Level: slog.LevelInfo})}), r
}
