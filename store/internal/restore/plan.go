package restore

import (
	"context"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout"
)

// plan checks a restore request and makes the session's chains. It does no I/O.
func (ses *session) plan(r *skep.RestoreRequest) error {
	planned := 0
	for i := range r.Chains {
		if r.Chains[i].Compute != nil {
			planned++
		}
	}
	for i := range r.Chains {
		c, err := ses.rs.planChain(&r.Chains[i], planned-1)
		if err != nil {
			return err
		}
		c.index = i
		c.ctx, c.end = context.WithCancel(ses.ctx)
		ses.chains = append(ses.chains, c)
		ses.left += c.left
	}
	return ses.tieBoundaries()
}

// planChain checks a chain. beside is how many others of its session say what computing costs.
func (rs *Restorer) planChain(in *skep.Chain, beside int) (*chain, error) {
	c := &chain{priority: in.Priority, deadline: in.Deadline}
	var err error
	if c.NS, c.Tag, err = rs.Names.Resolve("restore", in.Scope); err != nil {
		return nil, err
	}
	if c.ChainPlan, err = layout.PlanChain(in, c.NS.Info.Shape); err != nil {
		return nil, err
	}
	if c.Direction == skep.Auto {
		way, err := rs.two.choose(c, beside)
		if err == nil {
			err = c.Resolve(way)
		}
		if err != nil {
			return nil, err
		}
	}
	_, _, c.boundary = skep.BoundaryOf(c.Part)
	c.items = make([]uint8, c.Chunks())
	c.left = c.Chunks()
	c.found = make([]*Located, c.Blocks.Len())
	c.touched = make([]bool, c.Blocks.Len())
	c.promised = rs.Source.Leased(&c.Asked)
	return c, nil
}
