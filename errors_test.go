package skep_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
)

// kinds is every kind with its number and text: both travel to people and peers, so a
// change here is a change of the protocol.
var kinds = []struct {
	kind   skep.Kind
	number uint16
	text   string
}{
	{skep.Other, 0, "error"},
	{skep.Invalid, 1, "invalid"},
	{skep.NotFound, 2, "not found"},
	{skep.Closed, 3, "closed"},
	{skep.Full, 4, "full"},
	{skep.Quota, 5, "over quota"},
	{skep.Admission, 6, "not admitted"},
	{skep.Damaged, 7, "damaged"},
	{skep.ReadOnly, 8, "read only"},
	{skep.Failed, 9, "store failed"},
	{skep.LeaseExpired, 10, "lease expired"},
	{skep.Version, 11, "other format"},
	{skep.Foreign, 12, "foreign device"},
	{skep.Missing, 13, "missing device"},
	{skep.Locked, 14, "locked"},
	{skep.Stopped, 15, "stopped"},
	{skep.Deadline, 16, "deadline passed"},
	{skep.Conflict, 17, "conflict"},
	{skep.NotReleased, 18, "memory not released"},
	{skep.Unsupported, 19, "unsupported"},
	{skep.DeviceFailed, 20, "device failed"},
	{skep.Evicted, 21, "evicted"},
	{skep.Claimed, 22, "claimed by the caller"},
	{skep.NoMemory, 23, "out of memory budget"},
	{skep.Unavailable, 24, "unavailable"},
	{skep.Overloaded, 25, "overloaded"},
	{skep.Denied, 26, "denied"},
	{skep.StaleMap, 27, "stale map"},
	{skep.Behind, 28, "node behind"},
}

func TestKindsAreAppendOnly(t *testing.T) {
	t.Parallel()
	for i, k := range kinds {
		require.EqualValues(t, i, k.number)
		require.EqualValues(t, k.number, k.kind, k.text)
		require.Equal(t, k.text, k.kind.Error())
	}
	require.Equal(t, fmt.Sprintf("error kind %d", len(kinds)), skep.Kind(len(kinds)).Error(), "a kind that is not in this list")
}

func TestErrorText(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		err  skep.Error
		want string
	}{
		{"nothing known", skep.Error{}, "skep: error"},
		{"kind", skep.Error{Kind: skep.Closed}, "skep: closed"},
		{"call and kind", skep.Error{Op: "lookup", Kind: skep.Closed}, "skep: lookup: closed"},
		{"bad input", skep.Error{Op: "lookup", Kind: skep.Invalid, Field: "keys", Value: 7, Limit: "at most 5"}, "skep: lookup: invalid: keys is 7, must be at most 5"},
		{"zero is a value", skep.Error{Kind: skep.Invalid, Field: "layers", Value: 0, Limit: "1 to 9"}, "skep: invalid: layers is 0, must be 1 to 9"},
		{"field alone", skep.Error{Kind: skep.NotFound, Field: "namespace"}, "skep: not found: namespace"},
		{"cause", skep.Error{Op: "open device", Kind: skep.DeviceFailed, Err: io.ErrUnexpectedEOF}, "skep: open device: device failed: unexpected EOF"},
	} {
		t.Run(c.name, func(t *testing.T) { require.Equal(t, c.want, c.err.Error()) })
	}
}

func TestErrorsAreFoundByKindAndByCause(t *testing.T) {
	t.Parallel()
	err := error(&skep.Error{Op: "put", Kind: skep.Deadline, Err: context.DeadlineExceeded})
	for _, e := range []error{err, fmt.Errorf("while serving: %w", err), errors.Join(io.EOF, err)} {
		require.ErrorIs(t, e, skep.Deadline)
		require.ErrorIs(t, e, context.DeadlineExceeded)
		require.NotErrorIs(t, e, skep.Invalid)
		require.Equal(t, skep.Deadline, skep.KindOf(e))
		var x *skep.Error
		require.ErrorAs(t, e, &x)
		require.Equal(t, "put", x.Op)
	}
}

func TestKindOf(t *testing.T) {
	t.Parallel()
	inner := &skep.Error{Kind: skep.Damaged}
	for _, c := range []struct {
		name string
		err  error
		want skep.Kind
	}{
		{"nil", nil, skep.Other},
		{"a stranger", io.EOF, skep.Other},
		{"a bare kind", skep.Full, skep.Full},
		{"a wrapped kind", fmt.Errorf("no: %w", skep.Full), skep.Full},
		{"the outermost of two", &skep.Error{Kind: skep.DeviceFailed, Err: inner}, skep.DeviceFailed},
	} {
		t.Run(c.name, func(t *testing.T) { require.Equal(t, c.want, skep.KindOf(c.err)) })
	}
	require.ErrorIs(t, &skep.Error{Kind: skep.DeviceFailed, Err: inner}, skep.Damaged, "the inner kind is found as well")
}

func TestInvalidf(t *testing.T) {
	t.Parallel()
	err := skep.Invalidf("put", "depth", -1, "0 to 5")
	var x *skep.Error
	require.ErrorAs(t, err, &x)
	require.Equal(t, skep.Error{Op: "put", Kind: skep.Invalid, Field: "depth", Value: -1, Limit: "0 to 5"}, *x)
}
