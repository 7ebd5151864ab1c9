package wire

import (
	"cmp"
	"context"
	"errors"
	"sync"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/wire/frames"
	"github.com/skepkv/skep/wire/link"
)

// clientStream is a stream of events from a server.
type clientStream struct {
	c  *Client
	x  *clientConn
	id uint64

	mu     sync.Mutex
	ready  []skep.Event
	more   chan struct{} // one token: something changed
	owed   uint64        // events handed out and not credited
	ended  error
	closed bool
	snap   int           // events of ready that a snapshot's end came behind; -1: it has not come
	told   chan struct{} // closed when they were handed out; nil where nobody says
}

// streamCredit is how many events wait for a reader at most.
const streamCredit = 4096

// Events implements skep.Observer. Credentials of a tenant see events of its own
// namespaces: numbers in between are other tenants'.
func (c *Client) Events(ctx context.Context, from skep.Cursor, snapshot bool) (skep.EventStream, error) {
	const op = "events"
	if err := c.open(ctx, op); err != nil {
		return nil, err
	}
	within, cancel := context.WithTimeout(ctx, c.opt.Timeout)
	defer cancel()
	x, err := c.pick(within)
	if err != nil {
		return nil, c.verdict(ctx, within, spec{op: op}, err)
	}
	p := &pendingCall{t: frames.TypeEvents, reply: make(chan reply, 1)}
	id, err := x.enlist(p)
	if err != nil {
		return nil, err
	}
	st := &clientStream{c: c, x: x, id: id, more: make(chan struct{}, 1), snap: -1}
	switch {
	case !snapshot:
		st.told = make(chan struct{})
		close(st.told)
	case x.hi.Features&frames.FeatureTold != 0:
		st.told = make(chan struct{})
	}
	x.mu.Lock()
	x.streams[id] = st
	x.mu.Unlock()
	err = x.post(within, frames.Header{Type: frames.TypeEvents, Call: id},
		&frames.EventsRequest{Cursor: from, Snapshot: snapshot, Credit: streamCredit}, nil)
	if err == nil {
		select {
		case r := <-p.reply:
			err = r.err
		case <-within.Done():
			err = link.Ended(op, within)
			go func() { // it may have begun
				ctx, cancel := context.WithTimeout(c.ctx, c.opt.Timeout)
				defer cancel()
				_, _ = x.call(ctx, frames.TypeEnd, &frames.Number{N: id}, nil, nil)
			}()
		}
	}
	if err != nil {
		st.forget()
		x.delist(id)
		var u *link.Unsent
		if errors.As(err, &u) {
			err = u.Err
		}
		return nil, c.verdict(ctx, within, spec{op: op}, err)
	}
	return st, nil
}

func (st *clientStream) forget() {
	st.x.mu.Lock()
	delete(st.x.streams, st.id)
	st.x.mu.Unlock()
}

func (st *clientStream) signal() {
	select {
	case st.more <- struct{}{}:
	default:
	}
}

// take is called by the connection's reader. An error ends the connection.
func (st *clientStream) take(body []byte) error {
	var m frames.EventBatch
	if err := frames.Decode(frames.TypeEventBatch, body, &m); err != nil {
		return err
	}
	st.mu.Lock()
	over := len(st.ready)+len(m.List) > streamCredit
	if !over && !st.closed {
		st.ready = append(st.ready, m.List...)
		if len(m.List) == 0 && st.told != nil && !link.IsClosed(st.told) {
			st.snap = len(st.ready)
			st.handedLocked(0)
		}
	}
	st.mu.Unlock()
	st.signal()
	if over {
		return frames.Broken("events", "more than the credit", streamCredit)
	}
	return nil
}

// handedLocked notes that n events were handed out. REQUIRES: st.mu.
func (st *clientStream) handedLocked(n int) {
	if st.snap < 0 {
		return
	}
	if st.snap -= n; st.snap <= 0 {
		st.snap = -1
		close(st.told)
	}
}

func (st *clientStream) lost(why error) {
	st.mu.Lock()
	st.ended = cmp.Or(st.ended, why)
	st.mu.Unlock()
	st.signal()
}

// Next implements skep.EventStream.
func (st *clientStream) Next(ctx context.Context, into []skep.Event) (int, error) {
	if len(into) == 0 {
		return 0, skep.Invalidf("next event", "room for events", 0, "at least 1")
	}
	for {
		st.mu.Lock()
		closed, why := st.closed, st.ended
		n := 0
		give := uint64(0)
		if !closed {
			n = copy(into, st.ready)
			st.ready = st.ready[n:]
			st.handedLocked(n)
			if len(st.ready) == 0 {
				st.ready = nil
			}
			if st.owed += uint64(n); st.owed >= streamCredit/4 && why == nil {
				give, st.owed = st.owed, 0
			}
		}
		st.mu.Unlock()
		if give > 0 {
			go func() {
				if !st.x.credit(st.id, give) {
					st.mu.Lock()
					st.owed += give
					st.mu.Unlock()
					st.signal() // so that it is tried again
				}
			}()
		}
		switch {
		case closed || st.c.ctx.Err() != nil:
			st.signal()
			return 0, &skep.Error{Op: "events", Kind: skep.Closed}
		case n > 0:
			st.signal()
			return n, nil
		case why != nil:
			st.signal()
			return 0, why
		}
		select {
		case <-st.more:
		case <-ctx.Done():
			return 0, link.Ended("events", ctx)
		case <-st.c.ctx.Done():
		}
	}
}

// Told implements skep.EventStream, where the server says that a snapshot has been told.
func (st *clientStream) Told() (<-chan struct{}, error) {
	if st.told == nil {
		return nil, &skep.Error{Op: "told", Kind: skep.Unsupported}
	}
	return st.told, nil
}

// Close implements skep.EventStream.
func (st *clientStream) Close() error {
	st.mu.Lock()
	was, over := st.closed, st.ended != nil
	st.closed = true
	st.ready = nil
	st.mu.Unlock()
	st.signal()
	if was || over || st.c.ctx.Err() != nil {
		st.forget()
		return nil
	}
	ctx, cancel := context.WithTimeout(st.c.ctx, st.c.opt.Timeout)
	defer cancel()
	_, _ = st.x.call(ctx, frames.TypeEnd, &frames.Number{N: st.id}, nil, nil)
	st.forget()
	return nil
}
