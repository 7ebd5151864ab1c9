package memstore

import (
	"context"
	"fmt"
	"time"

	"github.com/skepkv/skep"
)

// Computed implements skep.Session. There is no scheduler to learn from it.
func (x *session) Computed(ctx context.Context, chain int, _ skep.Range, _, _ time.Duration) error {
	const op = "computed"
	x.mu.Lock()
	defer x.mu.Unlock()
	c, err := x.asked(ctx, op, chain)
	if err == nil && c.Compute == nil {
		err = skep.Invalidf(op, "chain", chain, "one that says what computing costs")
	}
	return err
}

// Direction implements skep.Session.
func (x *session) Direction(_ context.Context, chain int) (skep.Direction, error) {
	if chain < 0 || chain >= len(x.runs) {
		return 0, skep.Invalidf("direction", "chain", chain, fmt.Sprintf("0 to %d", len(x.runs)-1))
	}
	return x.runs[chain].Direction, nil
}
