package replication

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/replication/sched"
	"github.com/skepkv/skep/replication/underway"
)

// Chains with a Compute: package sched decides what is loaded of them, from which node and when. Their lanes only say
// where blocks are. What nodes are asked for is loaded as of any other chain (load.go, retry.go, late.go).

// planned is what a chain with a cost has besides.
type planned struct {
	plan *sched.Chain
	open []bool // chunks that nobody has begun or answered
	over bool   // what was open was answered: nothing more is begun or granted
}

// spec describes a chain, whose blocks have so many bytes in its layers.
func (s many) spec(c *layout.ChainPlan, sp *space, bytes float64) sched.Spec {
	return sched.Spec{Compute: c.Compute, Blocks: c.Blocks, BlockTokens: sp.Shape.BlockTokens, Layers: c.Layers,
		ByLayer: c.Direction.ByLayer(), BlockBytes: bytes, Deadline: c.Deadline, Nodes: len(s.nodes)}
}

// resolve says by which way a chain goes that may go either. beside is how many others of its session have a cost.
func (s many) resolve(c *layout.ChainPlan, sp *space, beside int) error {
	way := skep.TailFirst
	if n := c.Blocks.Len(); c.Direction == skep.Auto && n > 0 && c.Structured && n*c.Layers.Len() <= layout.MaxChunks {
		x := s.spec(c, sp, float64(max(c.Size, 1))*float64(c.Layers.Len())/float64(c.Geometry.Layers()))
		by, err := s.plans.ByLayers(&x, beside)
		if err != nil {
			return err
		}
		if by {
			way = skep.LayersDown
		}
	}
	return c.Resolve(way)
}

// join has the chains with a cost planned, and all deadlines kept. x.mu is held.
func (x *session) join() error {
	for _, c := range x.chains {
		x.arm(c)
		if c.Compute == nil || c.Chunks() == 0 {
			continue
		}
		per := 1
		if c.Direction.ByLayer() {
			per = c.Layers.Len()
		}
		spec := x.st.spec(c.ChainPlan, c.space, float64(c.each)*float64(per))
		spec.Owner = x
		for i := range c.lanes {
			for _, p := range c.lanes[i].spans {
				y := sched.Span{From: p.from, To: p.to}
				if p.node != nil {
					y.Nodes = []int{i}
					if n := x.other(c, &piece{span: p}); n != nil && x.st.paced(c.space) {
						y.Nodes = append(y.Nodes, n.i)
					}
				}
				spec.Spans = append(spec.Spans, y)
			}
		}
		slices.SortFunc(spec.Spans, func(a, b sched.Span) int { return a.From - b.From })
		plan, err := x.st.plans.Join(spec)
		if err != nil {
			return err
		}
		c.plan, c.open = plan, slices.Repeat([]bool{true}, c.Chunks())
		if why := plan.Declined(); why != nil {
			x.giveUp(c, why)
		}
	}
	return nil
}

// Look implements sched.Owner.
func (x *session) Look() {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, c := range x.chains {
		if c.plan != nil {
			x.granted(c, c.plan.Told())
		}
	}
	x.schedule()
	x.signal()
}

// arm has what is not begun missed at the chain's deadline. x.mu is held.
func (x *session) arm(c *chain) {
	if c.timer != nil {
		c.timer.Stop()
	}
	if c.Deadline.IsZero() || c.over {
		return
	}
	deadline := c.Deadline
	c.timer = time.AfterFunc(deadline.Sub(skep.Steady()), func() {
		x.mu.Lock()
		defer x.mu.Unlock()
		idle := c.plan == nil && len(slices.Concat(x.retry...)) == 0 // nothing is left that could be missed
		idle = idle && !slices.ContainsFunc(c.lanes, func(l lane) bool { return !l.over(c) })
		if c.Deadline.Equal(deadline) && !idle {
			x.giveUp(c, &skep.Error{Op: "restore", Kind: skep.Deadline})
			x.schedule()
		}
	})
}

// giveUp misses what is open of a chain with a plan, and ends its planning. x.mu is held.
func (x *session) giveUp(c *chain, why error) {
	if c.timer != nil {
		c.timer.Stop()
	}
	if c.plan == nil || c.over {
		return
	}
	c.plan.Leave()
	x.granted(c, c.plan.Told())
	c.over = true
	for i := range c.open {
		x.close(c, i, why)
	}
	x.signal()
}

// close answers a chunk that is open yet with a miss. x.mu is held.
func (x *session) close(c *chain, i int, why error) {
	if c.open[i] {
		c.open[i] = false
		block, layers := c.Chunk(i)
		if n := c.spanOf(block).node; n != nil {
			x.owed.Paid(n.i, c.each)
		}
		x.miss(c, block, layers, why)
	}
}

// granted answers what the engine has claimed, in tokens or layers. x.mu is held.
func (x *session) granted(c *chain, r skep.Range) {
	per, n := c.space.Shape.BlockTokens, 1
	first, end := c.Blocks.From, c.Blocks.To
	if c.Direction.ByLayer() {
		per, n = 1, c.Blocks.Len()
		first, end = c.Layers.From, c.Layers.To
	}
	for u := max(r.From/per, first); u < min((r.To+per-1)/per, end); u++ {
		for i := range n {
			x.close(c, (u-first)*n+i, &skep.Error{Op: "restore", Kind: skep.Claimed})
		}
	}
}

