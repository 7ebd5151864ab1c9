package trace

import (
	"fmt"
	"strings"

	"github.com/skepkv/skep"
)

// FormatError says what in a trace is not as it must be. It is returned for
// damaged or truncated files, for values out of range and for files that are
// larger than what is read into memory. errors.Is(err, skep.Invalid) holds.
type FormatError struct {
	Name  string // the file, or file:member inside an archive
	Line  int    // 1-based; 0 where the format has no meaningful lines
	Field string // the path of the field, e.g. requests[3].in; "line" for a whole line
	Value string // what was found, shortened
	Limit string // what is accepted
	Err   error  // cause, when there is one (e.g. io.ErrUnexpectedEOF)
}

func (e *FormatError) Error() string {
	var b strings.Builder
	b.WriteString("trace ")
	b.WriteString(e.Name)
	if e.Line > 0 {
		fmt.Fprintf(&b, ":%d", e.Line)
	}
	fmt.Fprintf(&b, ": %s is %s, want %s", e.Field, e.Value, e.Limit)
	if e.Err != nil {
		fmt.Fprintf(&b, ": %v", e.Err)
	}
	return b.String()
}

func (e *FormatError) Unwrap() error { return e.Err }

// Is makes a FormatError a skep.Invalid.
func (e *FormatError) Is(target error) bool { return target == skep.Invalid }

// maxValue is how much of an offending value an error repeats, in bytes.
const maxValue = 64

// shorten makes file content fit to print: quoted when it is not plain, cut
// to maxValue bytes.
func shorten(b []byte) string {
	if len(b) == 0 {
		return "missing"
	}
	cut := len(b) > maxValue
	if cut {
		b = b[:maxValue]
	}
	s := string(b)
	for _, r := range s {
		if r < ' ' || r > '~' {
			s = fmt.Sprintf("%q", s)
			break
		}
	}
	if cut {
		s += "…"
	}
	return s
}
