package store

import (
	"time"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/internal/space"
)

// stuckFor is how long a fruitless round speaks for those who come after it.
const stuckFor = 100 * time.Millisecond

// patience is for one put that waits for space: enough says that waiting is no use,
// because cleaning found nothing to free since it began to wait, or just before.
type patience struct {
	c     *cleaner
	since uint64
}

// stirred counts what may have the next round find what this one did not: blocks that went or moved, and groups that
// nobody writes to any more, or that nobody else has.
func (c *cleaner) stirred() uint64 { return c.s.space.eased.Load() + c.s.index.Left() }

// stirs is how many rounds in a row may end without a free group for the reason that something stirred meanwhile,
// before they are fruitless all the same.
const stirs = 16

// anew says whether a round that freed nothing is to be begun again: something stirred since it began.
func (c *cleaner) anew(was uint64) bool {
	if c.stirred() == was || c.excused == stirs {
		return false
	}
	c.excused++
	return true
}

// fruitlessly ends a round that was needed and freed nothing.
func (c *cleaner) fruitlessly() {
	c.fruitless.Add(1)
	c.still.Store(c.stirred())
	c.last.Store(skep.Steady().UnixNano())
}

func (c *cleaner) patience() patience { return patience{c, c.fruitless.Load()} }

func (p patience) enough() bool {
	// The first round may have begun before we asked.
	return p.c.fruitless.Load() >= p.since+2 ||
		skep.Steady().UnixNano()-p.c.last.Load() < int64(stuckFor) && p.c.still.Load() == p.c.stirred()
}

// soon says whether there may be room before long, so that finding none now says nothing:
// a spare is being made, whose segments are nobody's until it is there, or a group that is
// full may be cleaned once the last appends to it have ended.
func (c *cleaner) soon() bool {
	c.s.space.mu.Lock()
	defer c.s.space.mu.Unlock()
	if c.s.space.mu.sparing > 0 {
		return true
	}
	for g := range c.s.space.mu.groups.Each() {
		if g.life.State() == space.Sealed && g.pending > 0 {
			return true
		}
	}
	return false
}

// churn watches what cleaning gains. Where the policy has an exact order, groups can come to
// be so full that ten are written again for the room of one; then the order is to drop
// more instead.
type churn struct{ groups, kept, of int }

// Groups that are judged together, and the part, one in so many, that they should gain.
const (
	churnGroups = 32
	churnGain   = 5
)

// cleaned notes a group cleaned of which kept slots, of so many, were written again. True:
// the last ones gained too little.
func (c *churn) cleaned(kept, of int) (poor bool) {
	c.groups, c.kept, c.of = c.groups+1, c.kept+kept, c.of+of
	if c.groups < churnGroups {
		return false
	}
	poor = c.kept*churnGain > c.of*(churnGain-1)
	*c = churn{}
	return poor
}

// logPages is how many pages of g's its log takes, as far as known: about as many as what is
// kept and carried on of it needs elsewhere.
func (g *group) logPages() (n int) {
	for _, p := range g.logged {
		n += p
	}
	return n
}

// weight is what a block takes of a group, in slots: all its copies, and its record, which
// is reckoned at a page where that is little beside the block. record is its length in bytes.
func weight(pages int, bytes int64, copies, record int) int {
	n := layout.SlotsOf(pages, bytes) * max(1, copies)
	if layout.Packed(pages, bytes) {
		return n + (record+layout.SlotSize-1)/layout.SlotSize
	}
	return n + layout.SlotsPerPage
}

// room is the weight of blocks that a group holds when it is full: what it did hold, where
// that is known. What did not fit into it once does not fit into the next either, and to
// write it again for the sake of that would go on for ever.
func (g *group) room() int {
	if g.full {
		return g.placed
	}
	return g.payloadPages() * layout.SlotsPerPage
}

// goesOn says whether to clean one more group. Who closes waits for this one, so another is not begun then, however
// much there were to gain.
func (c *cleaner) goesOn() bool {
	return !c.s.isClosing() && c.s.failure.Load() == nil && c.needed()
}