// answered tells the plan of a chunk that was delivered, or will not be. x.mu is held.
func (x *session) answered(c *chain, w *waiting) {
	if c.plan == nil || skep.KindOf(w.Err) == skep.Claimed {
		return
	}
	if !c.plan.Answered(w.Block, w.Layers.From, w.Err) {
		return
	}
	// Computing it goes through all below, so loading them makes nothing ready sooner.
	nowhere := c.lanes[len(x.st.nodes)].spans
	why := &skep.Error{Op: "restore", Kind: skep.Stopped, Field: "layer", Limit: "above one that did not come"}
	for i := range (w.Layers.From - c.Layers.From) * c.Blocks.Len() {
		err := error(why)
		block, _ := c.Chunk(i)
		if slices.ContainsFunc(nowhere, func(p span) bool { return block >= p.from && block < p.to }) {
			err = &skep.Error{Op: "restore", Kind: skep.NotFound}
		}
		x.close(c, i, err)
	}
}

// beginPlanned begins what a node is asked for of chains with a cost, and misses what no node has. x.mu is held.
func (x *session) beginPlanned(i int) {
	for _, c := range x.chains {
		if c.plan == nil || c.over {
			continue
		}
		if i == len(x.st.nodes) {
			for _, r := range c.plan.Begin(i, 0, 0, 0) {
				for b := r.From; b < r.To; b++ {
					x.close(c, c.plan.Number(b, r.Layer), &skep.Error{Op: "restore", Kind: skep.NotFound})
				}
			}
			continue
		}
		for x.active[i].Planned < underway.OfChain && len(x.ready) < mostReady && !x.full(c) {
			runs := c.plan.Begin(i, x.most(), workChunks, workPieces)
			if len(runs) == 0 {
				break
			}
			if w := x.workOf(c, i, runs); w != nil {
				x.load(w)
			}
		}
	}
}

// workOf is the work of runs, all of one node; nil: all of it has been answered meanwhile. x.mu is held.
func (x *session) workOf(c *chain, i int, runs []sched.Run) *work {
	w := &work{chain: c, node: x.st.nodes[i]}
	for _, r := range runs {
		if !c.open[c.plan.Number(r.From, r.Layer)] {
			continue
		}
		p := piece{span: c.spanOf(r.From), layers: c.Layers}
		p.from, p.to = r.From, r.To
		if c.Direction.ByLayer() {
			p.layers = skep.Range{From: r.Layer, To: r.Layer + 1}
		}
		if p.node.i != i {
			p.moved = true
			x.owed.Moves(p.node.i, i, c.each*int64(r.To-r.From))
			_, p = x.further(c, &p)
		}
		w.add(p)
		w.bytes += c.each * int64(r.To-r.From)
		for b := r.From; b < r.To; b++ {
			c.open[c.plan.Number(b, r.Layer)] = false
		}
	}
	if len(w.pieces) == 0 {
		return nil
	}
	return w
}

// spanOf is the span that a block is in.
func (c *chain) spanOf(block int) span {
	for i := range c.lanes {
		for _, p := range c.lanes[i].spans {
			if block >= p.from && block < p.to {
				return p
			}
		}
	}
	panic("a block that is nowhere")
}

// claimPlanned answers a claim of a chain with a cost. x.mu is held.
func (x *session) claimPlanned(c *chain, r skep.Range, load skep.EngineLoad) (skep.Claim, error) {
	end := c.Blocks.To * c.space.Shape.BlockTokens
	if c.Direction.ByLayer() {
		end = c.Layers.To
	}
	if r.From < 0 || r.From >= r.To || r.To > end {
		return skep.Claim{}, skep.Invalidf("claim", "range", r, fmt.Sprintf("within 0 to %d", end))
	}
	if c.plan == nil {
		return skep.Claim{Granted: r, Next: r.To}, nil
	}
	out, err := c.plan.Claim(r, load == skep.Idle, len(x.loadsOf(c.number)) > 0)
	if err == nil {
		x.granted(c, out.Granted)
		x.signal()
	}
	return out, err
}

// costed is asked, of a chain with a cost.
func (x *session) costed(ctx context.Context, op string, i int) (*chain, error) {
	c, err := x.asked(ctx, op, i)
	if err == nil && c.Compute == nil {
		err = skep.Invalidf(op, "chain", i, "one that says what computing costs")
	}
	return c, err
}

// Computed implements skep.Session.
func (x *session) Computed(ctx context.Context, i int, done skep.Range, took, other time.Duration) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	c, err := x.costed(ctx, "computed", i)
	if err != nil || c.plan == nil {
		return err
	}
	return c.plan.Computed(done, took, other)
}

// ShareClaimWord implements skep.Session. The word is any of this process's memory.
func (x *session) ShareClaimWord(ctx context.Context, i int, word *atomic.Uint64) error {
	const op = "share claim word"
	x.mu.Lock()
	defer x.mu.Unlock()
	c, err := x.costed(ctx, op, i)
	if err != nil {
		return err
	}
	if word == nil {
		return skep.Invalidf(op, "word", "nil", "one")
	}
	if c.plan == nil {
		word.Store(uint64(skep.ClaimWordOf(0, 0, 0).Shut()))
		return nil
	}
	return c.plan.Share(word)
}
