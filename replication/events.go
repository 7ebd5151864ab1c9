package replication

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/skepkv/skep"
)

// merger makes one stream of the nodes' streams of events. Every event gets a number of this Store's own when it comes
// here, and is kept in a ring for readers. It begins with the first reader.
type merger struct {
	s *Store

	mu    sync.Mutex
	begun bool
	ring  []skep.Event
	next  uint64        // number of the next event; the first is 1
	more  chan struct{} // closed and renewed when there is one, or a pump gets further
	pumps map[*node]*pump
}

// pump follows one node.
type pump struct {
	s     *Store
	n     *node
	tried chan struct{} // closed once the node has been asked for the first time

	of life // that the node's stream is of

	// Guarded by merger.mu.
	at    skep.Cursor // of the last event that came, of the node's own
	there bool        // the node's stream is open
}

func (m *merger) init(s *Store, buffer int) {
	m.s, m.ring, m.next, m.more, m.pumps = s, make([]skep.Event, buffer), 1, make(chan struct{}), map[*node]*pump{}
}

// wake tells who waits. m.mu is held.
func (m *merger) wake() {
	close(m.more)
	m.more = make(chan struct{})
}

// append puts an event into the ring. m.mu is held.
func (m *merger) append(e skep.Event) {
	e.Cursor = skep.Cursor{Epoch: m.s.epoch, Seq: m.next}
	m.ring[m.next%uint64(len(m.ring))] = e
	m.next++
}

// oldest is the number of the oldest event that is still there. m.mu is held.
func (m *merger) oldest() uint64 {
	if n := uint64(len(m.ring)); m.next > n {
		return m.next - n
	}
	return 1
}

// follow begins to follow the nodes, where that has not begun, and waits until all have been asked.
func (m *merger) follow(ctx context.Context) error {
	m.mu.Lock()
	m.begun = true
	m.mu.Unlock()
	for _, p := range m.keepUp(m.s.now.Load()) {
		select {
		case <-p.tried:
		case <-ctx.Done():
			return ended(ctx, "events")
		case <-m.s.ctx.Done():
			return &skep.Error{Op: "events", Kind: skep.Closed}
		}
	}
	return nil
}

// keepUp follows the nodes of a view, where following has begun, and gives those that are followed.
func (m *merger) keepUp(v *view) (out []*pump) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.begun {
		return nil
	}
	for _, n := range v.owner {
		if m.pumps[n] == nil {
			p := &pump{s: m.s, n: n, tried: make(chan struct{})}
			if !m.s.start(p.run) {
				close(p.tried)
			}
			m.pumps[n] = p
		}
		out = append(out, m.pumps[n])
	}
	return out
}

// A node that is away is asked again after so long, which doubles.
const (
	firstPause = 50 * time.Millisecond
	mostPause  = 2 * time.Second
)

// run follows the node until the Store closes.
func (p *pump) run() {
	ctx := p.s.ctx
	first := true
	tried := func() {
		if first {
			close(p.tried)
		}
		first = false
	}
	defer tried()
	for pause := firstPause; ctx.Err() == nil && !p.n.gone.Load(); {
		st, err := p.open(ctx, first)
		tried()
		if err == nil {
			pause = firstPause
			err = p.read(ctx, st)
			_ = st.Close()
			p.shut()
		}
		if ctx.Err() == nil {
			p.s.log.Warn("a node's events are not followed", "node", p.n.Name, "error", err, "again in", pause)
			select {
			case <-time.After(pause):
			case <-ctx.Done():
			}
			pause = min(2*pause, mostPause)
		}
	}
}

// open opens the node's stream where it was left, or at the next event for the first time. What happened meanwhile on
// a node that was away and of which nothing had been heard is not known: a gap.
func (p *pump) open(ctx context.Context, first bool) (skep.EventStream, error) {
	m := &p.s.merge
	m.mu.Lock()
	at := p.at
	m.mu.Unlock()
	fresh := at == (skep.Cursor{})
	var err error
	if fresh {
		if at, err = p.last(ctx); err != nil {
			return nil, err
		}
	}
	if p.of, err = p.n.life(ctx); err != nil {
		return nil, err
	}
	p.s.spaces.unlearn(p.n, p.of)
	st, err := p.n.st.Events(p.of.mark(ctx), skep.Cursor{Epoch: at.Epoch, Seq: at.Seq + 1}, false)
	if err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	p.at, p.there = at, true
	if fresh && !first {
		m.append(skep.Event{Kind: skep.EventGap, Time: skep.Steady()})
		m.wake()
	}
	return st, nil
}

