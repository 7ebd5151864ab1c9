package replication

import (
	"context"
	"fmt"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/replication/units"
)

// Claim implements skep.Session. It is answered here, without a node: granted is what has not been begun,
// where nothing is said of what computing costs.
func (x *session) Claim(ctx context.Context, i int, want skep.Subset, load skep.EngineLoad) (skep.Claim, error) {
	const op = "claim"
	x.mu.Lock()
	defer x.mu.Unlock()
	c, err := x.asked(ctx, op, i)
	if err != nil {
		return skep.Claim{}, err
	}
	field, n := "tokens", len(c.Keys)*c.space.Shape.BlockTokens
	if c.Direction.ByLayer() {
		field, n = "layers", c.Geometry.Layers()
	}
	whole, ok := want.In(n)
	if !ok {
		return skep.Claim{}, skep.Invalidf(op, field, want, fmt.Sprintf("within 0 to %d", n))
	}
	if c.Compute != nil {
		return x.claimPlanned(c, whole, load)
	}
	if c.Direction.ByLayer() {
		return units.Claim(c.units, whole, c.Layers.From, 1, n), nil
	}
	per := c.space.Shape.BlockTokens
	end := n
	if c.Blocks.To == len(c.Keys) && len(c.Keys) > 0 {
		end += c.valid - per // a partial tail ends before its block does
	}
	if whole.From > end {
		return skep.Claim{Granted: skep.Range{From: whole.From, To: whole.From}, Next: end}, nil
	}
	return units.Claim(c.units, whole, c.Blocks.From, per, end), nil
}
