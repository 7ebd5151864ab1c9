package health

import (
	"cmp"
	"errors"
	"slices"
	"syscall"
	"time"

	"github.com/skepkv/skep/store/device"
)

// Outcome is how a probe ended.
type Outcome int32

const (
	NoProbe Outcome = iota // none has ended since the last look
	GoodProbe
	BadProbe
)

// Reading is what a drive did up to now.
type Reading struct {
	Stats    device.Stats
	Wrong    int64 // reads, so far, whose bytes were not what was written
	Forced   error // a failure that fences it at once; nil: none since the last look
	Unlinked bool  // its file is not where it was opened
	Probe    Outcome
	Took     time.Duration // the probe
	Ignored  bool          // it was taken out of the store, and is not judged any more
}

// pulse is what a drive did between two looks at it.
type pulse struct {
	at    time.Duration // on the clock of the looks
	reads int           // done without error
	mean  time.Duration // of their latency
	peers time.Duration // the median of the other drives' means; 0: unknown

	readFailed, readOK   int
	writeFailed, writeOK int // flushes apart
	flushFailed, flushOK int
	wrong                int  // reads whose bytes were not what was written
	unlinked             bool // its file is not where it was opened

	gone     bool // the last error says that it is not there
	readOnly bool // or that it cannot be written any more
	forced   error

	readsStalled, writesStalled time.Duration
	company                     bool // another drive has gone on meanwhile

	probe Outcome
	took  time.Duration
}

// meter makes pulses of readings.
type meter struct {
	last  device.Stats
	wrong int64
	at    time.Duration    // of the last look
	stood [2]time.Duration // for how long reads, and writes, have stood still
}

// stepMost is how many ticks may pass between two looks before the time is not held against
// the drives.
const stepMost = 5

// stoodStill is for how long a drive owes an answer that says it does for so long: at most
// step longer than at the last look. What a machine that stood still itself, or had no time
// for the monitor, adds to that is no fault of the drives.
func stoodStill(before, says, step time.Duration) time.Duration {
	return min(says, before+step)
}

// take is the pulse since the last reading.
func (m *meter) take(at, tick time.Duration, r *Reading) pulse {
	st, l := &r.Stats, &m.last
	p := pulse{at: at, unlinked: r.Unlinked, forced: r.Forced, probe: r.Probe, took: r.Took,
		readFailed:  int(st.Reads.Errors - l.Reads.Errors),
		writeFailed: int(st.Writes.Errors - l.Writes.Errors),
		flushFailed: int(st.Flushes.Errors - l.Flushes.Errors),
	}
	step := min(at-m.at, stepMost*tick)
	m.at = at
	m.stood = [2]time.Duration{stoodStill(m.stood[0], st.ReadsStalled, step), stoodStill(m.stood[1], st.WritesStalled, step)}
	p.readsStalled, p.writesStalled = m.stood[0], m.stood[1]
	p.readOK = int(st.Reads.Ops-l.Reads.Ops) - p.readFailed
	p.writeOK = int(st.Writes.Ops-l.Writes.Ops) - p.writeFailed
	p.flushOK = int(st.Flushes.Ops-l.Flushes.Ops) - p.flushFailed
	if n := st.Reads.Ops - l.Reads.Ops; n > 0 {
		p.reads, p.mean = p.readOK, (st.Reads.LatencySum-l.Reads.LatencySum)/time.Duration(n)
	}
	for _, gone := range []error{syscall.ENXIO, syscall.ENODEV, device.ErrGone} {
		p.gone = p.gone || errors.Is(st.LastError, gone)
	}
	p.readOnly = errors.Is(st.LastError, syscall.EROFS)
	if errors.Is(st.LastError, syscall.ENOSPC) { // a full file system is no failing drive
		p.writeFailed = 0
	}
	p.wrong, m.wrong = int(r.Wrong-m.wrong), r.Wrong
	m.last = *st
	return p
}

// Look takes readings, one of each judged drive, into account.
func Look(at time.Duration, judges []*Judge, readings []Reading) {
	pulses := make([]pulse, len(judges))
	means := make([]time.Duration, len(judges))
	for i, j := range judges {
		pulses[i] = j.meter.take(at, j.rules.Tick, &readings[i])
		if pulses[i].reads >= j.rules.Samples {
			means[i] = pulses[i].mean
			j.mean = pulses[i].mean
		}
		if pulses[i].ended() > 0 {
			j.went = at
		}
	}
	witnesses(judges, pulses, readings)
	for i, j := range judges {
		if readings[i].Ignored {
			continue
		}
		p := &pulses[i]
		p.peers = median(slices.Concat(means[:i], means[i+1:]))
		p.company = company(judges, pulses, readings, i)
		j.step(p)
		j.countLoss(at)
	}
}

// ended is how many operations did since the last look.
func (p *pulse) ended() int {
	return p.readOK + p.readFailed + p.writeOK + p.writeFailed + p.flushOK + p.flushFailed
}

// still is for how long the drive has stood still.
func (p *pulse) still() time.Duration { return max(p.readsStalled, p.writesStalled) }

// company says whether drive i stands still alone: another one has answered meanwhile, and not long ago, since what is
// seen late may have been before. One that has nothing to do says nothing, as it may be the machine, or the disk under
// both: witnesses.
func company(judges []*Judge, pulses []pulse, readings []Reading, i int) bool {
	still := pulses[i].still()
	for j := range pulses {
		if j != i && !readings[j].Ignored && pulses[j].still() <= still/2 && judges[j].went > pulses[i].at-still/2 {
			return true
		}
	}
	return false
}

// witnesses has drives asked for a sign of life that have nothing to do while another stands still.
func witnesses(judges []*Judge, pulses []pulse, readings []Reading) {
	asked := false
	for i, j := range judges {
		asked = asked || j.state != Dead && !readings[i].Ignored && pulses[i].still() >= j.rules.Hung/4
	}
	for i, j := range judges {
		j.witness = asked && pulses[i].still() == 0
	}
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
