package watermark

import (
	"context"
	"log/slog"
	"time"
)

// Keep advances the watermark after so many bytes and after a while, so that little needs verifying after a crash. It
// ends once closing is closed.
func (r *Root) Keep(ctx context.Context, closing <-chan struct{}, every time.Duration, bytes int64,
	advance func(context.Context) error, log *slog.Logger,
) {
	tick := time.NewTicker(every / 4)
	defer tick.Stop()
	last := time.Now()
	for {
		select {
		case <-closing:
			return
		case <-tick.C:
		}
		n := r.Unflushed()
		if n == 0 || n < bytes && time.Since(last) < every {
			continue
		}
		if err := advance(ctx); err != nil && ctx.Err() == nil {
			log.Warn("flush failed", "error", err)
		}
		last = time.Now()
	}
}
