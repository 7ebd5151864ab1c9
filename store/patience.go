package store

// stirs is how many rounds in a row may end without a free group for the reason that something stirred meanwhile,
// before they are fruitless all the same.
const stirs = 16

// anew says whether a round that freed nothing is to be begun again: something stirred since it began.
func (c *cleaner) anew(was uint64) bool {
	if c.s.space.Stirred() == was || c.excused == stirs {
		return false
	}
	c.excused++
	return true
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

// goesOn says whether to clean one more group. Who closes waits for this one, so another is not begun then, however
// much there were to gain.
func (c *cleaner) goesOn() bool {
	return !c.s.isClosing() && c.s.rows.Failed() == nil && c.needed()
}

// yield makes room where the policy has an exact order: its logical cap comes down below
// what it holds, and what is over is dropped. False: there is no such order, or nothing to drop.
func (c *cleaner) yield() bool {
	if c.s.options.Policy == "cost" {
		return false
	}
	before := c.s.count.Evicted.Load()
	c.s.space.YieldRoom()
	c.s.rows.Trim()
	return c.s.count.Evicted.Load() > before // a put may have come first with trim
}
