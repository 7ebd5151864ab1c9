package breaker

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
)

// Three failures cost nothing, the next calls fail at once, for longer each time, and one is let through in between.
func TestCallsFailAtOnceWhenTheServerIsNotThere(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var b Breaker
		for range fails {
			require.NoError(t, b.Allow())
			b.Failed()
		}
		for pause := first; pause <= 2*most; pause *= 2 {
			err := b.Allow()
			require.ErrorIs(t, err, skep.Unavailable)
			var e *skep.Error
			require.ErrorAs(t, err, &e)
			require.Equal(t, min(pause, most), e.RetryAfter)
			time.Sleep(e.RetryAfter) // of the bubble: takes no time
			require.NoError(t, b.Allow(), "one sees whether it is back")
			require.ErrorIs(t, b.Allow(), skep.Unavailable, "the others wait for it")
			b.Failed()
		}
		time.Sleep(most)
		require.NoError(t, b.Allow())
		b.Ended(true)
		require.ErrorIs(t, b.Allow(), skep.Unavailable)
		time.Sleep(again)
		require.NoError(t, b.Allow(), "who saw nothing does not keep the others waiting")
		b.Worked()
		require.NoError(t, b.Allow())
		require.NoError(t, b.Allow())
	})
}
