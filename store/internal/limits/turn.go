package limits

import (
	"context"
	"time"

	"github.com/skepkv/skep"
)

// Turn is a lock that is waited for with a context, and for no longer than a time. Make it with NewTurn.
type Turn chan struct{}

// NewTurn makes a lock that nobody has.
func NewTurn() Turn { return make(Turn, 1) }

// Take waits for the lock; Give returns it. Who has it may be writing to a drive: who waited for longer than most gets
// an error of kind Deadline that names what is waited for, and Closed once closing is closed.
func (t Turn) Take(ctx context.Context, most time.Duration, closing <-chan struct{}, op, what string) error {
	select {
	case t <- struct{}{}:
		return nil
	default:
	}
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	select {
	case t <- struct{}{}:
		return nil
	case <-ctx.Done():
		return &skep.Error{Op: op, Kind: skep.Deadline, Field: what, Err: ctx.Err()}
	case <-closing:
		return &skep.Error{Op: "store", Kind: skep.Closed}
	}
}

// Give returns the lock.
func (t Turn) Give() { <-t }
