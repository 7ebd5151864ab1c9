package self

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
)

// A program that is given up ends with its children, which have its output.
func TestOtherEndsWithItsChildren(t *testing.T) {
	t.Parallel()
	ctx, giveUp := context.WithCancel(t.Context())
	cmd := Other(ctx, "/bin/sh", "-c", "sleep 3600 & echo begun; wait")
	cmd.WaitDelay = 0 // its output is read to the end, so a child that goes on is waited for
	cmd.Stdout = onWrite(giveUp)
	require.Error(t, cmd.Run())
	require.ErrorIs(t, ctx.Err(), context.Canceled)
}

type onWrite func()

func (f onWrite) Write(p []byte) (int, error) { f(); return len(p), nil }
