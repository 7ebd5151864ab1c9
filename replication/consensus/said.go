package consensus

import (
	"context"
	"log/slog"
	"strings"

	"github.com/hashicorp/go-hclog"
)

// lines gives raft's log to a slog.Logger, line by line.
type lines struct{ log *slog.Logger }

// Write implements io.Writer.
func (l lines) Write(b []byte) (int, error) {
	text := strings.TrimSpace(string(b))
	level := slog.LevelDebug // what goes as it should, and is told of in the map
	if rest, ok := strings.CutPrefix(text, "[WARN]"); ok {
		level, text = slog.LevelWarn, rest
	} else if rest, ok := strings.CutPrefix(text, "[ERROR]"); ok {
		level, text = slog.LevelError, rest
	} else if _, rest, ok := strings.Cut(text, "]"); ok {
		text = rest
	}
	l.log.Log(context.Background(), level, strings.TrimSpace(text))
	return len(b), nil
}

func hclogOf(log *slog.Logger) hclog.Logger {
	return hclog.New(&hclog.LoggerOptions{Name: "raft", Level: hclog.Debug, Output: lines{log}, DisableTime: true})
}
