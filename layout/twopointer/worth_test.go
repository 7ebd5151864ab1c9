package twopointer

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// busyFor has n requests with nothing to load come and go while others are under way.
func busyFor(t *testing.T, s *Scheduler, n int) {
	t.Helper()
	for range n {
		p := prompt(16)
		p.Start, p.After = 16, 1e-6
		d := step(t, s, s.now, Event{Kind: Join, New: p})
		step(t, s, s.now, Event{Kind: Leave, Strand: d.Strand})
	}
	s.refresh()
}

// What came later and is shorter is loaded first, until more have come and gone without a pause than a burst brings: then an
// engine that serves in order of arrival gets what most wait for.
func TestTheShorterFirstUntilWorkNeverEnds(t *testing.T) {
	t.Parallel()
	for gone, first := range map[int]int{0: 1, steadyAfter - 1: 1, steadyAfter: 0} {
		s := scheduler(t, Config{Engine: FirstCome})
		long := prompt(65536)
		long.After = 10
		for _, p := range []*Strand{long, prompt(8192)} {
			step(t, s, 0, Event{Kind: Join, New: p})
		}
		busyFor(t, s, gone)
		require.Equal(t, first, step(t, s, 0, Event{Kind: Ready}).Strand, "%d gone", gone)
	}
}

// An engine that advances every request has the shorter loaded first in both, where neither has a suffix.
func TestTheShorterFirstWhereEveryRequestAdvances(t *testing.T) {
	t.Parallel()
	for _, gone := range []int{0, steadyAfter} {
		s := scheduler(t, Config{})
		for _, tokens := range []int{65536, 8192} {
			step(t, s, 0, Event{Kind: Join, New: prompt(tokens)})
		}
		busyFor(t, s, gone)
		require.Equal(t, 1, step(t, s, 0, Event{Kind: Ready}).Strand, "%d gone", gone)
	}
}

// A pause ends it: who comes when nothing is under way finds a stage that is idle at times.
func TestAPauseBeginsAnew(t *testing.T) {
	t.Parallel()
	s := scheduler(t, Config{})
	d := step(t, s, 0, Event{Kind: Join, New: prompt(1024)})
	busyFor(t, s, 3*steadyAfter)
	require.True(t, s.steady(0))

	behind := prompt(1024)
	behind.Background = true
	step(t, s, 0, Event{Kind: Join, New: behind})
	step(t, s, 0, Event{Kind: Leave, Strand: d.Strand})
	require.True(t, s.steady(0), "until somebody comes")
	step(t, s, 1, Event{Kind: Join, New: prompt(1024)})
	require.False(t, s.steady(0), "only a background restore was under way")
}

// An engine that advances every request has no time for heads where all can be loaded; in a steady stage it computes as deep as keeps
// both busy.
func TestHowDeepIsComputedBesideOtherWork(t *testing.T) {
	t.Parallel()
	for _, gone := range []int{0, steadyAfter} {
		s := scheduler(t, Config{})
		for range 4 {
			step(t, s, 0, Event{Kind: Join, New: prompt(65536)})
		}
		busyFor(t, s, gone)
		require.Equal(t, gone > 0, s.stages[0].depth > 0, "%d gone", gone)
	}
}

// Who comes first because it waited: a long prompt after as long as it would take by itself and 0.3 of the patience, where
// the engine advances every request and is idle at times; all others after the patience.
func TestHowLongALongOneWaits(t *testing.T) {
	t.Parallel()
	const patience = 2 * time.Second
	for _, c := range []struct {
		name   string
		engine Engine
		gone   int
		late   func(byItself float64) float64
	}{
		{"every request advances", RoundRobin, 0, func(x float64) float64 { return 0.3*patience.Seconds() + x }},
		{"every request advances, steady", RoundRobin, steadyAfter, func(float64) float64 { return patience.Seconds() }},
		{"in order of arrival", FirstCome, 0, func(float64) float64 { return patience.Seconds() }},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := scheduler(t, Config{Engine: c.engine, Patience: patience})
			long := prompt(65536)
			step(t, s, 0, Event{Kind: Join, New: long})
			busyFor(t, s, c.gone)
			st := &s.strands[0]
			load, compute := s.toLoad(st), s.toCompute(st)
			require.InDelta(t, load*compute/(load+compute), st.byItself, 1e-9)
			for _, at := range []struct {
				late  float64
				first int
			}{{-0.01, 1}, {0.01, 0}} {
				now := c.late(st.byItself) + at.late
				short := prompt(512)
				short.Weight = 1e6
				d := step(t, s, now, Event{Kind: Join, New: short})
				got := step(t, s, now, Event{Kind: Ready})
				require.Equal(t, at.first == 0, got.Strand == 0, "%v s after %v", at.late, c.late(st.byItself))
				step(t, s, now, Event{Kind: Leave, Strand: d.Strand})
			}
		})
	}
}

// due against going there in small steps.
func TestWhenAPrefixIsThere(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ load, compute, ahead float64 }{
		{1, 1, 0}, {1, 2, 0.5}, {3, 1, 1}, {2, 5, 1.9}, {1, 5, 1}, {1, 5, 9}, {4, 0, 1}, {0, 3, 0},
	} {
		const tick = 1e-4
		done, now := 0.0, 0.0
		for c.load > 0 && done < 1 {
			done += tick / c.load
			if now >= c.ahead && c.compute > 0 {
				done += tick / c.compute
			}
			now += tick
		}
		require.InDelta(t, now, due(c.load, c.compute, c.ahead), 3*tick, "%+v", c)
	}
}

// An engine that serves in order of arrival, idle at times, two prompts of 1 s to compute and 1 s to load: the first would be there in 0.5 s,
// and half of it would be computed, which the second waits for; to the second the engine comes when it is loaded.
func TestWorthInOrderOfArrival(t *testing.T) {
	t.Parallel()
	s := scheduler(t, Config{Engine: FirstCome, Channels: []Channel{{BytesPerSecond: 1e6}}})
	for range 2 {
		step(t, s, 0, Event{Kind: Join, New: &Strand{Tokens: 1000, Cost: Cost{PerToken: 1e-3}, BytesPerToken: 1000}})
	}
	last := s.strands[1]
	require.InDelta(t, 1, last.ahead, 1e-9, "before ranks are reckoned anew, too")
	s.refresh()
	require.InDelta(t, (1+0.5)/0.5, s.worth(&s.strands[0]), 1e-9)
	require.InDelta(t, 1, s.worth(&s.strands[1]), 1e-9)
}

// A deadline is urgent 1.2 times before what the quicker of loading and computing takes; of what is only loaded, loading.
func TestWhenADeadlineIsUrgent(t *testing.T) {
	t.Parallel()
	const deadline = time.Second
	for _, c := range []struct {
		bytesPerToken float64
		loadOnly      bool
		alone         float64
	}{{500, false, 0.02048}, {2000, false, 0.04096}, {1050, true, 0.043008}} {
		s := scheduler(t, Config{})
		p := prompt(4096)
		p.BytesPerToken, p.LoadOnly, p.Deadline = c.bytesPerToken, c.loadOnly, deadline
		require.Equal(t, Accepted, step(t, s, 0, Event{Kind: Join, New: p}).What)
		require.InDelta(t, deadline.Seconds()-1.2*c.alone, s.chans[0].cand[0].urgent, 1e-9, "%+v", c)
	}
}
