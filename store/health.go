package store

import (
	"cmp"
	"slices"
	"time"
)

// condition is how far a drive is to be relied on.
type condition int32

const (
	healthy condition = iota
	slow              // read elsewhere where that is possible
	fenced            // takes no new groups; read only where there is no other copy
	dead              // not even that: it is gone, or does not answer
)

func (c condition) String() string {
	return [...]string{"ok", "slow", "fenced", "dead"}[c]
}

// condition is what the monitor last found; healthy before it has looked.
func (d *drive) condition() condition { return condition(d.mode.Load()) }

// unreadable says whether what the drive holds cannot be read for now.
func (d *drive) unreadable() bool { return d.condition() == dead || d.noReads.Load() }

// healthRules are the numbers a drive is judged by.
type healthRules struct {
	tick       time.Duration // how often it is looked at
	hung       time.Duration // nothing read for so long, while others go on: it hangs
	hungWrites time.Duration // the same of writes and flushes, which may take longer
	alone      int           // so many times longer when no other drive goes on either
	factor     float64       // a mean latency so many times its own past and its peers' is slow
	floor      time.Duration // and never one below this
	ticks      int           // in a row make it slow, or well again
	samples    int           // reads a tick needs to be counted
	tolerate   time.Duration // slow for longer than this: fenced
	errors     int           // failures in a row that fence it
	probes     int           // good probes in a row that let it back in; twice as many each time it fell
	probeEvery time.Duration
	lostAfter  time.Duration // unreadable for so long: its copies are made again elsewhere
	taskEvery  time.Duration // how often there may be something to move
	taskRetry  time.Duration // a group that could not be moved is left alone for so long
	relapse    time.Duration // well for so long: earlier falls are forgotten
	hedgeMin   time.Duration // bounds of how long a read may take before it is sent elsewhere
	hedgeMax   time.Duration
}

var defaultRules = healthRules{
	tick: 100 * time.Millisecond, hung: time.Second, hungWrites: 10 * time.Second, alone: 10, factor: 8, floor: 25 * time.Millisecond,
	ticks: 3, samples: 4, tolerate: 3 * time.Second, errors: 3, probes: 3, probeEvery: 250 * time.Millisecond, relapse: 5 * time.Minute,
	lostAfter: 15 * time.Second, taskEvery: time.Second, taskRetry: 30 * time.Second,
	hedgeMin: 100 * time.Millisecond, hedgeMax: time.Second,
}

// pulse is what a drive did between two looks at it.
type pulse struct {
	at    time.Duration // on the monitor's clock
	reads int           // done without error
	mean  time.Duration // of their latency
	peers time.Duration // the median of the other drives' means; 0: unknown

	readFailed, readOK   int
	writeFailed, writeOK int // flushes apart
	flushFailed, flushOK int

	gone     bool // the last error says that it is not there
	readOnly bool // or that it cannot be written any more
	forced   error

	readsStalled, writesStalled time.Duration
	company                     bool // another drive with work to do goes on

	probe probeOutcome
	took  time.Duration
}

type probeOutcome int

const (
	probeNone probeOutcome = iota
	probeGood
	probeBad
)

// health is what is known of a drive: a state machine without clock or I/O.
type health struct {
	rules healthRules
	state condition
	why   string // it is not healthy
	// writes says that it was fenced for what it does with writes: probes must write.
	writes bool
	// reads says that what it holds cannot be read.
	reads bool

	own       time.Duration // mean latency of reads while well, moving
	slowRun   int
	calmRun   int
	slowSince time.Duration
	peered    bool   // others were read while it was slow, so that it is not the load
	failRun   [3]int // reads, writes, flushes that failed since one did not
	good      int    // probes in a row
	falls     int
	wellSince time.Duration
}

// step takes a pulse into account. It returns the state it leaves the drive in.
func (h *health) step(p *pulse) condition {
	h.count(p)
	if why, to := h.verdict(p); to > h.state {
		h.fall(to, why, p.at)
		return h.state
	}
	switch h.state {
	case healthy:
		h.watchLatency(p)
	case slow:
		h.recoverFromSlow(p)
	default:
		h.letIn(p)
	}
	return h.state
}

func (h *health) count(p *pulse) {
	for i, x := range [3][2]int{{p.readFailed, p.readOK}, {p.writeFailed, p.writeOK}, {p.flushFailed, p.flushOK}} {
		switch {
		case x[0] == 0 && x[1] > 0:
			h.failRun[i] = 0
		case x[0] > 0 && x[1] == 0:
			h.failRun[i] += x[0]
		case x[0] > x[1]: // most of them
			h.failRun[i] += x[0] - x[1]
		}
	}
	if h.state == healthy && h.falls > 0 && p.at-h.wellSince > h.rules.relapse {
		h.falls = 0
	}
}

