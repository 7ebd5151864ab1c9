package schedule

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func places() (list []Place) {
	for line := range 400 {
		list = append(list, Place{File: "store/put.go", Line: line, Text: "mu.Lock()"})
		list = append(list, Place{File: "store/around.go", Line: line, Text: "state.CompareAndSwap(a, b)"})
	}
	return list
}

// A plan follows from its seed.
func TestPlansAreDrawnFromASeed(t *testing.T) {
	t.Parallel()
	differ := false
	for seed := range uint64(20) {
		a, b, c := NewPlan(seed, places()), NewPlan(seed, places()), NewPlan(seed+1, places())
		require.Equal(t, a.Hot, b.Hot)
		require.NotEmpty(t, a.Hot)
		require.Less(t, len(a.Hot), len(places()))
		differ = differ || len(a.Hot) != len(c.Hot)
	}
	require.True(t, differ)
	require.Empty(t, NewPlan(1, nil).Hot)
}

// At a hot place goroutines sleep again and again; what is passed in a loop cools down; elsewhere hardly anybody
// sleeps; and without a plan nobody does.
func TestWhoSleeps(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		slept := func(n, times int) time.Duration {
			began := time.Now()
			for range times {
				Pause(n)
			}
			return time.Since(began)
		}
		require.Zero(t, slept(0, 1000), "no plan")
		p := NewPlan(1, places())
		hot := p.Hot[0]
		cold := 0
		for p.hot[cold] {
			cold++
		}
		Use(p)
		defer Use(nil)
		first := slept(hot, 100)
		require.Greater(t, first, 10*longest)
		require.Less(t, slept(hot, 100_000), 100*first, "a loop is not held up for ever")
		require.Less(t, slept(cold, 100), first/4)
		require.Equal(t, 7, After(hot, 7))
		require.Positive(t, Passed())
	})
}
