package replication

import (
	"context"
	"fmt"

	"github.com/skepkv/skep"
)

// Claim implements skep.Session. It is answered here, without a node: granted is what has not been begun. A busy
// engine gets what an idle one gets.
func (x *session) Claim(ctx context.Context, i int, want skep.Subset, _ skep.EngineLoad) (skep.Claim, error) {
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
	if c.Direction.ByLayer() {
		return c.claim(whole, c.Layers.From, 1, n), nil
	}
	per := c.space.Shape.BlockTokens
	end := n
	if c.Blocks.To == len(c.Keys) && len(c.Keys) > 0 {
		end += c.valid - per // a partial tail ends before its block does
	}
	if whole.From > end {
		return skep.Claim{Granted: skep.Range{From: whole.From, To: whole.From}, Next: end}, nil
	}
	return c.claim(whole, c.Blocks.From, per, end), nil
}

// claim answers for positions that are tokens or layers. first is the position of unit 0 in units, per the positions
// of a unit, end that of the chain's end. What lies outside of the units is never loaded, so it is granted to whoever
// asks.
func (c *chain) claim(r skep.Range, first, per, end int) skep.Claim {
	at := func(pos int) (unit int, inside bool) {
		unit = pos/per - first
		return unit, unit >= 0 && unit < len(c.units)
	}
	pos := r.From
	for to := min(r.To, end); pos < to; {
		next := min((pos/per+1)*per, end)
		if u, inside := at(pos); inside {
			if c.units[u] == loaded {
				break
			}
			if c.units[u] == pending {
				if pos%per != 0 || to < next {
					break // half a unit computed spares the nodes nothing
				}
				c.units[u] = claimed
			}
		}
		pos = min(next, to)
	}
	jump := pos
	for jump < end {
		if u, inside := at(jump); !inside || c.units[u] != loaded {
			break
		}
		jump = min((jump/per+1)*per, end)
	}
	return skep.Claim{Granted: skep.Range{From: r.From, To: pos}, Next: jump}
}
