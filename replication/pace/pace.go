// Package pace says which of a group's nodes is asked, when another one is asked besides, and how much of that there may
// be. It reads no clock and starts nothing: what has to do with time is given the time.
//
//	Line       what one node was asked lately and how long it took, for one kind of call
//	Choose     which of several nodes is asked
//	Usual      how long a call may take before another node is asked for the same
//	Bucket     how much may be asked for twice
package pace

import (
	"slices"
	"sync"
	"time"
)

// Kind is how the times of a kind of call are judged.
type Kind struct {
	Floor  time.Duration // no call is late before it
	Cold   time.Duration // a call is late after it where nothing is known yet
	Queues bool          // calls under way at a node make the next one slower
}

// Lookups are lookups; Runs are runs of a restore. A run's time is the longest that nothing came of it, by which it is
// late; its node's, the longest that nothing came of any run while it was under way: runs at once share the link.
var (
	Lookups = Kind{Floor: 5 * time.Millisecond, Cold: 100 * time.Millisecond, Queues: true}
	Runs    = Kind{Floor: 20 * time.Millisecond, Cold: 250 * time.Millisecond}
)

const (
	kept    = 64 // times that a line remembers
	recent  = 5  // of these, those whose middle is what is expected
	few     = 8  // fewer say nothing of what is usual
	times   = 2  // a call is late after so many times what is usual
	outlier = 4  // a node is slow that is expected to take so many times what another one takes
)

// A node that is slow is asked again for a probe after twenty times what it took, within these.
const (
	probeSoon = 50 * time.Millisecond
	probeLate = 8 * time.Second
)

// Line is what one node was asked of one kind. It is safe for concurrent use.
type Line struct {
	kind  Kind
	laden bool // of a Pair

	mu      sync.Mutex
	took    [kept]time.Duration
	n       int           // how many times were taken
	usual   time.Duration // nearly all of them were no longer; worked out every few
	under   []*Call
	came    time.Time             // something of any call, or the first under way began
	gaps    [recent]time.Duration // while calls were under way that do not queue: the longest that nothing came
	mute    time.Duration         // what to expect of calls that ended without an answer, since there was the last one
	probing bool
	probe   time.Time // when the next one may be
}

// Call is a call under way.
type Call struct {
	line  *Line
	place int
	heard time.Time     // something came, or it began
	most  time.Duration // the longest that nothing came
	gap   time.Duration // of any call of the line
	of    *Line         // whose probe it is; nil: it is none
	late  bool
}

// NewLine makes a line of which nothing is known.
func NewLine(k Kind) *Line { return &Line{kind: k} }

// Begin notes that a call begins. It has to end.
func (l *Line) Begin(now time.Time) *Call {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.under) == 0 {
		l.came = now
	}
	c := &Call{line: l, place: len(l.under), heard: now}
	l.under = append(l.under, c)
	return c
}

// Line is the line that the call is of.
func (c *Call) Line() *Line { return c.line }

// Heard notes that something came.
func (c *Call) Heard(now time.Time) {
	l := c.line
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, x := range l.under {
		x.gap = max(x.gap, l.mutely(x, now))
	}
	c.most, c.heard, l.came = max(c.most, now.Sub(c.heard)), now, now
}

// mutely is for how long nothing has come of any call, since one was under way. mu is held.
func (l *Line) mutely(c *Call, now time.Time) time.Duration {
	return min(now.Sub(l.came), now.Sub(c.heard))
}

// Silent is for how long nothing has come.
func (c *Call) Silent(now time.Time) time.Duration {
	c.line.mu.Lock()
	defer c.line.mu.Unlock()
	return now.Sub(c.heard)
}

// Late notes that the call is late. So its node is slow, until it has answered.
func (c *Call) Late(now time.Time) {
	c.line.mu.Lock()
	defer c.line.mu.Unlock()
	c.late = true
	c.line.rest(now, now.Sub(c.heard))
}

