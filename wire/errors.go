package wire

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/skepkv/skep"
)

// maxErrorText is the longest text of one field of an error that travels.
const maxErrorText = 4 << 10

func clip(s string) string {
	if len(s) > maxErrorText {
		return s[:maxErrorText]
	}
	return s
}

// bodyOf is err as it travels: its kind, the field, value and limit of the outermost
// skep.Error, and the text of the cause.
func bodyOf(err error) errorBody {
	b := errorBody{Kind: skep.KindOf(err)}
	var e *skep.Error
	if !errors.As(err, &e) {
		b.Cause = clip(err.Error())
		return b
	}
	show := func(v any) string {
		if v == nil {
			return ""
		}
		return clip(fmt.Sprint(v))
	}
	b.RetryAfter, b.Op, b.Field, b.Value, b.Limit = e.RetryAfter, clip(e.Op), clip(e.Field), show(e.Value), show(e.Limit)
	if e.Err != nil {
		b.Cause = clip(e.Err.Error())
	}
	return b
}

// remoteError is the text of a cause on the other side.
type remoteError string

func (e remoteError) Error() string { return string(e) }

// err is the error that travelled.
func (b *errorBody) err() error {
	e := &skep.Error{Op: b.Op, Kind: b.Kind, Field: b.Field, RetryAfter: b.RetryAfter}
	if b.Value != "" {
		e.Value = b.Value
	}
	if b.Limit != "" {
		e.Limit = b.Limit
	}
	if b.Cause != "" {
		e.Err = remoteError(b.Cause)
	}
	return e
}

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
