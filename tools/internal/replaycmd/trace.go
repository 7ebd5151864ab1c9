package replaycmd

import (
	"errors"
	"fmt"

	"github.com/skepkv/skep/tools/internal/command"
	"github.com/skepkv/skep/tools/internal/trace"
)

// traceError is a damaged trace, with its place as the field.
type traceError struct{ *trace.FormatError }

func (e traceError) Place() (string, string, string) {
	return fmt.Sprintf("%s:%d: %s", e.Name, e.Line, e.Field), e.Value, e.Limit
}

func (e traceError) Unwrap() error { return e.FormatError }

// AsTrace makes the errors of package trace show their fields.
func AsTrace(err error) error {
	var f *trace.FormatError
	if errors.As(err, &f) {
		return command.WithNext(traceError{f}, "nothing was read past this place; mend or re-download the file, nothing in it is skipped")
	}
	return err
}