// rest has no probe made before some time after a call that took d. mu is held.
func (l *Line) rest(now time.Time, d time.Duration) {
	l.probe = now.Add(min(max(20*d, probeSoon), probeLate))
}

// tooLong is what to expect of a node that does not answer within d: more than of one that does.
func (k Kind) tooLong(d time.Duration) time.Duration { return outlier*d + k.Floor + d }

// End ends a call. answered says that the node answered, well or not; else that nobody waits any more, or that the
// node is away.
func (c *Call) End(now time.Time, answered bool) {
	if c.end(now, answered); c.of != nil {
		c.of.probed(now, c, answered)
	}
}

// probed notes that a probe ended, which was a call of this line or of one beside it.
func (l *Line) probed(now time.Time, c *Call, answered bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.probing = false
	l.rest(now, c.most)
	if l != c.line && answered && c.most < max(l.mute, l.middle()) {
		l.mute = 0
		l.note(c)
	}
}

func (c *Call) end(now time.Time, answered bool) {
	l := c.line
	l.mu.Lock()
	defer l.mu.Unlock()
	last := len(l.under) - 1
	l.under[c.place] = l.under[last]
	l.under[c.place].place = c.place
	l.under = l.under[:last]
	c.gap = max(c.gap, l.mutely(c, now))
	c.most = max(c.most, now.Sub(c.heard))
	if !answered {
		l.rest(now, c.most)
		if l.kind.Queues || c.gap > c.most/2 { // else others went on
			l.mute = max(l.mute, l.kind.tooLong(c.most))
		}
		if c.most <= l.usual {
			return // it would have taken longer, nobody knows how long
		}
	} else {
		l.mute = 0
	}
	l.note(c)
}

// note notes how long a call took. mu is held.
func (l *Line) note(c *Call) {
	l.took[l.n%kept] = c.most
	l.gaps[l.n%recent] = c.gap
	if l.n++; l.n <= few || l.n%few == 0 || c.most > l.usual {
		l.usual = l.quantile()
	}
}

// quantile is the third of the longest times of 64, the longest of few. mu is held.
func (l *Line) quantile() time.Duration {
	have := min(l.n, kept)
	sorted := l.took
	slices.Sort(sorted[:have])
	return sorted[have-1-have/24]
}

// Expect is how long the node is expected to take: the middle of what it took lately, for those before it, too, where
// calls queue; and no less than the oldest call under way has waited. One that is late, or ended without an answer, makes
// the node slow.
func (l *Line) Expect(now time.Time) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := l.mute
	if l.n > 0 {
		middle := l.middle()
		if l.kind.Queues {
			middle *= time.Duration(1 + len(l.under))
		}
		out = max(out, middle)
	}
	for _, c := range l.under {
		waits := now.Sub(c.heard)
		if !l.kind.Queues {
			waits = l.mutely(c, now)
		}
		if c.late {
			waits = l.kind.tooLong(waits)
		}
		out = max(out, waits)
	}
	return out
}

// unknown is the usual time of which nothing is known.
const unknown = time.Duration(-1)

func (l *Line) known() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.n < few {
		return unknown
	}
	return l.usual
}

// Compare is how long nodes are expected to take, and which are slow beside the quickest of them. One that is nil is
// not looked at.
func Compare(now time.Time, lines []*Line) (expect []time.Duration, slow []bool) {
	expect, slow = make([]time.Duration, len(lines)), make([]bool, len(lines))
	quickest := unknown
	for i, l := range lines {
		if l == nil {
			continue
		}
		if expect[i] = l.Expect(now); l.answered() && (quickest == unknown || expect[i] < quickest) {
			quickest = expect[i]
		}
	}
	quickest = max(quickest, 0)
	for i, l := range lines {
		slow[i] = l != nil && l.kind.Slow(expect[i], quickest)
	}
	return expect, slow
}

