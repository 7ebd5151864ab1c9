package memstore

import (
	"context"
	"fmt"

	"github.com/skepkv/skep"
)

// Restore implements skep.Restorer. Blocks are found and held now and copied during
// Next, so what is deleted meanwhile is still delivered.
func (s *Store) Restore(ctx context.Context, r *skep.RestoreRequest) (skep.Session, error) {
	const op = "restore"
	if len(r.Chains) > skep.MaxChains {
		return nil, skep.Invalidf(op, "chains", len(r.Chains), fmt.Sprintf("at most %d", skep.MaxChains))
	}
	keys := 0
	for i := range r.Chains {
		keys += len(r.Chains[i].Keys)
		if err := checkKeys(op, keys, r.Chains[i].Scope); err != nil {
			return nil, err
		}
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
		c, err := newRun(op, n, r.Chains[i])
		if err != nil {
			return nil, err
		}
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

// run is one chain of a session: what it loads, in which order, and how far it is.
// A unit is what may be claimed as one: a block, or a layer of all blocks.
type run struct {
	skep.Chain // with Part, Blocks, Layers and Heads filled in
	space      *namespace
	structured bool     // the part has the shape's layers and heads
	blocks     []*block // of the Blocks range; nil is a miss
	units      []state  // of the Blocks range, or of the Layers range
	turn, sub  int      // next piece: the turn-th unit in order, and in a layer which block
	stopped    bool
}

type state uint8

const (
	pending state = iota
	loaded        // or on its way
	missed        // delivered as a miss
	claimed       // the caller's
)

func newRun(op string, n *namespace, c skep.Chain) (*run, error) {
	r := &run{Chain: c, space: n}
	g := n.geo
	r.Part = partName(c.Part)
	r.structured = r.Part == skep.PartKV && g.layers > 0
	var ok bool
	if r.Blocks, ok = c.Blocks.Within(len(c.Keys)); !ok {
		return nil, skep.Invalidf(op, "blocks", c.Blocks, fmt.Sprintf("within 0 to %d", len(c.Keys)))
	}
	if len(r.Part) > skep.MaxPartNameSize {
		return nil, skep.Invalidf(op, "part name length in bytes", len(r.Part), fmt.Sprintf("at most %d", skep.MaxPartNameSize))
	}
	if c.Direction > skep.EitherWay {
		return nil, skep.Invalidf(op, "direction", c.Direction, "one of the five")
	}
	if err := c.ValidateCompute(); err != nil {
		return nil, err
	}
	if r.Direction == skep.EitherWay { // nothing is read from drives: neither way is sooner
		r.Direction = skep.TailFirst
	}
	if !r.structured && (c.Direction.ByLayer() || !c.Layers.All() || !c.Heads.All()) {
		return nil, skep.Invalidf(op, "direction, layers and heads", "by layer or part of a block", "whole blocks, in a part without layers")
	}
	if r.Layers, ok = c.Layers.Within(g.layers); r.structured && !ok {
		return nil, skep.Invalidf(op, "layers", c.Layers, fmt.Sprintf("within 0 to %d", g.layers))
	}
	if !c.Heads.All() && (n.Shape.Kind != skep.Attention || n.Shape.Order != skep.HND) {
		return nil, skep.Invalidf(op, "heads", c.Heads, "all, unless the shape is attention in HND order")
	}
	if r.Heads, ok = c.Heads.Within(g.heads); r.structured && !ok {
		return nil, skep.Invalidf(op, "heads", c.Heads, fmt.Sprintf("within 0 to %d", g.heads))
	}
	if err := r.checkDestination(op); err != nil {
		return nil, err
	}
	r.blocks = make([]*block, r.Blocks.Len())
	units := len(r.blocks)
	if c.Direction.ByLayer() && units > 0 {
		units = r.Layers.Len()
	}
	r.units = make([]state, units)
	return r, nil
}

// partBytes is the size every block's part has, 0 when it may differ.
func (c *run) partBytes() int64 {
	if c.Part != skep.PartKV {
		return 0
	}
	return c.space.geo.part
}

func (c *run) checkDestination(op string) error {
	d := &c.Dest
	switch {
	case d.Memory != nil && d.Paged != nil:
		return skep.Invalidf(op, "destination", "memory and pages", "one of them, or neither")
	case d.Paged != nil:
		return c.checkPages(op)
	case d.Memory == nil:
		return nil
	}
	part, have := c.partBytes(), int64(len(d.Memory))
	if d.Stride == 0 {
		d.Stride = (part + pageSize - 1) / pageSize * pageSize
	}
	if d.Stride < max(part, 1) {
		return skep.Invalidf(op, "destination stride", d.Stride, fmt.Sprintf("at least %d, and set when the part's size is not the shape's", max(part, 1)))
	}
	// Blocks of any size are checked against the stride one by one, as they land.
	last := part
	if part == 0 {
		last = d.Stride
	}
	if n := int64(c.Blocks.Len()); n > 0 && (have < last || n-1 > (have-last)/d.Stride) {
		return skep.Invalidf(op, "destination size in bytes", have, fmt.Sprintf("at least (%d - 1) × %d + %d", n, d.Stride, last))
	}
	return nil
}

func (c *run) checkPages(op string) error {
	p, g := c.Dest.Paged, c.space.geo
	if !c.structured {
		return skep.Invalidf(op, "pages", "set", "unset for a part without layers")
	}
	if p.Order != skep.HND && p.Order != skep.NHD {
		return skep.Invalidf(op, "page order", p.Order, "hnd or nhd")
	}
	if p.PageStride < g.plane() {
		return skep.Invalidf(op, "page stride", p.PageStride, fmt.Sprintf("at least %d, the size of a page", g.plane()))
	}
	if len(p.Planes) != g.layers {
		return skep.Invalidf(op, "planes", len(p.Planes), fmt.Sprintf("%d, the layers of the shape", g.layers))
	}
	if len(p.Pages) != c.Blocks.Len() {
		return skep.Invalidf(op, "pages", len(p.Pages), fmt.Sprintf("%d, one a block", c.Blocks.Len()))
	}
	room := int64(1) << 62 // pages that fit into the smallest plane asked for
	for l := c.Layers.From; l < c.Layers.To; l++ {
		for k := 0; k < g.planes; k++ {
			fit := int64(0)
			if have := int64(len(p.Planes[l][k])); have >= g.plane() {
				fit = (have-g.plane())/p.PageStride + 1
			}
			room = min(room, fit)
		}
	}
	for _, page := range p.Pages {
		if page < 0 || int64(page) >= room {
			return skep.Invalidf(op, "page", page, fmt.Sprintf("0 to %d", room-1))
		}
	}
	return nil
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

// unit is the unit whose turn it is, counted from the start of its range.
func (c *run) unit() int {
	if c.Direction == skep.TailFirst || c.Direction == skep.LayersDown {
		return len(c.units) - 1 - c.turn
	}
	return c.turn
}

func (c *run) over() bool { return c.turn == len(c.units) }

// advance goes on to the next piece.
func (c *run) advance() {
	if c.Direction.ByLayer() {
		if c.sub++; c.sub < len(c.blocks) {
			return
		}
		c.sub = 0
	}
	c.turn++
}

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
	return skep.Claim{Granted: skep.Range{From: r.From, To: pos}, Jump: jump}
}

// claimTokens answers in the block directions.
func (c *run) claimTokens(r skep.Range) skep.Claim {
	per := c.space.geo.tokens
	end := len(c.Keys) * per
	if n := len(c.blocks); n > 0 && c.Blocks.To == len(c.Keys) && c.blocks[n-1] != nil {
		end += c.blocks[n-1].valid - per
	}
	if r.From > end {
		return skep.Claim{Granted: skep.Range{From: r.From, To: r.From}, Jump: end}
	}
	return c.claim(r, c.Blocks.From, per, end)
}

// claimLayers answers in the layer directions.
func (c *run) claimLayers(r skep.Range) skep.Claim {
	return c.claim(r, c.Layers.From, 1, c.space.geo.layers)
}