func (p *pump) shut() {
	p.s.merge.mu.Lock()
	p.there = false
	p.s.merge.wake()
	p.s.merge.mu.Unlock()
}

// read reads the node's stream to its end.
func (p *pump) read(ctx context.Context, st skep.EventStream) error {
	var into [256]skep.Event
	m := &p.s.merge
	for {
		n, err := st.Next(ctx, into[:])
		for i := range into[:n] {
			p.s.translate(ctx, p.n, p.of, &into[i])
		}
		m.mu.Lock()
		for i := range into[:n] {
			p.at = skep.Cursor{Epoch: into[i].Epoch, Seq: into[i].Seq}
			if into[i].Kind != skep.EventDevice { // its number says nothing without the node
				m.append(into[i])
			}
		}
		if n > 0 {
			m.wake()
		}
		m.mu.Unlock()
		if err != nil {
			return err
		}
	}
}

// translate makes a node's event one of this Store: the namespace has another number here, and a block that begins a
// group is, on its node, the first of a chain.
func (s *Store) translate(ctx context.Context, n *node, of life, e *skep.Event) {
	e.Namespace = s.spaces.of(ctx, n, of, e.Namespace)
	if e.Salted || e.Namespace == 0 {
		return
	}
	if was, ok := s.known.Get(skep.Scope{Namespace: e.Namespace}, e.Key); ok {
		if e.Depth = was.Depth; was.HasParent {
			parent := was.Parent
			e.Parent = &parent
		}
	}
}

// catchUp is how long a reader of events waits for those that are on their way from a node. A node may have numbered
// events that its credentials do not see: they never come.
const catchUp = 200 * time.Millisecond

// answerTime is how long a node may take to say which event was its last.
const answerTime = 2 * time.Second

// catch waits until what the nodes have told of by now has come here.
func (m *merger) catch(ctx context.Context) {
	within, cancel := context.WithTimeout(ctx, catchUp)
	defer cancel()
	var wait sync.WaitGroup
	for _, p := range m.keepUp(m.s.now.Load()) {
		wait.Go(func() {
			if !p.follows() {
				return
			}
			if last, err := p.last(within); err == nil {
				p.reach(within, last)
			}
		})
	}
	wait.Wait()
}

// follows says whether the node is followed now.
func (p *pump) follows() bool {
	p.s.merge.mu.Lock()
	defer p.s.merge.mu.Unlock()
	return p.there
}

// last is the number of the node's last event: a stream that is to go on in a run of the node's Store that never was
// begins with a gap, which has it.
func (p *pump) last(ctx context.Context) (skep.Cursor, error) {
	within, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	st, err := p.n.st.Events(within, skep.Cursor{Epoch: rand.Uint64(), Seq: 1}, false)
	if err != nil {
		return skep.Cursor{}, err
	}
	defer st.Close()
	var into [1]skep.Event
	if _, err := st.Next(within, into[:]); err != nil {
		return skep.Cursor{}, err
	}
	if into[0].Kind != skep.EventGap {
		return skep.Cursor{}, &skep.Error{Op: "events", Kind: skep.Unsupported, Field: "gap of node", Value: p.n.Name}
	}
	return into[0].Cursor, nil
}

// reach waits until the event of the node with that number has come.
func (p *pump) reach(ctx context.Context, last skep.Cursor) {
	m := &p.s.merge
	for {
		m.mu.Lock()
		more := m.more
		there := !p.there || p.at.Epoch == last.Epoch && p.at.Seq >= last.Seq
		m.mu.Unlock()
		if there {
			return
		}
		select {
		case <-more:
		case <-ctx.Done():
			return
		}
	}
}
