package pace

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const ms = time.Millisecond

var start = time.Unix(1, 0)

// answers has a node answer n calls, one after another, each within d.
func answers(l *Line, now time.Time, n int, d time.Duration) time.Time {
	for range n {
		c := l.Begin(now)
		now = now.Add(d)
		c.End(now, true)
	}
	return now
}

// A call is late after twice what nearly all took lately, at its node or at the others, whichever is less; not before
// the floor, and after a time of its own where nothing is known.
func TestACallIsLate(t *testing.T) {
	t.Parallel()
	a, b, c := NewLine(Lookups), NewLine(Lookups), NewLine(Lookups)
	all := []*Line{a, b, c, nil}
	now := start
	due := func() time.Duration { return Usual(now, all).Due(a) }
	require.Equal(t, 100*ms, due(), "nothing is known")
	now = answers(b, now, few, 20*ms)
	now = answers(c, now, few, 20*ms)
	require.Equal(t, 40*ms, due(), "of the others")
	now = answers(a, now, kept, 10*ms)
	require.Equal(t, 20*ms, due(), "of its own")
	now = answers(a, now, 2, 500*ms)
	now = answers(a, now, 8, 10*ms)
	require.Equal(t, 20*ms, due(), "two of 64 were slow")
	now = answers(a, now, kept, 200*ms)
	require.Equal(t, 40*ms, due(), "it became slow, and the others did not")
	now = answers(b, now, kept, 200*ms)
	require.Equal(t, 40*ms, due(), "one did, which is slow now and counts for nothing")
	now = answers(c, now, kept, 200*ms)
	require.Equal(t, 400*ms, due(), "all are")
	now = answers(a, now, kept, ms)
	require.Equal(t, 5*ms, due(), "the floor")
}

// What a node is expected to take is the middle of the last few times, for each call before it; and as long as the oldest
// call under way has waited.
func TestWhatANodeIsExpectedToTake(t *testing.T) {
	t.Parallel()
	l := NewLine(Lookups)
	require.Zero(t, l.Expect(start))
	now := answers(l, start, 10, 2*ms)
	require.Equal(t, 2*ms, l.Expect(now))
	now = answers(l, now, 2, 300*ms)
	require.Equal(t, 2*ms, l.Expect(now), "two hiccups")
	first, second := l.Begin(now), l.Begin(now)
	require.Equal(t, 6*ms, l.Expect(now), "two before it")
	now = now.Add(700 * ms)
	require.Equal(t, 700*ms, l.Expect(now), "it does not answer")
	first.Late(now)
	require.True(t, l.slowBeside(700*ms, now), "it is late")
	first.End(now, false)
	second.End(now, false)
	require.Equal(t, l.kind.tooLong(700*ms), l.Expect(now.Add(time.Hour)), "it did not answer")
	now = answers(l, now, 5, 2*ms)
	require.Equal(t, 2*ms, l.Expect(now), "it does again")
	run := NewLine(Runs)
	c := run.Begin(now)
	for range 10 {
		now = now.Add(30 * ms)
		require.Equal(t, 30*ms, c.Silent(now))
		c.Heard(now)
	}
	c.End(now, true)
	require.Equal(t, 30*ms, run.Expect(now), "the longest that nothing came")
}

// Runs at once share a node's link: that little comes of each does not make it slow, as long as something comes of any.
func TestRunsAtOnceMakeANodeNotSlow(t *testing.T) {
	t.Parallel()
	const runs, each, every = 16, 4, 10 * ms
	l := NewLine(Runs)
	now := start
	for range 3 {
		var calls []*Call
		for range runs {
			calls = append(calls, l.Begin(now))
		}
		for i := range each * runs {
			now = now.Add(every)
			calls[i%runs].Heard(now)
			require.LessOrEqual(t, l.Expect(now.Add(every)), every, "it gives a piece every so often")
		}
		for i, c := range calls {
			c.End(now, i < runs-1) // one is taken away, as late
		}
		require.Equal(t, every, l.Expect(now))
	}
	require.Equal(t, times*runs*every, Usual(now, []*Line{l}).Due(l), "a run is late by what is usual of runs")

	a, b := l.Begin(now), l.Begin(now)
	now = now.Add(time.Second)
	require.Equal(t, time.Second, l.Expect(now), "nothing comes of any")
	a.End(now, false)
	b.End(now, false)
	require.Equal(t, Runs.tooLong(time.Second), l.Expect(now))
}

// What is asked while the node gives bytes says nothing of how long it takes otherwise.
func TestLookupsBehindRestoresAreApart(t *testing.T) {
	t.Parallel()
	a, b := NewPair(Lookups), NewPair(Lookups)
	now := answers(a.Line(true), start, kept, 300*ms)
	now = answers(a.Line(false), now, kept, 3*ms)
	now = answers(b.Line(false), now, kept, 4*ms)
	require.Equal(t, 3*ms, a.Line(false).Expect(now))
	both := UsualOf(now, []Pair{a, b, {}})
	require.Equal(t, 6*ms, both.Due(a.Line(false)))
	require.Equal(t, 600*ms, both.Due(a.Line(true)))
	require.Equal(t, 600*ms, both.Due(b.Line(true)), "as others that are laden")
}

