package flow

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/replication/runs"
)

// told is a node that tells whether clients have left it.
type told struct {
	skep.Observer
	id           uint64
	idle, silent bool
	asked        int
}

func (s *told) Stats(ctx context.Context) (skep.Stats, error) {
	s.asked++
	if s.silent {
		<-ctx.Done()
		return skep.Stats{}, &skep.Error{Op: "stats", Kind: skep.Deadline, Err: ctx.Err()}
	}
	return skep.Stats{Idle: s.idle}, nil
}

const usual, fast = 64 << 20, 1 << 30

// sending is a Flow of a node that clients have left, or not, to others.
type sending struct {
	*Flow
	t    *testing.T
	idle atomic.Bool
	told []int64
}

func sends(t *testing.T, rate, idleRate int64) *sending {
	s := &sending{t: t}
	s.idle.Store(true)
	s.Flow = New(Options{Rate: rate, IdleRate: idleRate, Idle: s.idle.Load,
		Told: func(rate int64) { s.told = append(s.told, rate) }})
	return s
}

// lasts is how long it takes to send so much in runs, and at which rate the last of it goes.
func (s *sending) lasts(n *told, bytes int64) (d time.Duration, rate int64) {
	began := time.Now()
	for ; bytes > 0; bytes -= runs.MaxBytes {
		require.NoError(s.t, s.Wait(s.t.Context(), n.id, n, min(bytes, runs.MaxBytes)))
	}
	return time.Since(began), s.now
}

// A node sends fast to one that clients do not use, while they use it neither; to one that they use slowly, and to the
// others fast all the while. What clients do shows within a second.
func TestCopiesGoFastWhileNobodyIsHeldUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := sends(t, usual, fast)
		a, b := &told{id: 1, idle: true}, &told{id: 2}
		d, rate := s.lasts(a, 8<<30)
		require.EqualValues(t, fast, rate)
		require.InDelta(t, 8, d.Seconds(), .1)
		require.InDelta(t, 17, a.asked, 2, "it is asked twice a second")
		d, rate = s.lasts(b, 1<<30)
		require.EqualValues(t, usual, rate)
		require.InDelta(t, 16, d.Seconds(), .5)
		d, rate = s.lasts(a, 2<<30)
		require.EqualValues(t, fast, rate)
		require.InDelta(t, 2, d.Seconds(), .1)

		s.idle.Store(false)
		d, rate = s.lasts(a, 128<<20)
		require.EqualValues(t, usual, rate)
		require.Greater(t, d, 3*time.Second/2)
		s.idle.Store(true)
		_, rate = s.lasts(a, 1)
		require.EqualValues(t, fast, rate)
		a.idle = false
		s.lasts(a, fast/2)
		_, rate = s.lasts(a, 1)
		require.EqualValues(t, usual, rate)
		require.Equal(t, []int64{fast, usual, fast, usual, fast, usual}, s.told)
	})
}

// Who takes long for a run is sent copies slowly for a while, whatever it says, and so is who does not say, which holds
// nothing up for long.
func TestWhoTakesLongIsSentCopiesSlowly(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := sends(t, usual, fast)
		a := &told{idle: true}
		s.lasts(a, fast)
		s.Took(a.id, slowPut-1)
		_, rate := s.lasts(a, 1)
		require.EqualValues(t, fast, rate)
		s.Took(a.id, slowPut)
		d, rate := s.lasts(a, usual*9)
		require.EqualValues(t, usual, rate)
		require.Less(t, d, slowFor)
		s.lasts(a, usual*2)
		_, rate = s.lasts(a, 1)
		require.EqualValues(t, fast, rate)

		a.silent = true
		d, rate = s.lasts(a, usual*10)
		require.EqualValues(t, usual, rate)
		require.Less(t, d, 30*time.Second)
	})
}

// A slow rate is left within a second, too, when clients have gone. An idle rate that is none, or below the other one,
// is that one; without a rate there is no limit.
func TestRatesOfAFlow(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a := &told{idle: true}
		s := sends(t, 1<<20, fast)
		s.idle.Store(false)
		s.lasts(a, runs.MaxBytes)
		time.AfterFunc(time.Second/2, func() { s.idle.Store(true) })
		d, rate := s.lasts(a, runs.MaxBytes)
		require.EqualValues(t, fast, rate)
		require.Less(t, d, time.Second)
		for _, idleRate := range []int64{0, usual / 2, usual} {
			d, rate := sends(t, usual, idleRate).lasts(a, usual*10)
			require.EqualValues(t, usual, rate)
			require.InDelta(t, 10, d.Seconds(), .5)
		}
		d, _ = sends(t, 0, 0).lasts(a, 1<<40)
		require.Zero(t, d)
	})
}
