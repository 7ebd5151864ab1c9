package limits

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
)

// A turn is waited for as long as its taker may wait, and nobody waits for a store that closes.
func TestTurn(t *testing.T) {
	t.Parallel()
	turn, closing := NewTurn(), make(chan struct{})
	require.NoError(t, turn.Take(t.Context(), time.Minute, closing, "put", "group"))
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	require.Equal(t, skep.Deadline, skep.KindOf(turn.Take(ended, time.Minute, closing, "put", "group")))
	require.Equal(t, skep.Deadline, skep.KindOf(turn.Take(t.Context(), time.Nanosecond, closing, "put", "group")))
	close(closing)
	require.Equal(t, skep.Closed, skep.KindOf(turn.Take(t.Context(), time.Minute, closing, "put", "group")))
	turn.Give()
	require.NoError(t, turn.Take(ended, time.Minute, closing, "put", "group"), "nobody has it: it is not waited for")
}
