package limits

import (
	"context"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
)

// Whoever waits as the bucket says keeps to its rate, whatever the sizes.
func TestBucket(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(1, 2))
	for _, rate := range []float64{1e3, 1e6, 1e9} {
		b := bucket{rate: rate, burst: rate / 20}
		at, taken := time.Duration(0), 0.0
		for range 1000 {
			n := rng.Int64N(int64(rate / 5))
			taken += float64(n)
			at += b.take(at, n)
		}
		require.InDelta(t, rate, taken/at.Seconds(), rate*0.02)
		at += time.Hour
		require.Zero(t, b.take(at, int64(rate/20)), "an hour saves up one burst")
		require.Positive(t, b.take(at, int64(rate/20)))
	}
	require.Zero(t, (&bucket{}).take(0, 1<<40), "no rate, no limit")
}

// reading is restores that read, or wait for a drive, or do not.
type reading struct{ busy, deep bool }

func (r *reading) Restoring() bool { return r.busy }
func (r *reading) Queueing() bool  { return r.deep }

// Without a rate the work rests three times as long as a piece took while restores read, and not at all while none
// does. With one it waits as the rate says. Who closes ends either wait.
func TestPace(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		slept := func(f func() error) time.Duration {
			at := time.Now()
			require.NoError(t, f())
			return time.Since(at)
		}
		ctx, closing, r := t.Context(), make(chan struct{}), &reading{}
		idle := NewPace(0, r, closing)
		require.Zero(t, slept(func() error { return idle.Take(ctx, 1<<40) }))
		require.Zero(t, slept(func() error { return idle.Rest(ctx, time.Second) }))
		whole := idle.Piece()
		r.busy = true
		require.Less(t, idle.Piece(), whole)
		require.Equal(t, 300*time.Millisecond, slept(func() error { return idle.Rest(ctx, 100*time.Millisecond) }))
		r.deep = true
		require.Equal(t, time.Second, slept(func() error { return idle.Take(ctx, 1) }), "no longer, if they go on")

		rated := NewPace(1<<20, &reading{}, closing)
		require.InDelta(t, time.Second, slept(func() error { return rated.Take(ctx, 1<<20) }), float64(time.Second)/10)
		ended, cancel := context.WithCancel(ctx)
		cancel()
		require.Equal(t, skep.Deadline, skep.KindOf(rated.Take(ended, 1<<30)))
		close(closing)
		require.Equal(t, skep.Closed, skep.KindOf(rated.Take(ctx, 1<<30)))
	})
}
