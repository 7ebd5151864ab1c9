package wire

import (
	"context"
	"errors"
	"io"
	"time"

	"github.com/skepkv/skep"
)

func errKind(op string, k skep.Kind) error { return &skep.Error{Op: op, Kind: k} }

// ended is the error of a call whose context is over.
func ended(op string, ctx context.Context) error {
	return &skep.Error{Op: op, Kind: skep.Deadline, Err: context.Cause(ctx)}
}

// gone is the error of a connection that broke.
func gone(op string, err error) error {
	if errors.Is(err, io.EOF) {
		err = errors.New("the other side closed the connection")
	}
	return &skep.Error{Op: op, Kind: skep.Unavailable, Err: err}
}

func overloaded(what string, after time.Duration) error {
	return &skep.Error{Op: "server", Kind: skep.Overloaded, Field: what, RetryAfter: after}
}

var errNotUnix = &skep.Error{Op: "attach", Kind: skep.Unsupported, Field: "connection", Value: "not a Unix socket", Limit: "a Unix socket"}
