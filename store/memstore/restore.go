package memstore

import (
	"context"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout"
)

// Restore implements skep.Restorer. Blocks are found and held now and copied during
// Next, so what is deleted meanwhile is still delivered.
func (s *Store) Restore(ctx context.Context, r *skep.RestoreRequest) (skep.Session, error) {
	const op = "restore"
	if err := r.Validate(); err != nil {
		return nil, err
	}
	if err := s.begin(ctx, op); err != nil {
		return nil, err
	}
	defer s.mu.Unlock()
	x := &session{st: s}
	for i := range r.Chains {
		n, err := s.spaceLocked(op, r.Chains[i].Namespace)
		if err != nil {
			return nil, err
		}
		c, err := newRun(n, &r.Chains[i])
		if err != nil {
			return nil, err
		}
		c.sums = r.Sums
		x.runs = append(x.runs, c)
	}
	for _, c := range x.runs {
		s.resolveLocked(c)
	}
	s.sessions[x] = struct{}{}
	return x, nil
}

// resolveLocked finds and holds a run's blocks, and counts the promises it finds broken.
func (s *Store) resolveLocked(c *run) {
	r := s.rooms[roomOf(c.Scope)]
	var promised map[skep.Key]bool
	if l := s.leases[c.Lease]; l != nil {
		promised = map[skep.Key]bool{}
		for _, b := range l.blocks {
			if b.gone && b.room.id == roomOf(c.Scope) {
				promised[b.key] = true
			}
		}
	}
	for i := range c.blocks {
		key := stored(c.Salt, c.Keys[c.Blocks.From+i])
		var b *block
		if r != nil {
			b = r.blocks[key]
		}
		if b != nil && b.visible() {
			b.holds++
			c.blocks[i] = b
		} else if promised[key] {
			s.stats.BrokenPromises++
		}
	}
	s.touchLocked(c.found())
}

// run is one chain of a session: its plan, and how far it is.
// A unit is what may be claimed as one: a block, or a layer of all blocks.
type run struct {
	*layout.ChainPlan
	space   *namespace
	sums    bool     // chunks carry their checksums
	blocks  []*block // of the Blocks range; nil is a miss
	units   []state  // of the Blocks range, or of the Layers range
	turn    int      // next chunk, in the direction's order
	stopped bool
}

type state uint8

const (
	pending state = iota
	loaded        // or on its way
	missed        // delivered as a miss
	claimed       // the caller's
)

func newRun(n *namespace, c *skep.Chain) (*run, error) {
	p, err := layout.PlanChain(c, n.Shape)
	if err != nil {
		return nil, err
	}
	if err := p.Resolve(skep.TailFirst); err != nil { // nothing is read from drives: neither way is sooner
		return nil, err
	}
	r := &run{ChainPlan: p, space: n, blocks: make([]*block, p.Blocks.Len())}
	units := len(r.blocks)
	if c.Direction.ByLayer() && units > 0 {
		units = r.Layers.Len()
	}
	r.units = make([]state, units)
	return r, nil
}

func (c *run) found() []*block {
	var f []*block
	for _, b := range c.blocks {
		if b != nil {
			f = append(f, b)
		}
	}
	return f
}

// unit is which unit a chunk is of, and whether it is the unit's last.
func (c *run) unit(chunk int) (unit int, last bool) {
	if n := len(c.blocks); c.Direction.ByLayer() {
		return chunk / n, chunk%n == n-1
	}
	return chunk, true
}

func (c *run) over() bool { return c.turn == c.Chunks() }

// claim answers for positions that are tokens or layers. first is the position of
// unit 0, per the positions of a unit, end that of the chain's end. Positions outside
// of the units are never loaded, so they are granted to whoever asks.
func (c *run) claim(r skep.Range, first, per, end int) skep.Claim {
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
				// Half a unit computed spares the store nothing.
				if pos%per != 0 || to < next {
					break
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

// claimTokens answers in the block directions.
func (c *run) claimTokens(r skep.Range) skep.Claim {
	per := c.space.Shape.BlockTokens
	end := len(c.Keys) * per
	if n := len(c.blocks); n > 0 && c.Blocks.To == len(c.Keys) && c.blocks[n-1] != nil {
		end += c.blocks[n-1].valid - per
	}
	if r.From > end {
		return skep.Claim{Granted: skep.Range{From: r.From, To: r.From}, Next: end}
	}
	return c.claim(r, c.Blocks.From, per, end)
}

// claimLayers answers in the layer directions.
func (c *run) claimLayers(r skep.Range) skep.Claim {
	return c.claim(r, c.Layers.From, 1, c.Geometry.Layers())
}
