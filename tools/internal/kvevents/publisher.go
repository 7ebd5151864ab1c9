package kvevents

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"github.com/skepkv/skep"
)

// Publisher publishes a Store's events.
type Publisher struct {
	st    skep.Store
	o     Options
	ring  *ring
	again chan struct{} // somebody wants a snapshot
	pace  *rate.Limiter // of snapshots
	count counts

	// Of follow's goroutine.
	spaces map[skep.NamespaceID]*space
	topics int // of spaces that are told of
	full   bool
	into   [512]skep.Event
}

// counts are what Collect shows.
type counts struct {
	batches, stored, removed, snapshots, gaps, skipped atomic.Int64
	subscribers, sent, whole, cut, refused             atomic.Int64
}

// space is a namespace as routers know it.
type space struct {
	topic     string // empty: it is not told of
	blockSize int    // in tokens, 0: not known
}

const (
	rest      = time.Minute
	atOnce    = 4                      // snapshots, before they rest
	settle    = 50 * time.Millisecond  // from a reason for a snapshot on: a database's purge is of two namespaces
	mostKnown = 1 << 16                // namespaces that are looked up once, beside those that are told of
	paceStep  = 100 * time.Millisecond // that a snapshot waits for slow subscribers before each batch
)

// New makes a Publisher of a store, which Run starts.
//
// Errors: Invalid, by the names of skep serve's settings.
func New(st skep.Store, o Options) (*Publisher, error) {
	if o.Topic == "" {
		o.Topic = DefaultTopic
	}
	if err := errors.Join(o.Check()...); err != nil {
		return nil, err
	}
	if o.Clock == nil {
		o.Clock = time.Now
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Rest == 0 {
		o.Rest = rest
	}
	return &Publisher{
		st: st, o: o, ring: newRing(o.Batches, o.Room, uint64(max(o.Clock().UnixMicro(), 1))),
		again: make(chan struct{}, 1), pace: rate.NewLimiter(rate.Every(o.Rest), atOnce),
		spaces: map[skep.NamespaceID]*space{},
	}, nil
}

// ask has a snapshot begin, as soon as one may.
func (p *Publisher) ask() {
	select {
	case p.again <- struct{}{}:
	default:
	}
}

// follow publishes until ctx ends, or the store is closed.
func (p *Publisher) follow(ctx context.Context) {
	for err := p.pace.Wait(ctx); err == nil && ctx.Err() == nil; {
		switch failed := p.life(ctx); {
		case skep.KindOf(failed) == skep.Closed:
			return
		case failed != nil && ctx.Err() == nil:
			p.o.Log.Warn("the store's events could not be followed; they are told of anew", "error", failed)
			err = p.pace.Wait(ctx)
		}
	}
}

// life publishes a snapshot and what happens after it, until ctx ends or the next snapshot may begin, which somebody
// asked for.
func (p *Publisher) life(ctx context.Context) error {
	select {
	case <-p.again: // this is it
	default:
	}
	st, err := p.st.Events(ctx, skep.Cursor{}, true)
	if err != nil {
		return err
	}
	defer st.Close()
	told, err := st.Told()
	if err != nil { // a store that cannot say so; the snapshot does not wait for subscribers
		closed := make(chan struct{})
		close(closed)
		told = closed
	}
	if err := p.begin(ctx); err != nil {
		return err
	}
	run, stop := context.WithCancel(ctx)
	ended := make(chan struct{})
	defer func() { <-ended }()
	defer stop()
	go func() {
		defer close(ended)
		select {
		case <-p.again:
			if wait(run, settle) && p.pace.Wait(run) == nil {
				stop()
			}
		case <-run.Done():
		}
	}()
	for {
		n, err := st.Next(run, p.into[:])
		if run.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		if !isClosed(told) {
			p.breathe(run)
		}
		p.tell(ctx, p.into[:n])
	}
}

// begin tells that nothing is there, in every topic: what follows says what is. What is known of namespaces is read
// anew.
func (p *Publisher) begin(ctx context.Context) error {
	all, err := p.st.Namespaces(ctx)
	if err != nil {
		return err
	}
	topics := map[string]struct{}{}
	for _, s := range p.spaces { // also of namespaces that are no more
		topics[s.topic] = struct{}{}
	}
	p.spaces, p.topics = map[skep.NamespaceID]*space{}, 0
	for i := range all {
		topics[p.know(all[i].ID, &all[i].NamespaceSpec).topic] = struct{}{}
	}
	delete(topics, "")
	p.ring.rebase()
	now := p.o.Clock()
	for topic := range topics {
		p.publish(topic, now, []any{&cleared{"AllBlocksCleared"}})
	}
	p.count.snapshots.Add(1)
	return nil
}

// wait waits that long; false: ctx has ended first.
func wait(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// breathe waits a little where a subscriber is about to lose part of the snapshot.
func (p *Publisher) breathe(ctx context.Context) {
	late := time.NewTimer(paceStep)
	defer late.Stop()
	for {
		crowded, read := p.ring.crowded()
		if !crowded {
			return
		}
		select {
		case <-read:
		case <-late.C:
			return
		case <-ctx.Done():
			return
		}
	}
}

// know keeps what is to be known of a namespace.
func (p *Publisher) know(id skep.NamespaceID, n *skep.NamespaceSpec) *space {
	if s := p.spaces[id]; s != nil {
		return s
	}
	s := &space{}
	if Selects(p.o.Namespaces, n) {
		switch {
		case p.topics >= MaxNamespaces:
			if !p.full {
				p.full = true
				p.o.Log.Warn("more namespaces than routers are told of: name those that matter in events.namespaces",
					"at_most", MaxNamespaces)
			}
		default:
			p.topics++
			s.topic = p.o.topic(n)
			if n.Shape.Kind != skep.Opaque || n.Shape.BlockTokens > 1 { // opaque blocks say 1 where nobody knows
				s.blockSize = n.Shape.BlockTokens
			}
		}
	}
	if s.topic != "" || len(p.spaces) < mostKnown {
		p.spaces[id] = s
	}
	return s
}

// space looks a namespace up; nil: there is none of that number any more.
func (p *Publisher) space(ctx context.Context, id skep.NamespaceID) *space {
	if s := p.spaces[id]; s != nil {
		return s
	}
	info, err := p.st.FindNamespace(ctx, id)
	if err != nil {
		if skep.KindOf(err) != skep.NotFound {
			p.ask()
		}
		return nil
	}
	return p.know(id, &info.NamespaceSpec)
}

// tell publishes events, a batch for each topic, and asks for a snapshot where they do not say what is there.
func (p *Publisher) tell(ctx context.Context, events []skep.Event) {
	var order []*space
	var told, gone int64 // counted once they are published
	of := map[*space]*builder{}
	for i := range events {
		e := &events[i]
		switch e.Kind {
		case skep.EventGap:
			p.count.gaps.Add(int64(e.Lost))
			p.ask()
			continue
		case skep.EventPurged:
			if s := p.space(ctx, e.Namespace); !e.Salted && (s == nil || s.topic != "") {
				p.ask() // nil: several, or one that is no more
			}
			continue
		case skep.EventDevice:
			continue
		}
		there := e.Tier != skep.TierNone
		if e.Salted || there && e.Kind != skep.EventCommitted && e.Kind != skep.EventStored {
			continue
		}
		s := p.space(ctx, e.Namespace)
		if s == nil || s.topic == "" {
			p.count.skipped.Add(1)
			continue
		}
		b := of[s]
		if b == nil {
			b = &builder{asBytes: p.o.Bytes}
			of[s], order = b, append(order, s)
		}
		if there {
			b.stored(e, s.blockSize)
			told++
		} else {
			b.removed(e)
			gone++
		}
	}
	for _, s := range order {
		p.publish(s.topic, of[s].at, of[s].events)
	}
	p.count.stored.Add(told)
	p.count.removed.Add(gone)
}

func (p *Publisher) publish(topic string, at time.Time, events []any) {
	payload, err := encode(at, events)
	if err != nil { // the encoder knows all that there is: a number is left out, which is seen as a loss
		p.o.Log.Error("events cannot be encoded", "error", err)
		p.ask()
		return
	}
	p.ring.add(topic, payload)
	p.count.batches.Add(1)
}
