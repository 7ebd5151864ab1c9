package segio

import (
	"context"
	"errors"

	"github.com/skepkv/skep"
)

// Ended is why op was given up when its context ended: the cause, and of a kind that callers know.
func Ended(ctx context.Context, op string) error {
	err := context.Cause(ctx)
	var e *skep.Error
	if err == nil || errors.As(err, &e) {
		return err
	}
	kind := skep.Other
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		kind = skep.Deadline
	}
	return &skep.Error{Op: op, Kind: kind, Err: err}
}
