package clean

import "slices"

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

// mayYield says whether some group could be cleaned once less lives in it. Where others have all of those, or still
// write to them, the room is theirs to give: to drop blocks meanwhile gains nothing. Nor does it where they are full of
// durable blocks.
func (c *Cleaner) mayYield() bool {
	return c.Exact && (c.Tight() || slices.ContainsFunc(c.Space.Numbers(0), func(num uint32) bool {
		return c.gives(num) && !c.Index.Stuck(num)
	}))
}

// yield makes room where the policy has an exact order: its logical cap comes down below
// what it holds, and what is over is dropped. False: there is no such order, or nothing to drop.
func (c *Cleaner) yield() bool {
	if !c.Exact {
		return false
	}
	before := c.Count.Evicted.Load()
	c.Space.YieldRoom()
	c.Rows.Trim()
	return c.Count.Evicted.Load() > before // a put may have come first with trim
}
