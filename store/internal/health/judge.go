package health

import "time"

// Judge is what is known of a drive, and what follows from that: a state machine. Its methods
// are called by one goroutine.
type Judge struct {
	rules Rules
	meter meter
	mean  time.Duration // of reads in the last look that had enough

	state State
	why   string // it is not healthy
	// writes says that it was fenced for what it does with writes: probes must write.
	writes bool
	// reads says that what it holds cannot be read.
	reads bool
	// unlinked says that what it holds is lost when it is closed.
	unlinked bool
	// away says that what it holds is out of reach, or about to be lost, since awaySince; lost that
	// this has been so for too long.
	away, lost bool
	awaySince  time.Duration

	went    time.Duration // when it was seen last that it had answered
	witness bool          // it has nothing to do, and another drive stands still

	probed   bool          // it was, while not healthy or as a witness
	probedAt time.Duration // for the last time

	own       time.Duration // mean latency of reads while well, moving
	slowRun   int
	calmRun   int
	slowSince time.Duration
	peered    bool   // others were read while it was slow, so that it is not the load
	failRun   [3]int // reads, writes, flushes that failed since one did not
	wrongRun  int    // reads with wrong bytes, less those without
	good      int    // probes in a row
	falls     int
	wellSince time.Duration
}

// NewJudge begins to judge a drive that has done so much already.
func NewJudge(rules Rules, so Reading) *Judge {
	return &Judge{rules: rules, meter: meter{last: so.Stats, wrong: so.Wrong}}
}

// NewMissing begins to judge a drive that is not there now.
func NewMissing(rules Rules, at time.Duration, state State, so Reading) *Judge {
	j := NewJudge(rules, so)
	j.state, j.why, j.falls, j.reads = state, "missing", 1, true
	j.away, j.awaySince = true, at
	return j
}

// State is the drive's, as of the last look.
func (j *Judge) State() State { return j.state }

// Why says what is wrong with the drive, "" when nothing is.
func (j *Judge) Why() string { return j.why }

// Unreadable says that what the drive holds cannot be read.
func (j *Judge) Unreadable() bool { return j.state >= Fenced && j.reads }

// Lost says that what the drive holds has been out of reach for so long that it is to be written
// elsewhere.
func (j *Judge) Lost() bool { return j.lost }

// LastError is what the last operation of the drive that failed ended with.
func (j *Judge) LastError() error { return j.meter.last.LastError }

// HedgeAfter is how long a read may take before it is sent elsewhere, of a drive that is in this
// state for those who read.
func (j *Judge) HedgeAfter(state State) time.Duration { return j.rules.hedgeAfter(state, j.mean) }

// WantsProbe says whether the drive is to be asked for a sign of life now, and whether it has to
// be written for that. The caller does so.
func (j *Judge) WantsProbe(at time.Duration) (probe, write bool) {
	if j.state == Healthy && !j.witness || j.probed && at-j.probedAt < j.rules.ProbeEvery {
		return false, false
	}
	j.probed, j.probedAt = true, at
	return true, j.writes && j.state != Healthy
}

// countLoss decides when a drive that cannot be read counts as lost.
func (j *Judge) countLoss(at time.Duration) {
	switch {
	case j.state < Fenced || !j.reads && !j.unlinked:
		j.away, j.lost = false, false
	case !j.away:
		j.away, j.awaySince = true, at
	case at-j.awaySince > j.rules.LostAfter:
		j.lost = true
	}
}

// step takes a pulse into account. It returns the state it leaves the drive in.
func (j *Judge) step(p *pulse) State {
	j.count(p)
	if why, to := j.verdict(p); to != Healthy && transitions[j.state][to] {
		j.fall(to, why, p.at)
		return j.state
	}
	switch j.state {
	case Healthy:
		j.watchLatency(p)
	case Slow:
		j.recoverFromSlow(p)
	default:
		j.letIn(p)
	}
	return j.state
}

func (j *Judge) count(p *pulse) {
	for i, x := range [3][2]int{{p.readFailed, p.readOK}, {p.writeFailed, p.writeOK}, {p.flushFailed, p.flushOK}} {
		switch {
		case x[0] == 0 && x[1] > 0:
			j.failRun[i] = 0
		case x[0] > 0 && x[1] == 0:
			j.failRun[i] += x[0]
		case x[0] > x[1]: // most of them
			j.failRun[i] += x[0] - x[1]
		}
	}
	j.unlinked = p.unlinked
	j.wrongRun = max(0, j.wrongRun+p.wrong-max(0, p.readOK-p.wrong)) // a few bad pages are no bad drive
	if j.state == Healthy && j.falls > 0 && p.at-j.wellSince > j.rules.Relapse {
		j.falls = 0
	}
}

