package store

import (
	"context"
	"time"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/internal/health"
	"github.com/skepkv/skep/store/internal/segio"
)

// bucket is a token bucket: rate bytes a second, and burst of them at once. It has no
// clock of its own.
type bucket struct {
	rate, burst float64
	tokens      float64
	at          time.Duration
}

// take takes n tokens at the given time and says how long the caller has to wait for
// them. Rate 0 is no limit. It lends: who waits as told keeps to the rate, however large
// the pieces.
func (b *bucket) take(at time.Duration, n int64) time.Duration {
	if b.rate <= 0 {
		return 0
	}
	b.tokens = min(b.burst, b.tokens+b.rate*(at-b.at).Seconds())
	b.at = at
	b.tokens -= float64(n)
	if b.tokens >= 0 {
		return 0
	}
	return time.Duration(-b.tokens / b.rate * float64(time.Second))
}

// How background work gives way when no rate was set: while restores are under way it
// moves for a part of the time and rests for the other.
const (
	yieldPiece = 512 << 10             // moved at a time while restores are under way
	fullPiece  = 8 << 20               // and while none is
	yieldShare = 4                     // one part of the time in so many
	yieldMax   = 2 * time.Second       // longest rest
	yieldStep  = 10 * time.Millisecond // how often a drive with a long queue is looked at again
	yieldQueue = time.Second           // longest wait for one
)

// budget paces work in the background. It is for one goroutine at a time.
type budget struct {
	b     bucket
	began time.Time
	busy  func() bool // restores are under way
	deep  func() bool // and more of them wait than the drives take at once
	ended <-chan struct{}
}

// newBudget paces to rate bytes a second; 0 is as fast as the drives are idle.
func (s *Store) newBudget(rate int64) *budget {
	return &budget{b: bucket{rate: float64(rate), burst: float64(rate) / 20}, began: time.Now(),
		busy: s.restoring, deep: s.queueing, ended: s.closing}
}

// piece is how many bytes are moved at a time, the way things are.
func (b *budget) piece() int64 {
	if b.b.rate > 0 {
		return min(fullPiece, max(64<<10, int64(b.b.rate/20)))
	}
	if b.busy() {
		return yieldPiece
	}
	return fullPiece
}

// take waits until n bytes may be moved.
func (b *budget) take(ctx context.Context, n int64) error {
	if err := b.sleep(ctx, b.b.take(time.Since(b.began), n)); err != nil {
		return err
	}
	for end := time.Now().Add(yieldQueue); b.deep() && time.Now().Before(end); {
		if err := b.sleep(ctx, yieldStep); err != nil {
			return err
		}
	}
	return segio.Ended(ctx, "move blocks")
}

// rest gives restores the drives back, after a piece that took so long.
func (b *budget) rest(ctx context.Context, took time.Duration) error {
	if b.b.rate > 0 || !b.busy() {
		return nil
	}
	return b.sleep(ctx, min(took*(yieldShare-1), yieldMax))
}

func (b *budget) sleep(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return segio.Ended(ctx, "move blocks")
	case <-b.ended:
		return errClosed
	}
}

// queueing says whether reads of restores wait for a drive that has all it takes.
func (s *Store) queueing() bool {
	for _, d := range s.allDrives() {
		if d.condition() == health.Dead {
			continue
		}
		if d.reads.Waiting() > 0 {
			return true
		}
	}
	return false
}

var errNoRoom = &skep.Error{Op: "move blocks", Kind: skep.Full, Field: "free groups", Value: "none", Limit: "one beside those puts and the cleaner need"}
