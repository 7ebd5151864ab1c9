package gate

import (
	"context"

	"github.com/skepkv/skep"
)

// Until is a context that also ends when the store is being closed. The caller ends it.
func Until(ctx context.Context, closing <-chan struct{}) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	go func() { // ends with cancel
		select {
		case <-closing:
			cancel()
		case <-ctx.Done():
		}
	}()
	return ctx, cancel
}

// Typed gives an error that only says that ctx ended a kind.
func Typed(ctx context.Context, op string, err *error) {
	if *err != nil && ctx.Err() != nil && skep.KindOf(*err) == skep.Other {
		*err = &skep.Error{Op: op, Kind: skep.Deadline, Err: *err}
	}
}
