package skep

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
)

// Kind says what went wrong. A Kind is itself an error, so that
// errors.Is(err, skep.Full) works through any wrapping. The numbers travel on the
// wire and are append-only: do not reorder or remove.
type Kind uint16

const (
	// Other is an error skep has no better word for.
	Other Kind = 0
	// Invalid is returned when an argument is outside its limits; nothing changed.
	Invalid Kind = 1
	// NotFound is returned when a namespace, lease or block asked for by name does not exist.
	NotFound Kind = 2
	// Closed is returned by every call on a store or session that is closed.
	Closed Kind = 3
	// Full is returned or given as a reason when the byte cap leaves no room and nothing may be evicted.
	Full Kind = 4
	// Quota is given when a tenant's own limit (bytes, leased bytes, pins) would be passed.
	Quota Kind = 5
	// Admission is given when the admission policy declined to store a block.
	Admission Kind = 6
	// Damaged marks bytes that do not match their checksum, on a device or in the catalog.
	Damaged Kind = 7
	// ReadOnly is returned by calls that change a store opened for inspection, or one whose catalog's file system is
	// mounted for reading.
	ReadOnly Kind = 8
	// Failed is returned once the store has stopped accepting changes because its catalog or too many devices failed.
	Failed Kind = 9
	// LeaseExpired is returned when a lease is unknown or has run out.
	LeaseExpired Kind = 10
	// Version is returned when stored data or a peer uses another format than this program reads.
	Version Kind = 11
	// Foreign is returned when a device belongs to another store.
	Foreign Kind = 12
	// Missing is returned when a device the store needs is not there.
	Missing Kind = 13
	// Locked is returned when another process holds the store; the text says which.
	Locked Kind = 14
	// Stopped is the miss reason of blocks a caller stopped, and the error of calls on a stopped chain.
	Stopped Kind = 15
	// Deadline is returned when a wait ran out of time, or its caller gave it up: errors.Is tells
	// context.Canceled from context.DeadlineExceeded.
	Deadline Kind = 16
	// Conflict is returned when a name exists with different properties.
	Conflict Kind = 17
	// NotReleased is returned when a wait for memory to come back ended early: a drive may still write to it.
	NotReleased Kind = 18
	// Unsupported is returned when this Store cannot do what was asked.
	Unsupported Kind = 19
	// DeviceFailed is the miss reason of blocks whose device did not answer or answered with an error.
	DeviceFailed Kind = 20
	// Evicted is the miss reason of blocks that were there and are not any more.
	Evicted Kind = 21
	// Claimed is the reason of blocks the caller computes itself.
	Claimed Kind = 22
	// NoMemory is returned when a memory budget leaves no room within the call's deadline.
	NoMemory Kind = 23
	// Unavailable is returned, or given as a miss reason, when the store is on another
	// machine or process and cannot be reached.
	Unavailable Kind = 24
	// Overloaded is returned when a server sheds a call before doing any of it;
	// Error.RetryAfter says when to come back.
	Overloaded Kind = 25
	// Denied is returned when the caller's credentials are missing, wrong or expired, or do
	// not give the right the call needs.
	Denied Kind = 26
	// StaleMap is returned by a node of a cluster to a caller whose map is older than the node's, before it did anything.
	StaleMap Kind = 27
	// Behind is returned by a node of a cluster whose map is older than the caller's, before it did anything.
	Behind Kind = 28
)

var kindText = [...]string{
	"error", "invalid", "not found", "closed", "full", "over quota", "not admitted", "damaged",
	"read only", "store failed", "lease expired", "other format", "foreign device", "missing device",
	"locked", "stopped", "deadline passed", "conflict", "memory not released", "unsupported",
	"device failed", "evicted", "claimed by the caller", "out of memory budget",
	"unavailable", "overloaded", "denied", "stale map", "node behind",
}

// Error makes a Kind usable as the target of errors.Is and as a plain error.
func (k Kind) Error() string {
	if int(k) < len(kindText) {
		return kindText[k]
	}
	return fmt.Sprintf("error kind %d", uint16(k))
}

// Error is the error every Store returns: what was being done, what kind of
// failure it was and, for bad input, which field had which value against which
// limit. Zero fields are left out of the text.
type Error struct {
	Op    string // the call, such as "lookup" or "open device"
	Kind  Kind
	Field string // the argument, option or record field at fault
	Value any    // what it was
	Limit any    // what it may be
	Err   error  // the cause
	// RetryAfter is when to come back, from now, where Kind is Overloaded.
	RetryAfter time.Duration
}

func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString("skep: ")
	if e.Op != "" {
		b.WriteString(e.Op)
		b.WriteString(": ")
	}
	kind, cause := e.Kind.Error(), e.Err
	if e.Kind == Deadline && errors.Is(cause, context.Canceled) {
		kind = "canceled" // no time ran out
		if cause == context.Canceled {
			cause = nil // it says no more
		}
	}
	b.WriteString(kind)
	if e.Field != "" {
		fmt.Fprintf(&b, ": %s", e.Field)
		if e.Value != nil {
			fmt.Fprintf(&b, " is %v", e.Value)
		}
	}
	if e.Limit != nil {
		fmt.Fprintf(&b, ", must be %v", e.Limit)
	}
	if e.RetryAfter > 0 {
		fmt.Fprintf(&b, ", try again in %v", e.RetryAfter)
	}
	if cause != nil {
		fmt.Fprintf(&b, ": %v", cause)
	}
	return b.String()
}

// Unwrap gives the cause.
func (e *Error) Unwrap() error { return e.Err }

// Is makes errors.Is(err, kind) true for the error's own kind.
func (e *Error) Is(target error) bool {
	k, ok := target.(Kind)
	return ok && k == e.Kind
}

// KindOf is the outermost Kind found in err, Other when there is none.
func KindOf(err error) Kind {
	var e *Error
	if errors.As(err, &e) {
		return e.Kind
	}
	var k Kind
	if errors.As(err, &k) {
		return k
	}
	return Other
}

// Invalidf is the error for an argument outside its limits.
func Invalidf(op, field string, value, limit any) error {
	return &Error{Op: op, Kind: Invalid, Field: field, Value: value, Limit: limit}
}
