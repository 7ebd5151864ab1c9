package device

import (
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"
)

var (
	// ErrInvalid marks every *ArgError.
	ErrInvalid = errors.New("device: invalid argument")

	// ErrClosed is returned by Submit and Grow after Close, and is the Err of an
	// op that Close found still waiting. It is an os.ErrClosed.
	ErrClosed = fmt.Errorf("device: %w", os.ErrClosed)

	// ErrBusy marks every *BusyError.
	ErrBusy = errors.New("device: operations still in flight")

	// ErrLocked is returned by Open when another process, or this one, has the
	// file or block device open.
	ErrLocked = errors.New("device: in use")

	// ErrUnavailable marks every *UnavailableError.
	ErrUnavailable = errors.New("device: backend unavailable")
)

// ArgError says which argument was refused. Nothing was done.
type ArgError struct {
	Op    int    // index in the submitted batch, -1 outside Submit
	Field string // as the Go field or argument is named
	Value any
	Limit any // what was asked for: a bound, or a rule in words
}

func (e *ArgError) Error() string {
	at := ""
	if e.Op >= 0 {
		at = fmt.Sprintf("op %d: ", e.Op)
	}
	return fmt.Sprintf("device: %s%s is %v, want %v", at, e.Field, e.Value, e.Limit)
}

func (e *ArgError) Is(target error) bool { return target == ErrInvalid }

// IOError is a failed transfer; Err is what the system said (a syscall.Errno,
// io.ErrUnexpectedEOF, io.ErrShortWrite).
type IOError struct {
	Path   string
	Kind   Kind
	Offset int64
	Len    int
	Err    error
}

func (e *IOError) Error() string {
	if e.Kind == Flush {
		return fmt.Sprintf("device: flush %s: %v", e.Path, e.Err)
	}
	return fmt.Sprintf("device: %s %d bytes at %d of %s: %v", e.Kind, e.Len, e.Offset, e.Path, e.Err)
}

func (e *IOError) Unwrap() error { return e.Err }

// BusyError is what Close returns when the drive did not give everything back.
type BusyError struct {
	Path     string
	InFlight int // ops whose Done is still to come
	Waited   time.Duration
}

func (e *BusyError) Error() string {
	return fmt.Sprintf("device: close %s: %d operations still in flight after %v; descriptor and buffers are kept until they complete",
		e.Path, e.InFlight, e.Waited)
}

func (e *BusyError) Is(target error) bool { return target == ErrBusy }

// UnavailableError says why a backend cannot be used here.
type UnavailableError struct {
	Backend string
	Reason  string
	Err     error // may be nil
}

func (e *UnavailableError) Error() string {
	s := fmt.Sprintf("device: backend %s: %s", e.Backend, e.Reason)
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s
}

func (e *UnavailableError) Is(target error) bool { return target == ErrUnavailable }
func (e *UnavailableError) Unwrap() error        { return e.Err }

func errUnsupported(what string) error {
	return fmt.Errorf("device: %s: %w", what, errors.ErrUnsupported)
}

// BadMemory says that a device was given memory it cannot get at: that says nothing of the device.
func BadMemory(err error) bool { return errors.Is(err, syscall.EFAULT) }
