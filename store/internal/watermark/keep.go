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
	last, told := time.Now(), false
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
		err := advance(ctx)
		if err != nil && !told && ctx.Err() == nil { // once: it is tried again all the time
			log.Warn("flush failed", "error", err)
		}
		told = err != nil
		last = time.Now()
	}
}
