package server

import (
	"context"
	"fmt"
	"time"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/wire/frames"
	"github.com/skepkv/skep/wire/link"
)

// What a session waits for: its tenant's rate, a turn, credit of its client.

// admit waits until the tenant's rate has n bytes, and takes them.
func (s *serverSession) admit(n int64) error {
	for n > 0 {
		wait, ok := s.x.who.Limits().Admit(0, n)
		if ok {
			break
		}
		select {
		case <-time.After(wait):
		case <-s.ctx.Done():
			return s.ctx.Err()
		}
	}
	return nil
}

// tooSlow says that the client takes less than the least rate.
func (s *serverSession) tooSlow(field string) error {
	lim := &s.x.s.opt.Limits
	return &skep.Error{Op: "restore", Kind: skep.Deadline, Field: field, Value: "too little",
		Limit: fmt.Sprintf("%d bytes a second, %v late at most", lim.Rate, lim.Stall)}
}

// turn waits until a frame of payload may be written: one of a connection's sessions at a time, and
// few of all connections.
func (x *serverConn) turn(ctx context.Context) (end func(), err error) {
	select {
	case <-x.payload:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	written, err := x.s.turns.Take(ctx, &x.late)
	if err != nil {
		x.payload <- struct{}{}
		return nil, err
	}
	return func() {
		written()
		x.payload <- struct{}{}
	}, nil
}

// spend takes n bytes of credit when there is any: a session may pass its credit by one
// piece, so that a piece larger than the window goes through, and what is left of a
// chunk of a stopped chain needs none.
func (s *serverSession) spend(chain int, n int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.credit <= 0 && !s.stopped[chain] {
		return false
	}
	s.credit -= n
	return true
}

// await waits for credit, or until the chain is stopped.
func (s *serverSession) await(chain int) error {
	stall := time.NewTimer(s.pace.Left)
	defer stall.Stop()
	began := time.Now()
	defer func() { s.pace.Waited(time.Since(began), 0) }()
	for {
		s.mu.Lock()
		ok := s.credit > 0 || s.stopped[chain]
		s.mu.Unlock()
		if ok {
			return nil
		}
		select {
		case <-s.wake:
		case <-s.ctx.Done():
			return s.ctx.Err()
		case <-stall.C:
			return s.tooSlow("credit")
		}
	}
}

func (s *serverSession) poke() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

func (x *serverConn) session(op string, id uint64) (*serverSession, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if s := x.sessions[id]; s != nil {
		return s, nil
	}
	return nil, link.ErrorOf(op, skep.Closed)
}

func runCredit(r *request) error {
	var m frames.Credit
	if err := r.read(&m); err != nil {
		return err
	}
	r.x.mu.Lock()
	s, st := r.x.sessions[m.Session], r.x.streams[m.Session]
	r.x.mu.Unlock()
	n := int64(min(m.Amount, 1<<40))
	switch {
	case s != nil:
		s.mu.Lock()
		s.credit = min(s.credit+n, 1<<40)
		s.mu.Unlock()
		s.poke()
	case st != nil:
		st.grant(n)
	case m.Session == 0:
		r.x.mu.Lock()
		g := r.x.region
		r.x.mu.Unlock()
		if g != nil {
			return g.ring.grant(n)
		}
	}
	return nil // one that has just ended is not an error
}

// settle charges what has landed and was not told of: a client that ends the session early has it too.
func (s *serverSession) settle(ctx context.Context) {
	if s.told || s.region == nil || s.ses.Stop(ctx, -1) != nil {
		return
	}
	var into [framePieces]skep.Chunk
	for {
		n, err := s.ses.Next(ctx, into[:])
		if err != nil {
			s.told = true
			return
		}
		s.x.who.Limits().Charge(s.landed(into[:n]))
		releaseChunks(into[:n])
	}
}

// landed is how many bytes of chunks lie in shared memory.
func (s *serverSession) landed(list []skep.Chunk) (n int64) {
	for i := range list {
		if ch := &list[i]; s.region != nil && ch.Err == nil && len(ch.Data) == 0 {
			n += ch.Bytes
		}
	}
	return n
}
