package link

import (
	"context"
	"errors"
	"io"
	"time"

	"github.com/skepkv/skep"
)

// ErrorOf is an error of a kind, and no more.
func ErrorOf(op string, k skep.Kind) error { return &skep.Error{Op: op, Kind: k} }

// Ended is the error of a call whose context is over.
func Ended(op string, ctx context.Context) error {
	return &skep.Error{Op: op, Kind: skep.Deadline, Err: context.Cause(ctx)}
}

// Gone is the error of a connection that broke.
func Gone(op string, err error) error {
	if errors.Is(err, io.EOF) {
		err = errors.New("the other side closed the connection")
	}
	return &skep.Error{Op: op, Kind: skep.Unavailable, Err: err}
}

// Overloaded refuses a call for want of something, which may be there after a time.
func Overloaded(what string, after time.Duration) error {
	return &skep.Error{Op: "server", Kind: skep.Overloaded, Field: what, RetryAfter: after}
}

var errNotUnix = &skep.Error{Op: "attach", Kind: skep.Unsupported, Field: "connection", Value: "not a Unix socket", Limit: "a Unix socket"}
