package limits

import (
	"context"
	"time"

	"github.com/skepkv/skep"
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

// Traffic is what work in the background gives way to.
type Traffic interface {
	Restoring() bool // a drive has reads of restores under way
	Queueing() bool  // and more of them wait than a drive takes at once
}

// Pace paces work in the background. It is for one goroutine at a time. Make it with NewPace.
type Pace struct {
	b       bucket
	began   time.Time
	traffic Traffic
	closing <-chan struct{}
}

var errClosed = &skep.Error{Op: "store", Kind: skep.Closed}

// NewPace paces to rate bytes a second; 0 is as fast as the drives are idle.
func NewPace(rate int64, t Traffic, closing <-chan struct{}) *Pace {
	b := bucket{rate: float64(rate), burst: float64(rate) / 20}
	return &Pace{b: b, began: time.Now(), traffic: t, closing: closing}
}

// Piece is how many bytes are moved at a time, the way things are.
func (b *Pace) Piece() int64 {
	if b.b.rate > 0 {
		return min(fullPiece, max(64<<10, int64(b.b.rate/20)))
	}
	if b.traffic.Restoring() {
		return yieldPiece
	}
	return fullPiece
}

// Take waits until n bytes may be moved. Errors: Deadline (ctx), Closed.
func (b *Pace) Take(ctx context.Context, n int64) error {
	if err := b.Sleep(ctx, b.b.take(time.Since(b.began), n)); err != nil {
		return err
	}
	for end := time.Now().Add(yieldQueue); b.traffic.Queueing() && time.Now().Before(end); {
		if err := b.Sleep(ctx, yieldStep); err != nil {
			return err
		}
	}
	return segio.Ended(ctx, "move blocks")
}

// Rest gives restores the drives back, after a piece that took so long.
func (b *Pace) Rest(ctx context.Context, took time.Duration) error {
	if b.b.rate > 0 || !b.traffic.Restoring() {
		return nil
	}
	return b.Sleep(ctx, min(took*(yieldShare-1), yieldMax))
}

// Sleep waits for so long. Errors: as of Take.
func (b *Pace) Sleep(ctx context.Context, d time.Duration) error {
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
	case <-b.closing:
		return errClosed
	}
}
