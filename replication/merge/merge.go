// Package merge makes one stream of events of the streams of several nodes.
package merge

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/skepkv/skep"
)

// Source is a node whose events are followed. Two that are equal are one node.
type Source interface {
	comparable
	// Name is for people.
	Name() string
	// Gone says that no map has the node any more.
	Gone() bool
	// Events opens a stream whose numbers of namespaces are of the node's own.
	Events(ctx context.Context, from skep.Cursor, snapshot bool) (skep.EventStream, error)
	// Life is the run of the node's Store that streams are opened of now.
	Life(ctx context.Context) (Life, error)
}

// Life is one run of a node's Store.
type Life interface {
	// Only says that streams of other runs are read no more.
	Only()
	// Events opens a stream of this run only.
	Events(ctx context.Context, from skep.Cursor, snapshot bool) (skep.EventStream, error)
	// Translate makes an event of the node's one of the whole.
	Translate(ctx context.Context, e *skep.Event)
}

// Options of New.
type Options[S Source] struct {
	Buffer  int                  // events that are kept for readers that lag
	Epoch   uint64               // of the merged events' cursors
	Sources func() []S           // the nodes that there are now
	Start   func(f func()) bool  // calls f beside the callers, until Ctx ends; false: it has
	Ctx     context.Context      // ends with the Store
	Away    func(err error) bool // says that a node does not serve
	Log     *slog.Logger
}

// Merger makes one stream of the nodes' streams of events. Every event gets a number of its own when it comes
// here, and is kept in a ring for readers. It begins with the first reader.
type Merger[S Source] struct {
	o Options[S]

	mu    sync.Mutex
	begun bool
	ring  []skep.Event
	next  uint64        // number of the next event; the first is 1
	more  chan struct{} // closed and renewed when there is one, or a pump gets further
	pumps map[S]*pump[S]
}

// pump follows one node.
type pump[S Source] struct {
	m     *Merger[S]
	n     S
	tried chan struct{} // closed once the node has been asked for the first time

	of Life // that the node's stream is of

	// Guarded by Merger.mu.
	at    skep.Cursor // of the last event that came, of the node's own
	there bool        // the node's stream is open
}

// New makes a merger that follows no node yet.
func New[S Source](o Options[S]) *Merger[S] {
	return &Merger[S]{o: o, ring: make([]skep.Event, o.Buffer), next: 1, more: make(chan struct{}), pumps: map[S]*pump[S]{}}
}

func ended(ctx context.Context, op string) error {
	return &skep.Error{Op: op, Kind: skep.Deadline, Err: ctx.Err()}
}

// wake tells who waits. m.mu is held.
func (m *Merger[S]) wake() {
	close(m.more)
	m.more = make(chan struct{})
}

// append puts an event into the ring. m.mu is held.
func (m *Merger[S]) append(e skep.Event) {
	e.Cursor = skep.Cursor{Epoch: m.o.Epoch, Seq: m.next}
	m.ring[m.next%uint64(len(m.ring))] = e
	m.next++
}

// oldest is the number of the oldest event that is still there. m.mu is held.
func (m *Merger[S]) oldest() uint64 {
	if n := uint64(len(m.ring)); m.next > n {
		return m.next - n
	}
	return 1
}

// follow begins to follow the nodes, where that has not begun, and waits until all have been asked.
func (m *Merger[S]) follow(ctx context.Context) error {
	m.mu.Lock()
	m.begun = true
	m.mu.Unlock()
	for _, p := range m.KeepUp() {
		select {
		case <-p.tried:
		case <-ctx.Done():
			return ended(ctx, "events")
		case <-m.o.Ctx.Done():
			return &skep.Error{Op: "events", Kind: skep.Closed}
		}
	}
	return nil
}

