package server

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/wire/frames"
)

// give tells chains what computing them costs.
func give(m *frames.CostedRestoreRequest, chains []skep.Chain) error {
	for i := range m.Compute {
		x := &m.Compute[i]
		if uint64(x.Chain) >= uint64(len(chains)) || chains[x.Chain].Compute != nil {
			return skep.Invalidf("restore", "chain of a cost", x.Chain, fmt.Sprintf("0 to %d, each once", len(chains)-1))
		}
		chains[x.Chain].Compute = &x.Compute
	}
	return nil
}

// about decodes the body of a call about a session and finds that.
func (r *request) about(op string, m frames.Message, id *uint64) (*serverSession, error) {
	if err := r.read(m); err != nil {
		return nil, err
	}
	return r.x.session(op, *id)
}

func claim(ctx context.Context, r *request) (frames.Message, error) {
	var m frames.ClaimRequest
	s, err := r.about("claim", &m, &m.Session)
	if err != nil {
		return nil, err
	}
	c, err := s.ses.Claim(ctx, m.Chain, frames.Subset(m.Range), skep.Idle)
	return &frames.ClaimResult{Claim: c}, err
}

// prepareReprioritise is of a call that may wait: a Store may be about to begin a restore by what was said before.
func prepareReprioritise(r *request) (func(context.Context) (frames.Message, error), error) {
	var m frames.ReprioritiseRequest
	s, err := r.about("reprioritise", &m, &m.Session)
	if err != nil {
		return nil, err
	}
	deadline := deadlineIn(time.Now(), m.Deadline)
	return func(ctx context.Context) (frames.Message, error) {
		return nil, s.ses.Reprioritise(ctx, m.Chain, m.Priority, deadline)
	}, nil
}

// claimWhen is a claim of a chain with a cost, by an engine that says whether it is idle.
func claimWhen(ctx context.Context, r *request) (frames.Message, error) {
	const op = "claim"
	var m frames.ClaimWhenRequest
	s, err := r.about(op, &m, &m.Session)
	if err != nil {
		return nil, err
	}
	if err := s.checkCosted(op, m.Chain); err != nil {
		return nil, err
	}
	load := skep.Busy
	if m.Idle {
		load = skep.Idle
	}
	c, err := s.ses.Claim(ctx, m.Chain, frames.Subset(m.Range), load)
	return &frames.ClaimResult{Claim: c}, err
}

// checkCosted returns Invalid for a chain that does not say what computing costs.
func (s *serverSession) checkCosted(op string, chain int) error {
	if chain < 0 || chain >= len(s.costed) || !s.costed[chain] {
		return skep.Invalidf(op, "chain", chain, "one that says what computing costs")
	}
	return nil
}

// computed is answered by a Store that learns nothing from it, too.
func computed(ctx context.Context, r *request) (frames.Message, error) {
	const op = "computed"
	var m frames.ComputedRequest
	s, err := r.about(op, &m, &m.Session)
	if err != nil {
		return nil, err
	}
	if err := s.checkCosted(op, m.Chain); err != nil {
		return nil, err
	}
	if err := s.ses.Computed(ctx, m.Chain, m.Range, m.Took, m.Other); !errors.Is(err, skep.Unsupported) {
		return nil, err
	}
	return nil, nil
}

func prepareStop(r *request) (func(context.Context) (frames.Message, error), error) {
	var m frames.StopRequest
	s, err := r.about("stop", &m, &m.Session)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) (frames.Message, error) {
		s.mu.Lock()
		for i := range s.stopped {
			if m.Chain == -1 || m.Chain == i {
				s.stopped[i] = true
			}
		}
		s.mu.Unlock()
		s.poke()
		return nil, s.ses.Stop(ctx, m.Chain)
	}, nil
}

// prepareEnd ends a session or a stream of events. Its answer is the last frame that
// speaks of it.
func prepareEnd(r *request) (func(context.Context) (frames.Message, error), error) {
	var m frames.Number
	if err := r.read(&m); err != nil {
		return nil, err
	}
	r.x.mu.Lock()
	s, st := r.x.sessions[m.N], r.x.streams[m.N]
	r.x.mu.Unlock()
	return func(ctx context.Context) (frames.Message, error) {
		var ended chan struct{}
		switch {
		case s != nil:
			s.cancel(nil)
			s.poke()
			ended = s.ended
		case st != nil:
			st.cancel(nil)
			ended = st.ended
		default:
			return nil, nil
		}
		select {
		case <-ended:
			return nil, nil
		case <-ctx.Done():
			return nil, &skep.Error{Op: "end", Kind: skep.NotReleased, Err: ctx.Err()}
		}
	}, nil
}

// boardWord carries out a Board call. The session holds the memory until the Store's session is closed, which
// touches no word afterwards.
func boardWord(ctx context.Context, r *request) (frames.Message, error) {
	const op = "share claim word"
	var m frames.BoardRequest
	s, err := r.about(op, &m, &m.Session)
	if err != nil {
		return nil, err
	}
	g, err := r.x.holdRegion()
	if err != nil {
		return nil, err
	}
	defer g.release()
	if s.ring == nil || s.ring != g.ring {
		return nil, skep.Invalidf(op, "session", m.Session, "one that is answered through the ring of the attached memory")
	}
	mem, err := g.slice(m.Offset, 8)
	if err != nil {
		return nil, err
	}
	word, err := skep.ClaimWordAt(mem)
	if err != nil {
		return nil, err
	}
	return nil, s.ses.ShareClaimWord(ctx, m.Chain, word)
}

// directionOf answers a client's.
func directionOf(ctx context.Context, r *request) (frames.Message, error) {
	const op = "direction"
	var m frames.DirectionRequest
	s, err := r.about(op, &m, &m.Session)
	if err != nil {
		return nil, err
	}
	var out frames.DirectionResult
	out.Direction, err = s.ses.Direction(ctx, m.Chain)
	return &out, err
}
