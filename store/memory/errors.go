package memory

import (
	"errors"
	"fmt"

	"github.com/skepkv/skep"
)

// Bad input is a *skep.Error of kind Invalid, and calls on what is closed return
// one of kind Closed. The others:
var (
	// ErrReleased is returned when a Buffer or a Handle is used after its Release.
	ErrReleased = errors.New("memory: used after release")
	// ErrRevoked is returned by a Handle whose memory was taken back after its
	// deadline. To the caller it is a miss; it matches skep.Evicted.
	ErrRevoked error = &skep.Error{Op: "read from memory", Kind: skep.Evicted, Err: errors.New("handle revoked after its deadline")}
	// ErrExists is returned by Put when the ID is cached and Item.Replace is unset.
	ErrExists = errors.New("memory: already cached")
	// ErrStale is returned by Put when Item.Current says no.
	ErrStale = errors.New("memory: out of date")
)

func invalid(field string, value, limit any) error {
	return skep.Invalidf("memory", field, value, limit)
}

func closed(op string) error { return &skep.Error{Op: op, Kind: skep.Closed} }

// NoMemoryError says which resource was short. It matches
// skep.NoMemory and, when a wait ended with its context, that context's error.
type NoMemoryError struct {
	Field  string // "io budget", "cache budget" or "mapping"
	Wanted int64  // bytes asked for
	Used   int64  // bytes charged to the budget
	Limit  int64  // bytes the budget may hold

	cause error
}

func (e *NoMemoryError) Error() string {
	s := fmt.Sprintf("memory: no memory: %s: wanted %d bytes, %d of %d in use", e.Field, e.Wanted, e.Used, e.Limit)
	if e.cause != nil {
		s += ": " + e.cause.Error()
	}
	return s
}

// Unwrap gives the kind and, if there was a wait, what ended it.
func (e *NoMemoryError) Unwrap() []error { return withCause(skep.NoMemory, e.cause) }

// LeakError is returned by Arena.Close when buffers were still in use as its
// context ended. The mapping is left in place on purpose: a drive that writes
// into unmapped, and by then perhaps reused, addresses would be worse than the
// lost memory. It matches skep.NotReleased and wraps the context's error.
type LeakError struct {
	Lent int64 // buffers that a drive may still write to
	Held int64 // buffers with references left and no loans

	cause error
}

func (e *LeakError) Error() string {
	return fmt.Sprintf("memory: mapping kept: %d buffers still lent, %d still held: %v", e.Lent, e.Held, e.cause)
}

// Unwrap gives the kind and the error of the context that ended the wait.
func (e *LeakError) Unwrap() []error { return withCause(skep.NotReleased, e.cause) }

func withCause(kind skep.Kind, cause error) []error {
	if cause == nil {
		return []error{kind}
	}
	return []error{kind, cause}
}
