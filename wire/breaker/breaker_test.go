package breaker

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
)

// Two failures cost nothing. After the third, calls fail at once, and somebody looks, after a pause that doubles, until
// the server is there.
func TestCallsFailAtOnceWhileSomebodyLooks(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var b Breaker
		for i := range fails {
			require.NoError(t, b.Allow())
			require.Equal(t, i == fails-1, b.Failed())
		}
		for pause := first; pause <= 2*most; pause *= 2 {
			err := b.Allow()
			require.ErrorIs(t, err, skep.Unavailable)
			var e *skep.Error
			require.ErrorAs(t, err, &e)
			require.Equal(t, min(pause, most), e.RetryAfter)
			after, look := b.Look()
			require.True(t, look)
			require.Equal(t, min(pause, most), after)
			time.Sleep(after) // of the bubble: takes no time
			require.ErrorIs(t, b.Allow(), skep.Unavailable, "no call waits for what the look finds")
			require.True(t, b.Failed())
		}
		b.Worked()
		require.NoError(t, b.Allow())
		_, look := b.Look()
		require.False(t, look)
		require.False(t, b.Failed())
	})
}

// Who has waited in vain need not do so again.
func TestOneWaitInVainIsEnough(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var b Breaker
		require.True(t, b.Silent())
		require.ErrorIs(t, b.Allow(), skep.Unavailable)
		after, look := b.Look()
		require.True(t, look)
		require.Equal(t, first, after)
		require.True(t, b.Silent())
		after, _ = b.Look()
		require.Equal(t, 2*first, after)
	})
}

// A server that no call asks for is not looked for: the next call sees.
func TestNobodyLooksForWhatNobodyWants(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var b Breaker
		require.True(t, b.Silent())
		_, look := b.Look()
		require.True(t, look)
		time.Sleep(wants - time.Second)
		require.ErrorIs(t, b.Allow(), skep.Unavailable)
		time.Sleep(wants - time.Second)
		_, look = b.Look()
		require.True(t, look, "it was asked for a minute ago")
		time.Sleep(time.Second)
		_, look = b.Look()
		require.False(t, look)

		require.NoError(t, b.Allow(), "one sees whether it is back")
		require.ErrorIs(t, b.Allow(), skep.Unavailable, "the others wait for it")
		b.GaveUp()
		require.ErrorIs(t, b.Allow(), skep.Unavailable)
		time.Sleep(again)
		require.NoError(t, b.Allow(), "who saw nothing does not keep the others waiting")
		require.True(t, b.Failed())
		_, look = b.Look()
		require.True(t, look)
	})
}
