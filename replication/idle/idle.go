// Package idle says whether clients use a node, from what it has done for them. It reads no clock and starts nothing.
//
// A call counts as so many bytes (Call), and beside it the payload that it carries. Clients use a node that does
// 10 MiB a second for them, ten calls, say, or whose restores are under way for half of the time. They have left it
// when it does less than half of that, for two seconds. Who calls evenly and more rarely is a light load, which does
// not end a node's idleness; between the two marks a node stays what it was, so that an even load does not have it
// change again and again. Where clients come again within half a minute, it is waited longer each time, up to that:
// bursts that follow one another are one use.
package idle

import (
	"math"
	"sync"
	"time"
)

// Call is what a call counts as, in bytes.
const Call = 1 << 20

const (
	busy  = 10 * Call       // a second, from which on clients use a node
	quiet = busy / 2        // below which they leave it
	most  = 2 * busy        // what is remembered of more
	under = 2 * busy        // what restores under way count as, a second
	span  = time.Second     // how fast what was done is forgotten
	least = 2 * time.Second // how long it is to be quiet
	soon  = 30 * time.Second
)

// Meter is what one node did lately. Its zero value knows nothing, and says that the node is used. It is safe for
// concurrent use.
type Meter struct {
	mu    sync.Mutex
	at    time.Time // of the last look; zero: there was none
	total int64
	level float64       // bytes a second, lately
	idle  bool          // clients have left
	came  time.Time     // when they came last
	since time.Time     // it is quiet; zero: it is not
	wait  time.Duration // how long it is to be quiet
}

// See takes in what the node has done for clients since it was started, in bytes, and whether a restore is under way
// now, and says whether clients have left it. It may be called at any intervals; in longer ones it sees a mean.
func (m *Meter) See(now time.Time, total int64, restoring bool) (idle bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.at.IsZero() {
		m.at, m.total, m.wait = now, total, least
	}
	if m.since.After(now) { // the clock was set back
		m.since = now
	}
	took := max(0, now.Sub(m.at))
	done := float64(max(0, total-m.total))
	if restoring {
		done += under * min(took, span).Seconds()
	}
	m.at, m.total = now, max(m.total, total)
	if x := took.Seconds() / span.Seconds(); x > 0 {
		done *= (1 - math.Exp(-x)) / x // it came evenly: what of it is remembered
		m.level *= math.Exp(-x)
	}
	m.level = min(m.level+done, most)
	switch {
	case m.level >= busy && m.idle:
		if m.wait = min(2*m.wait, soon); now.Sub(m.came) >= soon {
			m.wait = least
		}
		m.idle, m.came, m.since = false, now, time.Time{}
	case m.idle:
	case m.level >= quiet:
		m.since = time.Time{}
	case m.since.IsZero():
		m.since = now
	case now.Sub(m.since) >= m.wait:
		m.idle = true
	}
	return m.idle
}
