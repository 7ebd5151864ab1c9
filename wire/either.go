package wire

import (
	"context"
	"fmt"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/wire/frames"
)

// Chains that go either way, by tokens or by layers, as the server's Store decides when the session begins. The client
// learns which way from the first piece that comes, whole blocks or one layer of a block, or asks
// (Direction), as who claims must. Until then the chain stands as one that goes by tokens.

// offer is the direction that a chain is sent with: a server that does not know of either way gets one way.
// Nothing of the chain has come yet.
func (s *clientSession) offer(t *layout.ChainPlan, features uint32) skep.Direction {
	s.mu.Lock()
	defer s.mu.Unlock()
	if features&frames.FeatureEither == 0 || features&frames.FeatureCompute == 0 {
		_ = t.Resolve(skep.TailFirst) // which has as many chunks
	}
	return t.Direction
}

// goesLocked notes by which way a chain goes that could go either. REQUIRES: s.mu.
func (s *clientSession) goesLocked(chain int, d skep.Direction) {
	t := s.chains[chain]
	was := t.Chunks()
	if t.Direction != skep.Auto || t.Resolve(d) != nil { // a server's Store would not choose what has too many
		return
	}
	s.left += t.Chunks() - was
	s.got[chain] = make([]uint64, (t.Chunks()+63)/64)
}

// itemOf is the number of the chunk of the chain that is of a block and layers; false when it has none.
func (s *clientSession) itemOf(chain, block int, layers skep.Range) (int, bool) {
	t := s.chains[chain]
	s.mu.Lock()
	defer s.mu.Unlock()
	if t.Direction == skep.Auto {
		d := skep.TailFirst
		if layers.Len() == 1 {
			d = skep.LayersDown
		}
		s.goesLocked(chain, d)
	}
	return t.Number(block, layers)
}

// Direction implements skep.Session.
func (s *clientSession) Direction(ctx context.Context, chain int) (skep.Direction, error) {
	const op = "direction"
	if err := s.checkChain(op, chain); err != nil {
		return 0, err
	}
	t := s.chains[chain]
	known := func() (skep.Direction, bool) {
		s.mu.Lock()
		defer s.mu.Unlock()
		return t.Direction, t.Direction != skep.Auto
	}
	if d, ok := known(); ok {
		return d, nil
	}
	var out frames.DirectionResult
	if err := s.ask(ctx, frames.TypeDirection, &frames.DirectionRequest{Session: s.id, Chain: chain},
		&out); err != nil {
		if d, ok := known(); ok { // all of it came meanwhile, or will not
			return d, nil
		}
		return 0, err
	}
	if out.Direction != skep.TailFirst && out.Direction != skep.LayersDown {
		return 0, frames.Broken("direction", out.Direction, "tail-first or layers-down")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.goesLocked(chain, out.Direction)
	if t.Direction != out.Direction {
		return 0, frames.Broken("direction", out.Direction, fmt.Sprint(t.Direction, ", as its chunks came"))
	}
	return t.Direction, nil
}
