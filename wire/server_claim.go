package wire

import (
	"context"
	"fmt"

	"github.com/skepkv/skep"
)

// give tells chains what computing them costs.
func (m *costedRestoreRequest) give(chains []skep.Chain) error {
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
func (r *request) about(op string, m message, id *uint64) (*serverSession, error) {
	if err := r.read(m); err != nil {
		return nil, err
	}
	return r.x.session(op, *id)
}

func claim(_ context.Context, r *request) (message, error) {
	var m claimRequest
	s, err := r.about("claim", &m, &m.Session)
	if err != nil {
		return nil, err
	}
	c, err := s.ses.Claim(m.Chain, m.Range)
	return &claimResult{c}, err
}

func reprioritise(_ context.Context, r *request) (message, error) {
	var m reprioritiseRequest
	s, err := r.about("reprioritise", &m, &m.Session)
	if err != nil {
		return nil, err
	}
	return nil, s.ses.Reprioritise(m.Chain, m.Priority, deadlineIn(m.Deadline))
}

// claimWhen is a plain claim where the Store behind has no scheduler.
func claimWhen(_ context.Context, r *request) (message, error) {
	var m claimWhenRequest
	s, err := r.about("claim", &m, &m.Session)
	if err != nil {
		return nil, err
	}
	var c skep.Claim
	if p, ok := s.ses.(skep.Planner); ok {
		c, err = p.ClaimWhen(m.Chain, m.Range, m.Idle)
	} else {
		c, err = s.ses.Claim(m.Chain, m.Range)
	}
	return &claimResult{c}, err
}

func computed(_ context.Context, r *request) (message, error) {
	var m computedRequest
	s, err := r.about("computed", &m, &m.Session)
	if err != nil {
		return nil, err
	}
	if p, ok := s.ses.(skep.Planner); ok {
		return nil, p.Computed(m.Chain, m.Range, m.Took, m.Other)
	}
	return nil, nil
}

func prepareStop(r *request) (func(context.Context) (message, error), error) {
	var m stopRequest
	s, err := r.about("stop", &m, &m.Session)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) (message, error) {
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
func prepareEnd(r *request) (func(context.Context) (message, error), error) {
	var m number
	if err := r.read(&m); err != nil {
		return nil, err
	}
	r.x.mu.Lock()
	s, st := r.x.sessions[m.N], r.x.streams[m.N]
	r.x.mu.Unlock()
	return func(ctx context.Context) (message, error) {
		var ended chan struct{}
		switch {
		case s != nil:
			s.cancel()
			s.poke()
			ended = s.ended
		case st != nil:
			st.cancel()
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
