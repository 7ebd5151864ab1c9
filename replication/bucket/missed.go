package bucket

import (
	"context"
	"io"
	"sync"
	"time"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout"
)

// missed is the second part of a session where the node's Store refused it: nothing of it comes.
type missed struct {
	mu   sync.Mutex
	left []skep.Chunk
}

// missing is all chunks of a request's chains, as misses.
func missing(r *skep.RestoreRequest, cuts []recall, why error) *missed {
	m := &missed{}
	for i := range r.Chains {
		c := &r.Chains[i]
		plan, err := layout.PlanChain(c, cuts[i].sp.spec.Shape)
		if err != nil { // it was planned before it was cut
			continue
		}
		each := []skep.Range{plan.Layers}
		if c.Direction.ByLayer() {
			each = nil
			for l := plan.Layers.From; l < plan.Layers.To; l++ {
				each = append(each, skep.Range{From: l, To: l + 1})
			}
		}
		for _, layers := range each {
			for b := plan.Blocks.From; b < plan.Blocks.To; b++ {
				m.left = append(m.left, skep.Chunk{Chain: i, Block: b, Layers: layers, Err: why})
			}
		}
	}
	return m
}

func (m *missed) Next(_ context.Context, into []skep.Chunk) (int, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.left) == 0 {
		return 0, io.EOF
	}
	n := copy(into, m.left)
	m.left = m.left[n:]
	return n, nil
}

func (m *missed) Reprioritise(context.Context, int, int, time.Time) error { return nil }
func (m *missed) Stop(context.Context, int) error                         { return nil }
func (m *missed) Close(context.Context) error                             { return nil }