// What a node's answer is not waited for that may have more than another one says.
const (
	hopeless = 100 * time.Millisecond // so long it takes as a rule
	silence  = 500 * time.Millisecond // or so long one call has waited
)

// Hopeless says that the node takes so long that it is not waited for even where it may have what others do not.
func (l *Line) Hopeless(now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mute >= l.kind.tooLong(silence) || l.n >= recent && l.middle() >= hopeless {
		return true
	}
	return slices.ContainsFunc(l.under, func(c *Call) bool { return now.Sub(c.heard) >= silence })
}

// middle is the middle of what it took lately. mu is held.
func (l *Line) middle() time.Duration {
	var of [recent]time.Duration
	have := min(l.n, recent)
	for i := range have {
		if of[i] = l.took[(l.n-1-i)%kept]; !l.kind.Queues {
			of[i] = l.gaps[(l.n-1-i)%recent]
		}
	}
	slices.Sort(of[:have])
	return of[(have-1)/2]
}

// answered says whether the node has ever.
func (l *Line) answered() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.n > 0
}

// Others is what is usual at nodes: at the slowest of those that are not slow, and at the slowest but for that.
type Others struct {
	slowest    *Line
	usual, but time.Duration
}

// Usual looks at the nodes' lines. One that is nil is not looked at.
func Usual(now time.Time, lines []*Line) Others {
	o := Others{usual: unknown, but: unknown}
	_, slow := Compare(now, lines)
	for i, l := range lines {
		if l == nil || slow[i] {
			continue
		}
		switch d := l.known(); {
		case d > o.usual:
			o.slowest, o.usual, o.but = l, d, o.usual
		case d > o.but:
			o.but = d
		}
	}
	return o
}

// Due is how long a call may take, or nothing come of it, before it is late: twice what is usual at its node, or at the
// slowest of the others that are not slow themselves, whichever is less.
func (o Others) Due(l *Line) time.Duration {
	usual, elsewhere := l.known(), o.usual
	if o.slowest == l {
		elsewhere = o.but
	}
	switch {
	case usual == unknown && elsewhere == unknown:
		return max(l.kind.Cold, l.kind.Floor)
	case usual == unknown || elsewhere != unknown && elsewhere < usual:
		usual = elsewhere
	}
	return max(times*usual, l.kind.Floor)
}

// Probe says whether a slow node is to be asked to see whether it still is, and begins that call. It is asked one at a
// time, and the less often the longer it takes.
func (l *Line) Probe(now time.Time) *Call {
	if !l.probes(now) {
		return nil
	}
	c := l.Begin(now)
	c.of = l
	return c
}

// probes says that a probe is to be made, which is under way from then on.
func (l *Line) probes(now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.probing || now.Before(l.probe) {
		return false
	}
	l.probing = true
	return true
}

// Ready says whether it is time for a probe.
func (l *Line) Ready(now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return !l.probing && !now.Before(l.probe)
}

// Kind is how its times are judged.
func (l *Line) Kind() Kind { return l.kind }

// Slow says whether a node that is expected to take a is slow beside one that takes b.
func (k Kind) Slow(a, b time.Duration) bool { return a > outlier*b+k.Floor }

// Choose is which of the nodes at these places is asked, of which is known how long each is expected to take and for how
// much it is asked so far: of those that are not slow beside another one the one that is asked least, the first of such.
// Where none of all nodes is slow expect is nil.
func Choose(k Kind, at []uint16, expect []time.Duration, asked []int64) uint16 {
	if expect == nil {
		best := at[0]
		for _, x := range at[1:] {
			if asked[x] < asked[best] {
				best = x
			}
		}
		return best
	}
	quickest := expect[at[0]]
	for _, x := range at[1:] {
		quickest = min(quickest, expect[x])
	}
	best, found := at[0], false
	for _, x := range at {
		if !k.Slow(expect[x], quickest) && (!found || asked[x] < asked[best]) {
			best, found = x, true
		}
	}
	return best
}
