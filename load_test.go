package skep_test

import (
	"context"
	"io"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
)

// ending is a Restorer whose sessions end as it says, and a session of its own.
type ending struct {
	skep.Session
	next, left error // of Next and Close
}

func (e *ending) Restore(context.Context, *skep.RestoreRequest) (skep.Session, error) { return e, nil }
func (e *ending) Next(context.Context, []skep.Chunk) (int, error)                     { return 0, e.next }
func (e *ending) Close(context.Context) error                                         { return e.left }

// Who goes by the kind of an error of Load is told where a drive still writes to a destination, whatever else
// went wrong.
func TestLoadSaysFirstWhatIsNotReleased(t *testing.T) {
	t.Parallel()
	late := &skep.Error{Op: "next", Kind: skep.Deadline}
	held := &skep.Error{Op: "close", Kind: skep.NotReleased, Err: context.DeadlineExceeded}
	closed := &skep.Error{Op: "close", Kind: skep.Closed}
	for _, c := range []struct {
		next, left error
		kind       skep.Kind
		is         []error // what else it is
	}{
		{late, held, skep.NotReleased, []error{late, skep.Deadline, held, context.DeadlineExceeded}},
		{io.ErrUnexpectedEOF, held, skep.NotReleased, []error{io.ErrUnexpectedEOF, held}},
		{held, held, skep.NotReleased, nil},
		{io.EOF, held, skep.NotReleased, []error{held}},
		{late, closed, skep.Deadline, []error{closed}},
		{late, nil, skep.Deadline, nil},
		{io.EOF, nil, skep.Other, nil},
	} {
		err := skep.Load(t.Context(), &ending{next: c.next, left: c.left}, &skep.RestoreRequest{}, nil)
		require.Equal(t, c.kind, skep.KindOf(err), "%v", err)
		if c.kind != skep.Other {
			require.ErrorIs(t, err, c.kind)
		} else {
			require.NoError(t, err)
		}
		for _, is := range c.is {
			require.ErrorIs(t, err, is)
		}
	}
}
