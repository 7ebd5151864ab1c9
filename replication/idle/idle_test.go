package idle

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// a clock and a node that does what the test says.
type node struct {
	Meter
	now   time.Time
	total int64
}

func begin() *node { return &node{now: time.Unix(1e9, 0)} }

// goes has the node do so many calls a second for so long, looked at each step, and gives how often clients came or
// left, and how it is at the end.
func (n *node) goes(a float64, d, step time.Duration) (changes int, idle bool) {
	idle = n.idle
	for range d / step {
		n.now = n.now.Add(step)
		n.total += int64(a * Call * step.Seconds())
		was := idle
		if idle = n.See(n.now, n.total, false); idle != was {
			changes++
		}
	}
	return changes, idle
}

const look = 250 * time.Millisecond

// Of a node that nobody has looked at nothing is known: it is idle when it was seen to be for two seconds. Clients that
// come end that within a second, and have left a few seconds after they went.
func TestClientsComeAndGo(t *testing.T) {
	t.Parallel()
	n := begin()
	_, idle := n.goes(0, 2*time.Second, look)
	require.False(t, idle, "not seen for long enough")
	_, idle = n.goes(0, look, look)
	require.True(t, idle)
	_, idle = n.goes(20, time.Second, look)
	require.False(t, idle, "twenty calls a second came a second ago")
	changes, idle := n.goes(20, time.Minute, look)
	require.False(t, idle)
	require.Zero(t, changes)
	_, idle = n.goes(0, 2*time.Second, look)
	require.False(t, idle, "they may be back at once")
	_, idle = n.goes(0, 2*time.Second, look)
	require.True(t, idle)
	_, idle = n.goes(10_000, look, look)
	require.False(t, idle, "many are seen at the next look")
	_, idle = n.goes(0, 6*time.Second, look)
	require.True(t, idle, "and are forgotten as fast as few")
}

// An even load changes nothing, however heavy and however often it is looked at: a light one leaves the node idle, one
// between the marks as it was.
func TestAnEvenLoadChangesNothing(t *testing.T) {
	t.Parallel()
	for _, step := range []time.Duration{10 * time.Millisecond, look, time.Second, 5 * time.Second} {
		for _, x := range []struct {
			calls        float64
			after0, idle bool // after an idle time, and after a busy one
		}{{4, true, true}, {7, true, false}, {11, false, false}} {
			n := begin()
			_, idle := n.goes(0, time.Minute, step)
			require.True(t, idle)
			n.goes(x.calls, 30*time.Second, step)
			changes, idle := n.goes(x.calls, 5*time.Minute, step)
			require.Zero(t, changes, "%v calls, %v", x.calls, step)
			require.Equal(t, x.after0, idle, "%v calls, %v", x.calls, step)
			n.goes(50, time.Minute, step)
			n.goes(x.calls, 30*time.Second, step)
			changes, idle = n.goes(x.calls, 5*time.Minute, step)
			require.Zero(t, changes, "%v calls, %v", x.calls, step)
			require.Equal(t, x.idle, idle, "%v calls, %v", x.calls, step)
		}
	}
}

// A restore whose bytes nobody counts, into a client's own memory, is a use while it is under way.
func TestARestoreUnderWay(t *testing.T) {
	t.Parallel()
	for _, step := range []time.Duration{look, 500 * time.Millisecond, time.Second} {
		n := begin()
		_, idle := n.goes(0, time.Minute, step)
		require.True(t, idle)
		for range time.Second / step {
			n.now = n.now.Add(step)
			idle = n.See(n.now, n.total, true)
		}
		require.False(t, idle, step)
	}
	n := begin()
	n.goes(0, time.Minute, look)
	n.now = n.now.Add(look)
	require.True(t, n.See(n.now, 0, true), "it was short")
}

// Bursts that follow one another are one use after a few of them; those that come rarely are each for itself.
func TestBursts(t *testing.T) {
	t.Parallel()
	n := begin()
	n.goes(0, time.Minute, look)
	bursts := func(every time.Duration, many int) (changes int) {
		for range many {
			a, _ := n.goes(100, time.Second, look)
			b, _ := n.goes(0, every-time.Second, look)
			changes += a + b
		}
		return changes
	}
	require.Positive(t, bursts(8*time.Second, 10))
	require.Zero(t, bursts(8*time.Second, 100), "it has learnt that they come again")
	n.goes(0, time.Minute, look)
	require.Equal(t, 20, bursts(time.Minute, 10))
}

// Of several that look at once one may come a little late: that is no jump.
func TestALookThatComesLate(t *testing.T) {
	t.Parallel()
	n := begin()
	for range 12 {
		n.goes(0, look, look)
		n.See(n.now.Add(-time.Millisecond), n.total, false)
	}
	require.True(t, n.idle)
}

// A clock that is set back has what is quiet be waited for anew, and one that is set forward, or a node that was not
// looked at for long, has no calls forgotten that may be of just now.
func TestTheClockJumps(t *testing.T) {
	t.Parallel()
	n := begin()
	n.goes(0, time.Second, look)
	n.now = n.now.Add(-time.Hour)
	_, idle := n.goes(0, time.Second, look)
	require.False(t, idle)
	_, idle = n.goes(0, 2*time.Second, look)
	require.True(t, idle)
	n.now = n.now.Add(-time.Hour)
	_, idle = n.goes(20, time.Second+look, look)
	require.False(t, idle, "clients are seen by any clock")

	n = begin()
	n.goes(20, time.Minute, look)
	n.now = n.now.Add(time.Hour)
	n.total += 36_000 * 20 * Call
	require.False(t, n.See(n.now, n.total, false))
	n.total = 0
	require.False(t, n.See(n.now, n.total, false), "what is less than before is nothing done")
}