// verdict says what is wrong with the drive at once, whatever its state.
func (h *health) verdict(p *pulse) (why string, to condition) {
	r := &h.rules
	patience := 1
	if !p.company {
		patience = r.alone // all of them stand still: it may be the machine
	}
	failing := p.readFailed+p.writeFailed+p.flushFailed > 0
	if p.gone && failing || p.readsStalled >= r.hung*time.Duration(patience) || h.failRun[0] >= r.errors {
		h.reads = true
	}
	switch {
	case p.gone && failing:
		return "gone", dead
	case p.readsStalled >= r.hung*time.Duration(patience):
		return "does not answer", dead
	case p.writesStalled >= r.hungWrites*time.Duration(patience):
		h.writes = true
		return "writes do not end", dead
	case p.forced != nil:
		h.writes = true
		return p.forced.Error(), fenced
	case p.readOnly && p.writeFailed+p.flushFailed > 0:
		h.writes = true
		return "read-only", fenced
	case h.failRun[0] >= r.errors:
		return "reads failed", fenced
	case h.failRun[1] >= r.errors:
		h.writes = true
		return "writes failed", fenced
	case h.failRun[2] >= r.errors:
		h.writes = true
		return "flushes failed", fenced
	}
	return "", healthy
}

func (h *health) fall(to condition, why string, at time.Duration) {
	if h.state == healthy {
		h.falls++
	}
	h.state, h.why, h.good, h.calmRun, h.slowRun = to, why, 0, 0, 0
	if to == slow {
		h.slowSince, h.peered = at, false
	}
}

// tooSlow judges a mean latency by the drive's own past and its peers.
func (h *health) tooSlow(mean, peers time.Duration) bool {
	r := &h.rules
	past := func(t time.Duration) bool { return float64(mean) > r.factor*float64(t) }
	switch {
	case mean < r.floor:
		return false
	case peers > 0 && h.own > 0:
		return past(peers) && past(h.own)
	case peers > 0:
		return past(peers)
	case h.own > 0:
		return past(h.own)
	}
	return false
}

func (h *health) watchLatency(p *pulse) {
	if p.reads < h.rules.samples {
		return
	}
	if h.tooSlow(p.mean, p.peers) {
		if h.slowRun++; h.slowRun >= h.rules.ticks {
			h.fall(slow, "slow: reads take "+p.mean.Round(time.Microsecond).String()+", before "+h.own.Round(time.Microsecond).String(), p.at)
		}
		return
	}
	h.slowRun = 0
	if h.own == 0 {
		h.own = p.mean
	} else {
		h.own += (p.mean - h.own) / 16
	}
}

// recoverFromSlow lets the drive be well again, or fences it. One that no other can be
// compared with is not fenced: nothing would be written elsewhere, and what it is slower than
// may be its own idle self.
func (h *health) recoverFromSlow(p *pulse) {
	h.peered = h.peered || p.peers > 0
	switch {
	case p.reads >= h.rules.samples && h.tooSlow(p.mean, p.peers), p.probe == probeBad, p.probe == probeGood && h.probeSlow(p.took):
		h.calmRun = 0
	case p.reads >= h.rules.samples, p.probe == probeGood:
		h.calmRun++
	}
	if h.calmRun >= h.rules.probes<<min(h.falls, 6)/2 {
		h.rise(p.at)
	} else if h.calmRun == 0 && h.peered && p.at-h.slowSince > h.rules.tolerate {
		h.fall(fenced, h.why, p.at)
	}
}

func (h *health) probeSlow(took time.Duration) bool {
	return took > max(h.rules.floor, 3*h.own)
}

func (h *health) letIn(p *pulse) {
	switch {
	case p.probe == probeBad, p.probe == probeGood && h.probeSlow(p.took), p.forced != nil, p.readsStalled >= h.rules.hung, p.writesStalled >= h.rules.hungWrites:
		h.good = 0
	case p.probe == probeGood:
		h.good++
	}
	if h.good >= h.rules.probes<<min(h.falls-1, 6) {
		h.rise(p.at)
	}
}

func (h *health) rise(at time.Duration) {
	h.state, h.why, h.writes, h.reads, h.good, h.calmRun, h.slowRun = healthy, "", false, false, 0, 0, 0
	h.failRun = [3]int{}
	h.wellSince = at
}

// hedgeAfter is how long a read may take before it is sent elsewhere, when reads took
// mean lately.
func (r *healthRules) hedgeAfter(state condition, mean time.Duration) time.Duration {
	switch state {
	case dead:
		return 0
	case slow, fenced:
		return r.hedgeMin
	}
	return min(max(8*mean, r.hedgeMin), r.hedgeMax)
}

// median of what is known; 0 when nothing is.
func median(list []time.Duration) time.Duration {
	list = slices.DeleteFunc(slices.Clone(list), func(d time.Duration) bool { return d <= 0 })
	if len(list) == 0 {
		return 0
	}
	slices.SortFunc(list, cmp.Compare[time.Duration])
	return list[len(list)/2]
}
