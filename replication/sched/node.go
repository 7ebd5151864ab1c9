package sched

import "time"

// node is how one node keeps up with what it is asked for of chains with a cost.
type node struct {
	rate   float64 // bytes a second
	under  int     // loads that were begun
	begun  float64 // bytes of those that have not come
	queued float64 // bytes that nobody has asked it for yet
	due    time.Duration
	landed time.Duration // when something came last, or it was asked after it had nothing to do

	seenBytes, seenTime float64 // since the rate was last learned
}

const (
	underWay    = 2   // loads at a node at once
	firstRate   = 1e9 // bytes a second, until something came
	fewestBytes = 1 << 20
	reaction    = 2e-3 // seconds that a load takes at least
	far         = 5e-3 // seconds by which another node is sooner, for which what is queued is moved
)

// begin notes that the node is asked for so many bytes.
func (n *node) begin(now time.Duration, bytes float64) {
	if n.begun <= 0 {
		n.landed, n.due = now, now
	}
	n.under++
	n.begun += bytes
	n.due = max(now, n.due) + seconds(bytes/n.rate)
}

// came notes bytes that came or, with arrived false, will not.
func (n *node) came(now time.Duration, bytes float64, arrived bool) {
	n.begun = max(n.begun-bytes, 0)
	if arrived {
		n.seenBytes += bytes
		n.seenTime += (now - n.landed).Seconds()
		if n.seenTime >= 0.010 && n.seenBytes > 0 {
			n.rate += (n.seenBytes/n.seenTime - n.rate) * 0.3
			n.seenBytes, n.seenTime = 0, 0
		}
	}
	n.landed = now
	n.due = now + seconds(n.begun/n.rate)
}

// wait is how long, in seconds, until the node has brought what it has to bring. What is late is expected to be late
// by as much again.
func (n *node) wait(now time.Duration) float64 {
	late := 0.0
	if n.begun > 0 && now > n.due {
		late = (now - n.due).Seconds()
	}
	return (n.begun+n.queued)/n.rate + late
}
