package restore

import (
	"slices"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout/twopointer"
)

// Stages of a pipeline. A chain of a stage's layers that names the chain of its boundary activations
// (skep.Compute.Boundary) is one strand with it: the scheduler loads activations ahead of what is
// computed and grants no further than they are here.

// tieBoundaries joins chains to those of their boundary activations. It is called when all are planned.
func (ses *session) tieBoundaries() error {
	const op = "restore"
	for _, c := range ses.chains {
		if c.Compute == nil || c.Compute.Boundary == nil {
			continue
		}
		k := c.Compute.Boundary.Chain
		if k < 0 || k >= len(ses.chains) || k == c.index {
			return skep.Invalidf(op, "boundary chain", k, "another chain of the request")
		}
		b := ses.chains[k]
		split, stage, ok := skep.BoundaryOf(b.Part)
		switch {
		case !ok:
			return skep.Invalidf(op, "part of boundary chain", b.Part, "named by Split.BoundaryPart")
		case c.Direction != skep.TailFirst:
			return skep.Invalidf(op, "direction", c.Direction, "tail-first, where there are boundary activations")
		case b.Direction != skep.HeadFirst || b.Compute != nil:
			return skep.Invalidf(op, "direction of boundary chain", b.Direction, "head-first, and nothing said of computing")
		case b.tied:
			return skep.Invalidf(op, "boundary chain", k, "tied to one chain")
		case b.Namespace != c.Namespace || b.Tag != c.Tag || b.Blocks != c.Blocks || !slices.Equal(b.Keys, c.Keys):
			return skep.Invalidf(op, "boundary chain", k, "of the same scope, keys and blocks")
		}
		if err := split.Validate(c.Geometry.Layers()); err != nil {
			return err
		}
		if want := split.Layers(stage, c.Geometry.Layers()); c.Layers != want {
			return skep.Invalidf(op, "layers", c.Layers, want)
		}
		b.tied, c.bound = true, b
	}
	return nil
}

// boundaryAnswered tells the scheduler that chunk i of c, boundary activations, landed, or will
// not. REQUIRES: ses.mu.
func (p *planned) boundaryAnswered(i int, err error) {
	t := p.two
	t.mu.Lock()
	defer t.mu.Unlock()
	if p.over {
		return
	}
	block := p.c.Blocks.From + i
	e := twopointer.Event{Kind: twopointer.Landed, Strand: p.slot, Boundary: true, From: block * p.unit, To: (block + 1) * p.unit}
	if err != nil {
		e.Kind = twopointer.Failed
	}
	t.arrived(e)
}

// spare answers what of a chain's boundary activations is not asked for as a miss, once no more of
// them can be needed.
func (ses *session) spare(p *planned) {
	ses.mu.Lock()
	defer ses.mu.Unlock()
	p.two.mu.Lock()
	settled := !p.over && p.two.sched.Settled(p.slot)
	p.two.mu.Unlock()
	if settled && !ses.ending && !p.spared.Swap(true) {
		ses.dropWaitingLocked(p.c.bound, errNotNeeded)
	}
}

var errNotNeeded = &skep.Error{Op: "restore", Kind: skep.Stopped, Field: "boundary activations", Value: "not needed"}

// dropWaitingLocked answers what of c is not on its way with a miss. REQUIRES: ses.mu.
func (ses *session) dropWaitingLocked(c *chain, why error) {
	for i := range c.items {
		if c.items[i] == itemWaiting {
			ses.answerLocked(c, i, skep.Chunk{Err: why}, itemMissed)
		}
	}
	ses.wake.Broadcast()
}

// endPlanLocked ends the scheduling of a chain whose chunks were all answered: stopped, or past its
// deadline. REQUIRES: ses.mu.
func (ses *session) endPlanLocked(c *chain, why error) {
	if c.plan == nil {
		return
	}
	c.plan.leave()
	if c.bound != nil {
		ses.dropWaitingLocked(c.bound, why)
	}
}