// verdict says what is wrong with the drive at once, whatever its state.
func (j *Judge) verdict(p *pulse) (why string, to State) {
	r := &j.rules
	patience := 1
	if !p.company {
		patience = r.Alone // all of them stand still: it may be the machine
	}
	failing := p.readFailed+p.writeFailed+p.flushFailed > 0
	if p.gone && failing || p.readsStalled >= r.Hung*time.Duration(patience) || j.failRun[0] >= r.Errors || j.wrongRun >= r.Wrong {
		j.reads = true
	}
	switch {
	case p.gone && failing:
		return "gone", Dead
	case p.readsStalled >= r.Hung*time.Duration(patience):
		return "does not answer", Dead
	case p.writesStalled >= r.HungWrites*time.Duration(patience):
		j.writes = true
		return "writes do not end", Dead
	case p.forced != nil:
		j.writes = true
		return p.forced.Error(), Fenced
	case p.readOnly && p.writeFailed+p.flushFailed > 0:
		j.writes = true
		return "read-only", Fenced
	case p.unlinked:
		return "its file was removed, or moved: what it holds is lost when it is closed", Fenced
	case j.wrongRun >= r.Wrong:
		j.writes = true
		return "gives wrong bytes", Fenced
	case j.failRun[0] >= r.Errors:
		return "reads failed", Fenced
	case j.failRun[1] >= r.Errors:
		j.writes = true
		return "writes failed", Fenced
	case j.failRun[2] >= r.Errors:
		j.writes = true
		return "flushes failed", Fenced
	}
	return "", Healthy
}

// fall and rise are the only ways from one state into another.
func (j *Judge) fall(to State, why string, at time.Duration) {
	if j.state == Healthy {
		j.falls++
	}
	j.state, j.why, j.good, j.calmRun, j.slowRun = to, why, 0, 0, 0
	if to == Slow {
		j.slowSince, j.peered = at, false
	}
}

// tooSlow judges a mean latency by the drive's own past and its peers.
func (j *Judge) tooSlow(mean, peers time.Duration) bool {
	r := &j.rules
	past := func(t time.Duration) bool { return float64(mean) > r.Factor*float64(t) }
	switch {
	case mean < r.Floor:
		return false
	case peers > 0 && j.own > 0:
		return past(peers) && past(j.own)
	case peers > 0:
		return past(peers)
	case j.own > 0:
		return past(j.own)
	}
	return false
}

func (j *Judge) watchLatency(p *pulse) {
	if p.reads < j.rules.Samples {
		return
	}
	if j.tooSlow(p.mean, p.peers) {
		if j.slowRun++; j.slowRun >= j.rules.Ticks {
			j.fall(Slow, "slow: reads take "+p.mean.Round(time.Microsecond).String()+", before "+j.own.Round(time.Microsecond).String(), p.at)
		}
		return
	}
	j.slowRun = 0
	if j.own == 0 {
		j.own = p.mean
	} else {
		j.own += (p.mean - j.own) / 16
	}
}

// recoverFromSlow lets the drive be well again, or fences it. One that no other can be
// compared with is not fenced: nothing would be written elsewhere, and what it is slower than
// may be its own idle self.
func (j *Judge) recoverFromSlow(p *pulse) {
	j.peered = j.peered || p.peers > 0
	switch {
	case p.reads >= j.rules.Samples && j.tooSlow(p.mean, p.peers), p.probe == BadProbe, p.probe == GoodProbe && j.probeSlow(p.took):
		j.calmRun = 0
	case p.reads >= j.rules.Samples, p.probe == GoodProbe:
		j.calmRun++
	}
	if j.calmRun >= j.rules.Probes<<min(j.falls, 6)/2 {
		j.rise(p.at)
	} else if j.calmRun == 0 && j.peered && p.at-j.slowSince > j.rules.Tolerate {
		j.fall(Fenced, j.why, p.at)
	}
}

func (j *Judge) probeSlow(took time.Duration) bool {
	return took > max(j.rules.Floor, 3*j.own)
}

func (j *Judge) letIn(p *pulse) {
	switch {
	case p.unlinked, p.wrong > 0, p.forced != nil, p.readsStalled >= j.rules.Hung, p.writesStalled >= j.rules.HungWrites,
		p.probe == BadProbe, p.probe == GoodProbe && j.probeSlow(p.took):
		j.good = 0
	case p.probe == GoodProbe:
		j.good++
	}
	if j.good >= j.rules.Probes<<min(j.falls-1, 6) {
		j.rise(p.at)
	}
}

func (j *Judge) rise(at time.Duration) {
	j.state, j.why, j.writes, j.reads, j.good, j.calmRun, j.slowRun = Healthy, "", false, false, 0, 0, 0
	j.failRun, j.wrongRun = [3]int{}, 0
	j.wellSince = at
}
