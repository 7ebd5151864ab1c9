package near

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// What connects is told of a deadline after the context's, and ends with the context.
func TestADialEndsByItsContext(t *testing.T) {
	t.Parallel()
	_, ok := later{t.Context()}.Deadline()
	require.False(t, ok)
	at := time.Now().Add(time.Hour)
	ctx, cancel := context.WithDeadline(t.Context(), at)
	told, ok := later{ctx}.Deadline()
	require.True(t, ok)
	require.True(t, told.After(at))
	cancel()
	_, err := Dial(ctx, "tcp", "127.0.0.1:1")
	require.ErrorIs(t, err, context.Canceled)
}
