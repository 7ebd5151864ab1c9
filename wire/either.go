package wire

import (
	"context"
	"fmt"

	"github.com/skepkv/skep"
)

// Chains that go either way, by tokens or by layers, as the server's Store decides when the session begins. The client
// learns which way from the first piece that comes, whole blocks or one layer of a block, or asks
// (Direction), as who claims must. Until then the chain stands as one that goes by tokens.

// directionRequest asks by which way a chain of a session goes.
type directionRequest struct {
	Session uint64
	Chain   int
}

func (m *directionRequest) walk(c *coder) {
	c.u64(&m.Session)
	c.int(&m.Chain)
}

type directionResult struct{ Direction skep.Direction }

func (m *directionResult) walk(c *coder) { enum(c, &m.Direction) }

// settle has a chain that may go either way go by tokens where it can come in nothing but whole blocks.
func (t *target) settle() {
	t.either = t.Direction == skep.EitherWay && t.structured && t.Layers.Len() > 1
	if t.Direction == skep.EitherWay {
		t.Direction = skep.TailFirst
	}
}

// offer is the direction that a chain is sent with: a server that does not know of either way gets one way.
// Nothing of the chain has come yet.
func (s *clientSession) offer(t *target, features uint32) skep.Direction {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t.either = t.either && features&FeatureEither != 0 && features&FeatureCompute != 0; t.either {
		return skep.EitherWay
	}
	return t.Direction
}

// goesLocked notes by which way a chain goes that could go either. REQUIRES: s.mu.
func (s *clientSession) goesLocked(chain int, d skep.Direction) {
	t := s.chains[chain]
	if !t.either {
		return
	}
	was := t.items()
	t.either, t.Direction = false, d
	s.left += t.items() - was
	s.got[chain] = make([]uint64, (t.items()+63)/64)
}

// itemOf is the number of the chunk of the chain that is of a block and layers; false when it has none.
func (s *clientSession) itemOf(chain, block int, layers skep.Range) (int, bool) {
	t := s.chains[chain]
	s.mu.Lock()
	defer s.mu.Unlock()
	if t.either {
		d := skep.TailFirst
		if layers.Len() == 1 {
			d = skep.LayersDown
		}
		s.goesLocked(chain, d)
	}
	return t.item(block, layers)
}

// blockOf is which block item number i is of, by whichever way the chain goes.
func (t *target) blockOf(i int) int { return t.Blocks.From + i%t.Blocks.Len() }

var _ skep.Directed = (*clientSession)(nil)

// Direction implements skep.Directed.
func (s *clientSession) Direction(chain int) (skep.Direction, error) {
	const op = "direction"
	if err := s.checkChain(op, chain); err != nil {
		return 0, err
	}
	t := s.chains[chain]
	known := func() (skep.Direction, bool) {
		s.mu.Lock()
		defer s.mu.Unlock()
		return t.Direction, !t.either
	}
	if d, ok := known(); ok {
		return d, nil
	}
	var out directionResult
	if err := s.ask(context.Background(), TypeDirection, &directionRequest{s.id, chain}, &out); err != nil {
		if d, ok := known(); ok { // all of it came meanwhile, or will not
			return d, nil
		}
		return 0, err
	}
	if out.Direction != skep.TailFirst && out.Direction != skep.LayersDown {
		return 0, broken("direction", out.Direction, "tail-first or layers-down")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.goesLocked(chain, out.Direction)
	if t.Direction != out.Direction {
		return 0, broken("direction", out.Direction, fmt.Sprint(t.Direction, ", as its chunks came"))
	}
	return t.Direction, nil
}

// directionOf answers a client's.
func directionOf(_ context.Context, r *request) (message, error) {
	const op = "direction"
	var m directionRequest
	s, err := r.about(op, &m, &m.Session)
	if err != nil {
		return nil, err
	}
	d, ok := s.ses.(skep.Directed)
	if !ok {
		return nil, &skep.Error{Op: op, Kind: skep.Unsupported, Field: "store", Value: "that does not say by which way it restores"}
	}
	var out directionResult
	out.Direction, err = d.Direction(m.Chain)
	return &out, err
}