// A probe of a node that gives the client bytes is of its laden line. It is the node's one probe all the same, and a
// quick answer shows that the node is not slow at rest; a late one, or none, shows nothing of that.
func TestAProbeOfALadenNode(t *testing.T) {
	t.Parallel()
	p := NewPair(Lookups)
	rest, laden := p.Line(false), p.Line(true)
	now := answers(rest, start, recent, 200*ms)
	c := p.Probe(now, true)
	require.Same(t, laden, c.Line())
	require.Nil(t, p.Probe(now, true), "one at a time")
	require.Nil(t, p.Probe(now, false))
	now = now.Add(time.Second)
	require.Equal(t, 200*ms, rest.Expect(now), "it waits, and nothing at rest does")
	require.Equal(t, time.Second, laden.Expect(now))
	c.End(now, true)
	require.Equal(t, 200*ms, rest.Expect(now))
	for _, laden := range []bool{true, false} {
		require.Nil(t, p.Probe(now.Add(probeLate-1), laden), "the next one has its time")
	}
	now = now.Add(probeLate)
	p.Probe(now, true).End(now.Add(ms), false)
	require.Equal(t, 200*ms, rest.Expect(now), "no answer")
	for i := range recent/2 + 1 {
		require.True(t, rest.slowBeside(ms, now), "after %d answers", i)
		now = now.Add(probeLate)
		p.Probe(now, true).End(now.Add(ms), true)
	}
	require.False(t, rest.slowBeside(ms, now))
	now = now.Add(probeLate)
	require.Same(t, rest, p.Probe(now, false).Line())
}

// Among nodes that are alike the one that is asked least is asked; one that is slow beside another is not.
func TestWhoIsAsked(t *testing.T) {
	t.Parallel()
	expect, asked := []time.Duration{3: ms, 4: 2 * ms, 5: 200 * ms}, make([]int64, 6)
	pick := func(at ...uint16) uint16 {
		x := Choose(Lookups, at, expect, asked)
		asked[x]++
		return x
	}
	alike := func(at ...uint16) uint16 { return Choose(Lookups, at, nil, []int64{3: 1, 4: 1, 5: 0}) }
	require.EqualValues(t, 5, alike(4, 5))
	require.EqualValues(t, 4, alike(4, 3))
	require.EqualValues(t, 4, pick(4, 3), "the first of equals")
	require.EqualValues(t, 3, pick(4, 3))
	require.EqualValues(t, 4, pick(4, 3))
	for range 5 {
		require.EqualValues(t, 4, pick(5, 4))
	}
	require.EqualValues(t, 5, pick(5), "there is no other")
	expect[4], expect[3] = 300*ms, 300*ms
	require.EqualValues(t, 5, pick(4, 5, 3), "all are slow, and of it the least was asked")
}

// A slow node is probed, one call at a time, the less often the longer it takes; and it is as good as others when it
// has answered three of them quickly.
func TestASlowNodeIsProbed(t *testing.T) {
	t.Parallel()
	l := NewLine(Lookups)
	now := answers(l, start, 10, 200*ms)
	probes := 0
	for end := now.Add(20 * time.Second); now.Before(end); {
		c := l.Probe(now)
		if c == nil {
			now = now.Add(10 * ms)
			continue
		}
		probes++
		require.Nil(t, l.Probe(now), "one at a time")
		now = now.Add(200 * ms)
		c.End(now, probes%2 > 0)
	}
	require.Equal(t, 5, probes, "every four seconds")
	until := now
	for !l.slowBeside(ms, now) {
		t.Fatal("it is slow")
	}
	for quick := 0; l.slowBeside(ms, now); now = now.Add(10 * ms) {
		if c := l.Probe(now); c != nil {
			now = now.Add(ms)
			c.End(now, true)
			quick++
			require.LessOrEqual(t, quick, 3)
		}
	}
	require.Less(t, now.Sub(until), 5*time.Second)
}

func (l *Line) slowBeside(d time.Duration, now time.Time) bool { return l.kind.Slow(l.Expect(now), d) }

// Calls end in any order.
func TestCallsEndInAnyOrder(t *testing.T) {
	t.Parallel()
	l := NewLine(Runs)
	var calls []*Call
	for range 5 {
		calls = append(calls, l.Begin(start))
	}
	for _, i := range []int{1, 4, 0, 3, 2} {
		require.Equal(t, time.Second, l.Expect(start.Add(time.Second)))
		calls[i].End(start, true)
	}
	require.Zero(t, l.Expect(start.Add(time.Second)))
}

// A twentieth may be asked for twice, and a burst.
func TestABucketHoldsATwentieth(t *testing.T) {
	t.Parallel()
	b := NewBucket(100, 20)
	require.False(t, b.Take(101))
	require.True(t, b.Take(100))
	require.False(t, b.Take(1))
	b.Earn(39)
	require.True(t, b.Take(1))
	require.False(t, b.Take(1))
	b.Earn(1)
	require.True(t, b.Take(1), "what is left over is kept")
	b.Earn(1 << 40)
	require.True(t, b.Take(100))
	require.False(t, b.Take(1), "no more than the burst")
}

// A node that may have more than another one says is waited for, unless that is known to take long.
func TestWhoIsHopeless(t *testing.T) {
	t.Parallel()
	l := NewLine(Lookups)
	require.False(t, l.Hopeless(start))
	now := answers(l, start, 10, 20*ms)
	c := l.Begin(now)
	c.Late(now.Add(400 * ms))
	require.False(t, l.Hopeless(now.Add(499*ms)))
	require.True(t, l.Hopeless(now.Add(500*ms)))
	now = now.Add(500 * ms)
	c.End(now, false)
	require.True(t, l.Hopeless(now), "until it answers")
	now = answers(l, now, 1, 20*ms)
	require.False(t, l.Hopeless(now))
	now = answers(l, now, 3, 200*ms)
	require.True(t, l.Hopeless(now), "it takes as long as a rule")
}
