package turns

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// As many frames are written at once as there are turns; the next one waits for the first that is
// written, or until its session ends.
func TestFewFramesAreWrittenAtOnce(t *testing.T) {
	t.Parallel()
	turns := Of(2, time.Hour, time.Hour)
	var late atomic.Bool
	first, err := turns.Take(t.Context(), &late)
	require.NoError(t, err)
	second, err := turns.Take(t.Context(), &late)
	require.NoError(t, err)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = turns.Take(ended, &late)
	require.ErrorIs(t, err, context.Canceled)
	third := make(chan func())
	go func() {
		written, _ := turns.Take(t.Context(), &late)
		third <- written
	}()
	first()
	(<-third)()
	second()
	require.Len(t, turns.Free, 2)
	require.False(t, late.Load())
}

// A peer that takes its bytes slowly gives its turn back while it still takes them, and has none until
// it was fast once.
func TestASlowPeerHasNoTurn(t *testing.T) {
	t.Parallel()
	turns := Of(1, time.Microsecond, time.Hour)
	var late atomic.Bool
	written, err := turns.Take(t.Context(), &late)
	require.NoError(t, err)
	require.Eventually(t, func() bool { return len(turns.Free) == 1 }, time.Minute, time.Millisecond)
	require.True(t, late.Load())
	<-turns.Free // another has it
	again, err := turns.Take(t.Context(), &late)
	require.NoError(t, err, "without a turn")
	written()
	require.Empty(t, turns.Free, "what was given back is not given back twice")
	turns.lasts = time.Hour
	again()
	require.False(t, late.Load())
	turns.waits = 0
	_, err = turns.Take(t.Context(), &late)
	require.NoError(t, err, "nobody waits for ever")
}