// KeepUp follows the nodes that there are now, where following has begun.
func (m *Merger[S]) KeepUp() (out []*pump[S]) {
	sources := m.o.Sources()
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.begun {
		return nil
	}
	for _, n := range sources {
		if m.pumps[n] == nil {
			p := &pump[S]{m: m, n: n, tried: make(chan struct{})}
			if !m.o.Start(p.run) {
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

// run follows the node until it goes, or the Store closes.
func (p *pump[S]) run() {
	ctx := p.m.o.Ctx
	first := true
	tried := func() {
		if first {
			close(p.tried)
		}
		first = false
	}
	defer p.end()
	defer tried()
	for pause := firstPause; ctx.Err() == nil && !p.n.Gone(); {
		st, err := p.open(ctx, first)
		tried()
		if err == nil {
			var some bool
			if some, err = p.read(ctx, st); some { // a stream that ends at once is no good sign
				pause = firstPause
			}
			_ = st.Close()
			p.shut()
		}
		if ctx.Err() == nil {
			p.m.o.Log.Warn("a node's events are not followed", "node", p.n.Name(), "error", err, "again in", pause)
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
func (p *pump[S]) open(ctx context.Context, first bool) (skep.EventStream, error) {
	m := p.m
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
	if p.of, err = p.n.Life(ctx); err != nil {
		return nil, err
	}
	p.of.Only()
	st, err := p.of.Events(ctx, skep.Cursor{Epoch: at.Epoch, Seq: at.Seq + 1}, false)
	if err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	p.at, p.there = at, true
	if fresh && !first {
		m.append(skep.Event{Kind: skep.EventGap, Time: skep.Steady()})
	}
	m.wake() // readers who missed what it has stored ask again
	return st, nil
}

func (p *pump[S]) shut() {
	p.m.mu.Lock()
	p.there = false
	p.m.wake()
	p.m.mu.Unlock()
}

// end forgets what followed a node that is gone.
func (p *pump[S]) end() {
	p.m.mu.Lock()
	defer p.m.mu.Unlock()
	delete(p.m.pumps, p.n)
}

// read reads the node's stream to its end, and says whether something came.
func (p *pump[S]) read(ctx context.Context, st skep.EventStream) (some bool, err error) {
	var into [256]skep.Event
	m := p.m
	for {
		n, err := st.Next(ctx, into[:])
		for i := range into[:n] {
			p.of.Translate(ctx, &into[i])
		}
		m.mu.Lock()
		for i := range into[:n] {
			p.at = skep.Cursor{Epoch: into[i].Epoch, Seq: into[i].Seq}
			if into[i].Kind != skep.EventDevice { // its number says nothing without the node
				m.append(into[i])
			}
		}
		if n > 0 {
			some = true
			m.wake()
		}
		m.mu.Unlock()
		if err != nil {
			return some, err
		}
	}
}

// catchUp is how long a reader of events waits for those that are on their way from a node. A node may have numbered
// events that its credentials do not see: they never come.
const catchUp = 200 * time.Millisecond

// answerTime is how long a node may take to say which event was its last.
const answerTime = 2 * time.Second

// catch waits until what the nodes have told of by now has come here.
func (m *Merger[S]) catch(ctx context.Context) {
	within, cancel := context.WithTimeout(ctx, catchUp)
	defer cancel()
	var wait sync.WaitGroup
	for _, p := range m.KeepUp() {
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
func (p *pump[S]) follows() bool {
	p.m.mu.Lock()
	defer p.m.mu.Unlock()
	return p.there
}

// last is the number of the node's last event: a stream that is to go on in a run of the node's Store that never was
// begins with a gap, which has it.
func (p *pump[S]) last(ctx context.Context) (skep.Cursor, error) {
	within, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	st, err := p.n.Events(within, skep.Cursor{Epoch: rand.Uint64(), Seq: 1}, false)
	if err != nil {
		return skep.Cursor{}, err
	}
	defer st.Close()
	var into [1]skep.Event
	if _, err := st.Next(within, into[:]); err != nil {
		return skep.Cursor{}, err
	}
	if into[0].Kind != skep.EventGap {
		return skep.Cursor{}, &skep.Error{Op: "events", Kind: skep.Unsupported, Field: "gap of node", Value: p.n.Name()}
	}
	return into[0].Cursor, nil
}

// reach waits until the event of the node with that number has come.
func (p *pump[S]) reach(ctx context.Context, last skep.Cursor) {
	m := p.m
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
