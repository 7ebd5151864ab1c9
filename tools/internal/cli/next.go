package cli

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/tools/internal/trace"
)

// fieldError lets an error of another package say its field, value and limit.
type fieldError interface {
	error
	fields() (field, value, limit string)
}

// traceError is a damaged trace, with its place as the field.
type traceError struct{ *trace.FormatError }

func (e traceError) fields() (string, string, string) {
	return fmt.Sprintf("%s:%d: %s", e.Name, e.Line, e.Field), e.Value, e.Limit
}

func (e traceError) Unwrap() error { return e.FormatError }

// asTrace makes the errors of package trace show their fields.
func asTrace(err error) error {
	var f *trace.FormatError
	if errors.As(err, &f) {
		return traceError{f}
	}
	return err
}

// hint is an error that knows what to do next.
type hint struct {
	error
	next string
}

func (h *hint) Unwrap() error { return h.error }

func withNext(err error, next string) error {
	if err == nil {
		return nil
	}
	return &hint{err, next}
}

// isPlain says that err is a bare errors.New or fmt.Errorf without a cause.
func isPlain(err error) bool {
	s := fmt.Sprintf("%T", err)
	return strings.HasSuffix(s, "errorString") || strings.HasSuffix(s, "fmt.wrapError")
}

// nextStep is what a user can do about err; "" when only they can know.
func nextStep(err error) string {
	var h *hint
	var u *usageError
	var t traceError
	switch {
	case errors.As(err, &h):
		return h.next
	case errors.As(err, &u):
		return u.next
	case errors.As(err, &t):
		return "nothing was replayed past this place; mend or re-download the file, nothing in it is skipped"
	}
	switch skep.KindOf(err) {
	case skep.Invalid:
		return "give a value inside the limit; --help shows the defaults"
	case skep.Locked:
		return "end the process that has the store open, or look at it with skep inspect, which needs no lock"
	case skep.Foreign:
		return "choose another --dir, or remove what is in the way if nothing on it is needed"
	case skep.Missing:
		return "bring the device or file back to its place; skep inspect devices --dir D lists what the store expects"
	case skep.NotFound:
		return "check --dir: a store has a catalog/ in it; skep replay or skep demo make one"
	case skep.Version:
		return "use the skep that wrote it, or a newer one"
	case skep.Damaged:
		return "keep the directory as it is; skep inspect groups --dir D shows what can still be read"
	case skep.Full:
		return "free space on the file system, or give --capacity-blocks a cap that fits"
	case skep.NoMemory:
		return "close other programs or give smaller blocks; skep doctor shows the limits"
	case skep.Conflict:
		return "use another --dir, or the block size the store was made with"
	case skep.Failed, skep.DeviceFailed:
		return "see the kernel log for the drive's errors, then skep doctor --dir D"
	}
	if errors.Is(err, os.ErrNotExist) {
		return "check the path"
	}
	if errors.Is(err, os.ErrPermission) {
		return "check who owns the path, or run as that user"
	}
	return ""
}
