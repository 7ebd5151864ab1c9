package frames

import (
	"errors"
	"fmt"

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

// BodyOf is err as it travels: its kind, the field, value and limit of the outermost
// skep.Error, and the text of the cause.
func BodyOf(err error) ErrorBody {
	b := ErrorBody{Kind: skep.KindOf(err)}
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

// Err is the error that travelled.
func (b *ErrorBody) Err() error {
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
