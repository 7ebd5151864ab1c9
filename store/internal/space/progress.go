package space

import (
	"slices"
	"time"

	"github.com/skepkv/skep"
)

// Waiting for room, while rounds of cleaning make some or find nothing to free.

// stuckFor is how long a fruitless round speaks for those who come after it.
const stuckFor = 100 * time.Millisecond

// patience is for one put that waits for space: enough says that waiting is no use,
// because cleaning found nothing to free since it began to wait, or just before.
type patience struct {
	t     *Table
	since uint64
}

// Stirred counts what may have the next round find what this one did not: blocks that went or moved, and groups that
// nobody writes to any more, or that nobody else has.
func (t *Table) Stirred() uint64 { return t.eased.Load() + t.Index.Left() }

// Fruitlessly ends a round that was needed and freed nothing.
func (t *Table) Fruitlessly() {
	t.mu.Fruitless.Add(1)
	t.mu.still.Store(t.Stirred())
	t.mu.LastRound.Store(skep.Steady().UnixNano())
}

func (t *Table) patience() patience { return patience{t, t.mu.Fruitless.Load()} }

func (p patience) enough() bool {
	// The first round may have begun before we asked.
	return p.t.mu.Fruitless.Load() >= p.since+2 ||
		skep.Steady().UnixNano()-p.t.mu.LastRound.Load() < int64(stuckFor) && p.t.mu.still.Load() == p.t.Stirred()
}

// Soon says whether there may be room before long, so that finding none now says nothing:
// a spare is being made, whose segments are nobody's until it is there, or a group that is
// full may be cleaned once the last appends to it have ended.
func (t *Table) Soon() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.mu.Sparing > 0 || len(t.busyLocked()) > 0
}

// Await is Soon of what began, or filled up, less than patience ago: who waits for room is not to wait for what hangs.
// The cleaner is told when it ends.
func (t *Table) Await(patience time.Duration) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	recent := func(at time.Time) bool { return skep.Steady().Sub(at) < patience }
	t.mu.awaited = t.mu.Sparing > 0 && recent(t.mu.spared) ||
		slices.ContainsFunc(t.busyLocked(), func(g *Group) bool { return recent(g.sealed) })
	return t.mu.awaited
}

// busyLocked are the full groups to which appends are under way. REQUIRES: t.mu.
func (t *Table) busyLocked() (list []*Group) {
	for g := range t.mu.Groups.Each() {
		if g.Life.State() == Sealed && g.Pending > 0 {
			list = append(list, g)
		}
	}
	return list
}
