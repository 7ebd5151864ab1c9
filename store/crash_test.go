package store

import (
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestCrash crashes stores, often, and requires of what comes back what each class
// promises. A crash point is one moment at which all devices and the catalog's file
// system are cut off together, in the middle of puts, deletes, purges, cleaning,
// openings and closings, with one of the states that could be left: writes that no flush
// protects are there, or not, or torn at 512 bytes or 4 KiB; unsynced bytes of the
// catalog likewise. A store is opened on it, checked, used, and crashed again, inside its
// recovery three deep. A point whose bytes on disk were reached before is checked, but
// not counted.
//
// SKEP_CRASH_POINTS sets how many points there are, SKEP_CRASH_TIME how long they may
// take, SKEP_CRASH_WORKLOAD which of the workloads run, SKEP_SEED from where.
// docs/notebook/reliability.md tells what was run.
func TestCrash(t *testing.T) {
	t.Parallel()
	c := newCampaign(t)
	for worker := range c.workers {
		t.Run(fmt.Sprintf("worker=%d", worker), func(t *testing.T) {
			t.Parallel()
			for !t.Failed() {
				run, more := c.next()
				if !more {
					return
				}
				w := newCrashWorld(t, c, run)
				w.live(nil, newOracle(w.spaces), 0)
				c.runs.Add(1)
			}
		})
	}
	t.Cleanup(func() { c.report(t) })
}

// campaign is what is to be done, and what was.
type campaign struct {
	seed      uint64
	points    int64 // 0: rounds say when it is over
	rounds    int64 // how often a short campaign goes through the workloads, at most; 0: points say when it is over
	each      int64 // points of a run; 0: as many as there are
	end       time.Time
	workers   int
	workloads []crashWorkload
	started   time.Time

	begun, done, repeated, runs atomic.Int64

	mu                 sync.Mutex
	events, places     map[string]int64 // what happened, and during what was cut
	recoveries         [4]int64         // points inside a recovery, by how many crashes in a row were
	whole, worst, torn int64
}

// crashEvents are what a campaign has to be about.
var crashEvents = []string{"puts", "deletes", "purges", "cleanings", "groups reused", "evictions", "moves", "restarts", "rebuilds", "drives replaced", "values beside others"}

func newCampaign(t *testing.T) *campaign {
	c := &campaign{
		seed: testSeed(t), points: int64(testNumber(t, "SKEP_CRASH_POINTS", 2000)), workers: runtime.GOMAXPROCS(0), workloads: crashWorkloads,
		started: time.Now(), end: time.Now().Add(24 * time.Hour), events: map[string]int64{}, places: map[string]int64{},
	}
	if testing.Short() && os.Getenv("SKEP_CRASH_POINTS") == "" {
		c.points, c.rounds, c.each = 0, 5, 12
	}
	if v := os.Getenv("SKEP_CRASH_TIME"); v != "" {
		d, err := time.ParseDuration(v)
		require.NoError(t, err)
		c.end, c.points, c.rounds = c.started.Add(d), 1<<60, 0
		stop := make(chan struct{})
		ended := make(chan struct{})
		t.Cleanup(func() { close(stop); <-ended })
		go c.tell(t, stop, ended)
	}
	if v := os.Getenv("SKEP_CRASH_WORKLOAD"); v != "" {
		c.workloads = nil
		for _, l := range crashWorkloads {
			if strings.Contains(","+v+",", ","+l.name+",") {
				c.workloads = append(c.workloads, l)
			}
		}
		require.NotEmpty(t, c.workloads, "no workload %s", v)
	}
	return c
}

// tell says each minute how far a long campaign is.
func (c *campaign) tell(t *testing.T, stop, ended chan struct{}) {
	defer close(ended)
	tick := time.NewTicker(time.Minute)
	defer tick.Stop()
	for {
		select {
		case <-stop:
			return
		case <-tick.C:
			t.Logf("%d crash points so far", c.done.Load())
		}
	}
}

// over says whether runs that are under way are to end.
func (c *campaign) over() bool {
	return c.rounds == 0 && c.done.Load() >= c.points || time.Now().After(c.end)
}

// next numbers the next run, unless there is to be none. A short campaign has each workload once, however fast its
// workers are; while something it is about has not happened it goes round again.
func (c *campaign) next() (run int, more bool) {
	n := c.begun.Add(1) - 1
	of := int64(len(c.workloads))
	if c.over() || c.rounds > 0 && n >= of && (n >= c.rounds*of || len(c.lacking(1)) == 0) {
		return 0, false
	}
	return int(n), true
}

// lacking is what of crashEvents happened less often than that.
func (c *campaign) lacking(least int64) (what []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, e := range crashEvents {
		if c.events[e] < least {
			what = append(what, e)
		}
	}
	return what
}

func (c *campaign) happened(what string, n int64) {
	if n > 0 {
		c.mu.Lock()
		c.events[what] += n
		c.mu.Unlock()
	}
}

// report prints what was done. A campaign of CI's size, or a short one, that is not about everything it
// is meant to be about proves nothing, and fails.
func (c *campaign) report(t *testing.T) {
	c.mu.Lock()
	t.Logf("%d crash points (and %d states reached before) in %d runs of %d workloads from seed %d, %v", c.done.Load(), c.repeated.Load(), c.runs.Load(),
		len(c.workloads), c.seed, time.Since(c.started).Round(time.Second))
	t.Logf("devices: %d with only what was flushed, %d with everything, %d with a random part; inside a recovery: %d, a second time: %d, a third: %d",
		c.worst, c.whole, c.torn, c.recoveries[1], c.recoveries[2], c.recoveries[3])
	t.Logf("happened: %v", c.events)
	t.Logf("cut during: %v", c.places)
	c.mu.Unlock()
	if t.Failed() || len(c.workloads) < len(crashWorkloads) {
		return
	}
	switch {
	case c.rounds > 0:
		require.Empty(t, c.lacking(1), "what has not happened in %d rounds", c.rounds)
	case c.done.Load() >= max(c.points, 2000):
		// A campaign of this size has most of them a hundred times; how many drives are taken
		// out depends on the machine's speed.
		require.Positive(t, c.recoveries[3], "a crash inside the third recovery in a row")
		require.Empty(t, c.lacking(50), "what has not happened 50 times")
	}
}

// crashWorkload is what a run's stores are used for.
type crashWorkload struct {
	name     string
	weights  [opKinds]int // how often each operation comes, of their sum
	accepted int          // percent of puts that wait for acceptance only
	replaces int          // percent of puts to a chain that replace a sibling
	shares   [4]int       // percent of the room: durable chains and keys, cache chains and keys
	most     int          // bytes of a block
	tune     func(rng *rand.Rand, o *Options)
	copies   int // 0: 1 or 2
	writers  int // concurrent ones; 0: 1
	steps    int // of each writer; 0: 160
	lost     int // percent of crashes that take the catalog with them; 0: a few, -1: none
	calm     bool
}

// opKind is one of the operations of a run.
type opKind int

const (
	opPut opKind = iota
	opDelete
	opPurge
	opFlush
	opRead
	opReopen
	opReplace
	opKinds
)

var crashWorkloads = []crashWorkload{
	{name: "mixed", weights: [opKinds]int{opPut: 62, opDelete: 10, opPurge: 1, opFlush: 6, opRead: 20, opReopen: 1}, accepted: 25, replaces: 15},
	{name: "cleaning", weights: [opKinds]int{opPut: 85, opRead: 15}, shares: [4]int{5, 5, 90, 70}, steps: 240},
	{name: "deletes", weights: [opKinds]int{opPut: 50, opDelete: 40, opFlush: 5, opRead: 5}, shares: [4]int{20, 10, 30, 20}, accepted: 25},
	{name: "purges", weights: [opKinds]int{opPut: 70, opPurge: 12, opDelete: 5, opFlush: 5, opRead: 8}, accepted: 25},
	{name: "accepted", weights: [opKinds]int{opPut: 65, opDelete: 15, opFlush: 10, opRead: 10}, accepted: 90, replaces: 20,
		tune: func(_ *rand.Rand, o *Options) { o.CacheBytes = 1 << 20 }},
	{name: "unsynced", weights: [opKinds]int{opPut: 80, opRead: 20}, calm: true},
	{name: "replaced", weights: [opKinds]int{opPut: 75, opDelete: 5, opFlush: 10, opRead: 10}, accepted: 30, replaces: 70},
	{name: "copies", weights: [opKinds]int{opPut: 70, opDelete: 10, opPurge: 1, opFlush: 5, opRead: 14}, copies: 2,
		tune: func(rng *rand.Rand, o *Options) { o.DeviceCount = 2 + rng.IntN(3) }},
	{name: "values", weights: [opKinds]int{opPut: 70, opDelete: 10, opPurge: 1, opFlush: 4, opRead: 15}, most: 2800},
	{name: "writers", weights: [opKinds]int{opPut: 72, opDelete: 10, opFlush: 3, opRead: 15}, accepted: 20, replaces: 10, writers: 3, steps: 80},
	{name: "restarts", weights: [opKinds]int{opPut: 60, opDelete: 10, opPurge: 1, opFlush: 4, opRead: 10, opReopen: 15}, accepted: 25},
	{name: "drives", weights: [opKinds]int{opPut: 70, opDelete: 8, opFlush: 4, opRead: 10, opReopen: 2, opReplace: 10}, accepted: 15, lost: -1, copies: 1,
		tune: func(rng *rand.Rand, o *Options) { o.DeviceCount = 2 + rng.IntN(2) }},
	{name: "rebuilds", weights: [opKinds]int{opPut: 60, opDelete: 15, opPurge: 2, opFlush: 5, opRead: 16, opReopen: 2}, accepted: 15, lost: 70},
}
