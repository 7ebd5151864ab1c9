package gpu

import (
	"time"

	"github.com/skepkv/skep"
)

var (
	_ skep.Planner  = (*session)(nil)
	_ skep.Directed = (*session)(nil)
)

// ClaimWhen implements skep.Planner. Chains with Compute are restored by the Store behind
// alone; one without a scheduler takes it for a Claim.
func (ses *session) ClaimWhen(i int, r skep.Range, idle bool) (skep.Claim, error) {
	c, err := ses.planned("claim", i)
	if err != nil {
		return skep.Claim{}, err
	}
	if p, ok := ses.inner.(skep.Planner); ok {
		return p.ClaimWhen(c.inner, r, idle)
	}
	return ses.inner.Claim(c.inner, r)
}

// Computed implements skep.Planner.
func (ses *session) Computed(i int, r skep.Range, took, other time.Duration) error {
	c, err := ses.planned("computed", i)
	if err != nil {
		return err
	}
	if p, ok := ses.inner.(skep.Planner); ok {
		return p.Computed(c.inner, r, took, other)
	}
	return nil
}

// Direction implements skep.Directed. Who decides is the Store behind.
func (ses *session) Direction(i int) (skep.Direction, error) {
	c, err := ses.at("direction", i)
	if err != nil {
		return 0, err
	}
	if d, ok := ses.inner.(skep.Directed); ok && c.inner >= 0 {
		return d.Direction(c.inner)
	}
	if c.Chain.Direction == skep.EitherWay {
		return 0, &skep.Error{Op: "direction", Kind: skep.Unsupported, Field: "the Store behind", Limit: "one that says its way"}
	}
	return c.Chain.Direction, nil
}

// planned gives a chain that says what computing costs.
func (ses *session) planned(op string, i int) (*served, error) {
	c, err := ses.at(op, i)
	if err == nil && c.Compute == nil {
		err = skep.Invalidf(op, "chain", i, "one that says what computing costs")
	}
	return c, err
}
