package breaker

import (
	"context"
	"sync/atomic"
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
		b := New()
		for i := range fails {
			require.NoError(t, b.Allow(), i)
			b.Failed(nil)
		}
		for pause := first; pause <= 2*most; pause *= 2 {
			err := b.Allow()
			require.ErrorIs(t, err, skep.Unavailable)
			var e *skep.Error
			require.ErrorAs(t, err, &e)
			require.Equal(t, min(pause, most), e.RetryAfter)
			after, look := b.look()
			require.True(t, look)
			require.Equal(t, min(pause, most), after)
			time.Sleep(after) // of the bubble: takes no time
			require.ErrorIs(t, b.Allow(), skep.Unavailable, "no call waits for what the look finds")
			b.Failed(nil)
		}
		b.Worked()
		require.NoError(t, b.Allow())
		_, look := b.look()
		require.False(t, look)
		b.Failed(nil)
		require.NoError(t, b.Allow())
	})
}

// Who has waited in vain need not do so again.
func TestOneWaitInVainIsEnough(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := New()
		b.Silent()
		require.ErrorIs(t, b.Allow(), skep.Unavailable)
		after, look := b.look()
		require.True(t, look)
		require.Equal(t, first, after)
		time.Sleep(after)
		b.Silent()
		after, _ = b.look()
		require.Equal(t, 2*first, after)
	})
}

// A server that no call asks for is not looked for: the next call sees.
func TestNobodyLooksForWhatNobodyWants(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := New()
		b.Silent()
		_, look := b.look()
		require.True(t, look)
		time.Sleep(wants - time.Second)
		require.ErrorIs(t, b.Allow(), skep.Unavailable)
		time.Sleep(wants - time.Second)
		_, look = b.look()
		require.True(t, look, "it was asked for a minute ago")
		time.Sleep(time.Second)
		_, look = b.look()
		require.False(t, look)

		require.NoError(t, b.Allow(), "one sees whether it is back")
		require.ErrorIs(t, b.Allow(), skep.Unavailable, "the others wait for it")
		b.GaveUp()
		require.ErrorIs(t, b.Allow(), skep.Unavailable)
		time.Sleep(again)
		require.NoError(t, b.Allow(), "who saw nothing does not keep the others waiting")
		b.Failed(nil)
		_, look = b.look()
		require.True(t, look)
	})
}

// Watch looks when calls fail, as long as somebody makes them, and is not needed when the server is there.
func TestWatch(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := New()
		var there atomic.Bool
		var looks atomic.Int64
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			b.Watch(ctx, func() error {
				looks.Add(1)
				if there.Load() {
					return nil
				}
				return skep.Unavailable
			})
		}()
		time.Sleep(time.Hour)
		require.Zero(t, looks.Load())
		b.Silent()
		time.Sleep(time.Second)
		synctest.Wait()
		require.EqualValues(t, 3, looks.Load(), "after .1, .3 and .7 s")
		there.Store(true)
		time.Sleep(time.Second)
		synctest.Wait()
		require.NoError(t, b.Allow())
		require.EqualValues(t, 4, looks.Load())

		there.Store(false)
		b.Silent()
		time.Sleep(time.Hour)
		synctest.Wait()
		was := looks.Load()
		require.Less(t, was, int64(4+20), "nobody asks for it")
		require.NoError(t, b.Allow(), "one sees")
		b.Failed(nil)
		time.Sleep(most)
		synctest.Wait()
		require.Greater(t, looks.Load(), was, "and has it looked for")
		stop()
		<-ended
	})
}

// Calls that fail at the same time say the same once: who looks for a server that was away for a moment does so soon.
func TestCallsThatFailTogetherCountOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := New()
		for range 50 {
			b.Failed(nil)
		}
		b.Silent()
		after, look := b.look()
		require.True(t, look)
		require.Equal(t, first, after)
		time.Sleep(after)
		for range 50 {
			b.Silent()
		}
		after, _ = b.look()
		require.Equal(t, 2*first, after)
	})
}

// A server that is there and refuses who calls is no server that is away: calls go on being told what it said.
func TestWhatTheServerSaidIsNotForgotten(t *testing.T) {
	t.Parallel()
	b := New()
	denied := &skep.Error{Op: "hello", Kind: skep.Denied, Field: "token"}
	for range fails {
		require.NoError(t, b.Allow())
		b.Failed(denied)
	}
	require.Equal(t, denied, b.Allow())
	b.Failed(&skep.Error{Op: "dial", Kind: skep.Unavailable})
	require.ErrorIs(t, b.Allow(), skep.Unavailable)
	b.Failed(denied)
	require.Equal(t, denied, b.Allow())
	b.Silent()
	require.ErrorIs(t, b.Allow(), skep.Unavailable)
	b.Failed(denied)
	b.Worked()
	b.Silent()
	require.ErrorIs(t, b.Allow(), skep.Unavailable)
}
