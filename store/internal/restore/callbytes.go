package restore

import (
	"github.com/skepkv/skep"
)

// What a call is reckoned to keep on the heap: itself, and a block of it. Payload is the
// caller's, or in the arena under its own budget.
const (
	CallState  = 32 << 10
	BlockState = 320
	chunkState = 32  // a chunk that is ready, beside one a block
	sumsState  = 160 // with its checksums
)

// restoreState is what a session keeps until it has delivered everything: it is counted for
// every block of its chains, though only those it has come to are known, and by layers for what their chunks take.
func (rs *Restorer) restoreState(r *skep.RestoreRequest) int64 {
	n, chunks := int64(CallState), int64(0)
	for i := range r.Chains {
		c := &r.Chains[i]
		blocks := len(c.Keys)
		if some, ok := c.Blocks.Bounds(); ok && some.Len() > 0 {
			blocks = min(blocks, some.Len())
		}
		n += int64(blocks) * BlockState
		if ns := rs.Names.Get(c.Scope.Namespace); ns != nil && (c.Direction.ByLayer() || c.Direction == skep.Auto) {
			if layers, ok := c.Layers.In(ns.Info.Shape.Layers); ok {
				chunks += int64(blocks) * int64(max(layers.Len()-1, 0))
			}
		}
	}
	if r.Sums {
		return n + chunks*(chunkState+sumsState)
	}
	return n + chunks*chunkState
}

// deliveredLocked gives back what a session keeps for chunks that are not delivered: there are none
// any more. Claims may come still, which go by the states of chunks. REQUIRES: ses.mu.
func (ses *session) deliveredLocked() {
	kept := int64(CallState)
	for _, c := range ses.chains {
		c.touched, c.wants = nil, nil
		if !ses.pumping { // else the pump lets go of it
			c.found = nil
		}
		kept += int64(len(c.items))
	}
	ses.ready, ses.readyAt = nil, 0
	if kept < ses.state {
		ses.rs.Source.LetGo(ses.tenant, ses.state-kept)
		ses.state = kept
	}
}
