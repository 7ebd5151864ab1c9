package memstore

import (
	"fmt"
	"time"

	"github.com/skepkv/skep"
)

var _ skep.Planner = (*session)(nil)

// ClaimWhen implements skep.Planner. Nothing is on its way between two calls of Next, so an
// engine that has other work gets what one that has none gets.
func (x *session) ClaimWhen(chain int, r skep.Range, _ bool) (skep.Claim, error) {
	if err := x.planned("claim", chain); err != nil {
		return skep.Claim{}, err
	}
	return x.Claim(chain, r)
}

// Computed implements skep.Planner. There is no scheduler to learn from it.
func (x *session) Computed(chain int, _ skep.Range, _, _ time.Duration) error {
	return x.planned("computed", chain)
}

// planned checks that a chain said what computing costs.
func (x *session) planned(op string, chain int) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	c, err := x.chain(op, chain)
	if err == nil && c.Compute == nil {
		err = skep.Invalidf(op, "chain", chain, "one that says what computing costs")
	}
	return err
}

var _ skep.Directed = (*session)(nil)

// Direction implements skep.Directed.
func (x *session) Direction(chain int) (skep.Direction, error) {
	if chain < 0 || chain >= len(x.runs) {
		return 0, skep.Invalidf("direction", "chain", chain, fmt.Sprintf("0 to %d", len(x.runs)-1))
	}
	return x.runs[chain].Direction, nil
}
