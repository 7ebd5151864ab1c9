package health

import "time"

// Rules are the numbers a drive is judged by.
type Rules struct {
	Tick       time.Duration // how often it is looked at
	Hung       time.Duration // nothing read for so long, while others go on: it hangs
	HungWrites time.Duration // the same of writes and flushes, which may take longer
	Alone      int           // so many times longer when no other drive goes on either
	Factor     float64       // a mean latency so many times its own past and its peers' is slow
	Floor      time.Duration // and never one below this
	Ticks      int           // in a row make it slow, or well again
	Samples    int           // reads a tick needs to be counted
	Tolerate   time.Duration // slow for longer than this: fenced
	Errors     int           // failures in a row that fence it: of reads, of writes, or of flushes
	Wrong      int           // wrong reads beyond the right ones that fence it
	Probes     int           // good probes in a row that let it back in; twice as many each time it fell
	ProbeEvery time.Duration
	FileEvery  time.Duration // how often its file is looked for
	LostAfter  time.Duration // unreadable for so long: its copies are made again elsewhere
	Relapse    time.Duration // well for so long: earlier falls are forgotten
	HedgeMin   time.Duration // bounds of how long a read may take before it is sent elsewhere
	HedgeMax   time.Duration
}

// DefaultRules are those of a store that says nothing else.
var DefaultRules = Rules{
	Tick:       100 * time.Millisecond,
	Hung:       time.Second,
	HungWrites: 10 * time.Second,
	Alone:      10,
	Factor:     8,
	Floor:      25 * time.Millisecond,
	Ticks:      3,
	Samples:    4,
	Tolerate:   3 * time.Second,
	Errors:     FailuresInARow,
	Wrong:      8,
	Probes:     3,
	ProbeEvery: 250 * time.Millisecond,
	FileEvery:  time.Second,
	LostAfter:  15 * time.Second,
	Relapse:    5 * time.Minute,
	HedgeMin:   100 * time.Millisecond,
	HedgeMax:   time.Second,
}

// hedgeAfter is how long a read may take before it is sent elsewhere, when reads took mean
// lately.
func (r *Rules) hedgeAfter(state State, mean time.Duration) time.Duration {
	switch state {
	case Dead:
		return 0
	case Slow, Fenced:
		return r.HedgeMin
	}
	return min(max(8*mean, r.HedgeMin), r.HedgeMax)
}
