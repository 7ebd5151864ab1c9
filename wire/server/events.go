package server

import (
	"context"
	"sync"
	"time"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/wire/frames"
	"github.com/skepkv/skep/wire/link"
)

// serverStream sends events to a client that gives credit for them. Without credit it
// does not read on, and the Store's own stream counts what is lost.
type serverStream struct {
	x      *serverConn
	id     uint64
	st     skep.EventStream
	ctx    context.Context
	cancel context.CancelCauseFunc
	ended  chan struct{}
	turn   chan struct{}   // to read a snapshot; nil: none is read
	told   <-chan struct{} // closed when it has been read; nil: nobody is to be told

	tells bool // that it has been read is still to be said

	mu     sync.Mutex
	credit int64
	wake   chan struct{}
}

func runEvents(r *request) error {
	x := r.x
	st, err := func() (*serverStream, error) {
		var m frames.EventsRequest
		if err := r.read(&m); err != nil {
			return nil, err
		}
		x.mu.Lock()
		full, twice := len(x.streams) >= x.s.opt.Limits.Calls, x.streams[r.h.Call] != nil
		x.mu.Unlock()
		switch {
		case twice:
			return nil, skep.Invalidf("events", "call number", r.h.Call, "one that is not in use")
		case full:
			return nil, link.Overloaded("streams of the connection", time.Second)
		}
		if wait, ok := x.who.Limits().Admit(1, 0); !ok {
			return nil, link.Overloaded("rate of the tenant", wait)
		}
		if err := x.charge("events", "the stream", 0, lastsBytes); err != nil {
			return nil, err
		}
		inner, err := x.s.store.Events(x.ctx, m.Cursor, m.Snapshot)
		if err != nil {
			x.memory.Give(lastsBytes)
			return nil, err
		}
		st := &serverStream{x: x, id: r.h.Call, st: inner, credit: int64(min(m.Credit, 1<<20)),
			wake: make(chan struct{}, 1), ended: make(chan struct{})}
		if told, err := inner.Told(); err == nil && m.Snapshot {
			st.turn, st.told = x.s.snapshotTurn(x.who.Tenant), told
			st.tells = x.features&frames.FeatureTold != 0
		}
		st.ctx, st.cancel = context.WithCancelCause(x.ctx)
		x.mu.Lock()
		x.streams[st.id] = st
		x.mu.Unlock()
		return st, nil
	}()
	if err != nil {
		return r.answer(nil, err)
	}
	x.s.count.streams.Add(1)
	x.wait.Add(1)
	if err := r.answer(nil, nil); err != nil {
		st.cancel(nil)
		go st.close()
		return err
	}
	go st.run()
	return nil
}

func (st *serverStream) close() {
	_ = st.st.Close()
	st.x.mu.Lock()
	delete(st.x.streams, st.id)
	st.x.mu.Unlock()
	st.x.memory.Give(lastsBytes)
	st.x.s.count.streams.Add(-1)
	close(st.ended)
	st.x.wait.Done()
}

func (st *serverStream) grant(n int64) {
	st.mu.Lock()
	st.credit = min(st.credit+n, 1<<20)
	st.mu.Unlock()
	select {
	case st.wake <- struct{}{}:
	default:
	}
}

func (st *serverStream) run() {
	defer st.close()
	err := st.send()
	if st.ctx.Err() != nil {
		if err = cutShort(st.ctx); err == nil {
			return
		}
	}
	b := frames.BodyOf(err)
	if st.x.send(frames.Header{Type: frames.TypeError, Call: st.id}, &b, nil) != nil {
		st.x.end(err)
	}
}

func (st *serverStream) send() error {
	var into [256]skep.Event
	for {
		st.mu.Lock()
		room := min(st.credit, int64(len(into)))
		st.mu.Unlock()
		if room <= 0 {
			select {
			case <-st.wake:
				continue
			case <-st.ctx.Done():
				return st.ctx.Err()
			}
		}
		if st.tells && link.IsClosed(st.told) { // all that it told of has been sent
			st.tells = false
			if err := st.x.send(frames.Header{Type: frames.TypeEventBatch, Call: st.id}, &frames.EventBatch{},
				nil); err != nil {
				return err
			}
		}
		n, err := st.next(into[:room])
		if err != nil {
			return err
		}
		list := st.visible(into[:n])
		if len(list) == 0 {
			continue
		}
		st.mu.Lock()
		st.credit -= int64(len(list))
		st.mu.Unlock()
		if err := st.x.send(frames.Header{Type: frames.TypeEventBatch, Call: st.id}, &frames.EventBatch{List: list},
			nil); err != nil {
			return err
		}
	}
}

// next is what the Store has next; nothing once the snapshot has been told, so that it can be said. A snapshot reads what all
// tenants have, and what is not the identity's costs it no credit: of a tenant's snapshots one is read at a time.
func (st *serverStream) next(into []skep.Event) (int, error) {
	if st.turn == nil || link.IsClosed(st.told) {
		st.turn = nil
		return st.st.Next(st.ctx, into)
	}
	turn := st.turn
	select {
	case turn <- struct{}{}:
	case <-st.ctx.Done():
		return 0, st.ctx.Err()
	}
	ctx, cancel := context.WithCancel(st.ctx)
	defer cancel()
	back := make(chan struct{})
	defer close(back)
	go func() {
		select {
		case <-st.told: // Next may wait for events as long as nothing happens
			cancel()
		case <-back:
		}
		<-turn
	}()
	n, err := st.st.Next(ctx, into)
	if n == 0 && err != nil && link.IsClosed(st.told) && st.ctx.Err() == nil {
		err = nil // the wait has ended, and not the stream
	}
	return n, err
}

// snapshotTurn is the place of whoever reads a snapshot for a tenant.
func (s *Server) snapshotTurn(tenant string) chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	turn := s.snapshots[tenant]
	if turn == nil {
		turn = make(chan struct{}, 1)
		s.snapshots[tenant] = turn
	}
	return turn
}

// visible keeps what the identity may see: events of its tenant's namespaces, and of purges
// of several, or of a namespace that is gone, a gap, after which it asks for a snapshot; and a gap where it cannot be said
// whose the namespace is.
func (st *serverStream) visible(list []skep.Event) []skep.Event {
	kept := list[:0]
	for _, e := range list {
		switch {
		case e.Namespace == 0 && e.Kind == skep.EventPurged && !st.x.who.Reaches(""):
			e = skep.Event{Cursor: e.Cursor, Kind: skep.EventGap, Time: e.Time}
		case e.Kind == skep.EventPurged && st.x.s.spaces.gone(st.ctx, e.Namespace):
			if !st.x.who.Reaches("") {
				e = skep.Event{Cursor: e.Cursor, Kind: skep.EventGap, Time: e.Time}
			}
		case e.Namespace != 0:
			if of, ok := st.x.s.spaces.of(e.Namespace); ok && !st.x.who.Reaches(of) {
				continue // the Store is not asked at each event
			}
			switch err := st.x.s.spaces.reach(st.ctx, "events", st.x.who, e.Namespace); {
			case skep.KindOf(err) == skep.NotFound:
				continue
			case err != nil: // it may be the tenant's
				e = skep.Event{Cursor: e.Cursor, Kind: skep.EventGap, Time: e.Time}
			}
		}
		kept = append(kept, e)
	}
	return kept
}
