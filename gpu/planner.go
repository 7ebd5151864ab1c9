package gpu

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/skepkv/skep"
)

// Chains with Compute are restored by the Store behind alone: what is said of them is said to its session.

// Computed implements skep.Session.
func (ses *session) Computed(ctx context.Context, i int, done skep.Range, took, other time.Duration) error {
	c, err := ses.planned("computed", i)
	if err != nil {
		return err
	}
	return ses.inner.Computed(ctx, c.inner, done, took, other)
}

// ShareClaimWord implements skep.Session.
func (ses *session) ShareClaimWord(ctx context.Context, i int, word *atomic.Uint64) error {
	c, err := ses.planned("share claim word", i)
	if err != nil {
		return err
	}
	return ses.inner.ShareClaimWord(ctx, c.inner, word)
}

// Direction implements skep.Session. Of a chain that the Store behind has nothing of it is what was asked for: those that go
// either way are its alone.
func (ses *session) Direction(ctx context.Context, i int) (skep.Direction, error) {
	c, err := ses.at("direction", i)
	if err != nil {
		return 0, err
	}
	if c.inner >= 0 {
		return ses.inner.Direction(ctx, c.inner)
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
