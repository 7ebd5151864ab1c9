package memory

import (
	"context"
	"time"

	"github.com/skepkv/skep"
)

// Scarce lets one caller at a time wait for I/O buffers while it holds some already. Whoever finds
// none gives up what it holds, hands what it has prepared to the drives, and waits here;
// otherwise many callers who each hold a part of what they need would wait for each other.
type Scarce chan struct{}

// NewScarce makes one that nobody waits at.
func NewScarce() Scarce { return make(Scarce, 1) }

// ErrScarce says that there are no I/O buffers now.
var ErrScarce = &skep.Error{Op: "I/O buffers", Kind: skep.NoMemory}

// Wait calls f when it is the caller's turn. Errors: f's, ErrScarce once timeout is over, NoMemory when ctx ends.
func (t Scarce) Wait(ctx context.Context, timeout time.Duration, f func() error) error {
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	select {
	case t <- struct{}{}:
		defer func() { <-t }()
		return f()
	case <-timer.C:
		return ErrScarce
	case <-ctx.Done():
		return &skep.Error{Op: "I/O buffers", Kind: skep.NoMemory, Err: ctx.Err()}
	}
}
