package merge

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/skepkv/skep"
)

// stream is one reader's place in the merged events, and the nodes' snapshots that come before it.
type stream[S Source] struct {
	m    *Merger[S]
	done chan struct{}
	told chan struct{} // closed when the snapshots have been told

	mu        sync.Mutex // one Next at a time
	once      sync.Once
	snapshots []snapshot[S]
	next      uint64
	lost      bool // the place asked for was in another run
	missed    []missed[S]
}

// missed is a node that was away when the reader was to be told what it has stored, or in the middle of that.
type missed[S Source] struct {
	p    *pump[S]
	from time.Time // the reader is not to ask again before
}

// snapshot is a node's stream that tells of what is stored there.
type snapshot[S Source] struct {
	p    *pump[S]
	of   Life
	st   skep.EventStream
	told <-chan struct{}
}

// Events opens a stream. Events of one node come in its order, those of several as they come here. A node
// that was away is a gap when it is back. With a snapshot, the nodes' snapshots are told of one after the other.
func (m *Merger[S]) Events(ctx context.Context, from skep.Cursor, snapshot bool) (skep.EventStream, error) {
	const op = "events"
	if err := m.follow(ctx); err != nil {
		return nil, err
	}
	m.catch(ctx)
	x := &stream[S]{m: m, done: make(chan struct{}), told: make(chan struct{})}
	m.mu.Lock()
	x.next = m.next
	switch {
	case snapshot, from == skep.Cursor{}:
	case from.Epoch != m.o.Epoch:
		x.lost = true
	case from.Seq > m.next:
		last := m.next
		m.mu.Unlock()
		return nil, skep.Invalidf(op, "cursor", from.Seq, last)
	default:
		x.next = max(from.Seq, 1)
	}
	m.mu.Unlock()
	if snapshot {
		if err := x.begin(ctx); err != nil {
			_ = x.Close()
			return nil, err
		}
	}
	if len(x.snapshots) == 0 {
		close(x.told)
	}
	return x, nil
}

// begin opens the nodes' snapshots. What a node that is away has is told of when it is back and the reader, after a gap,
// asks again.
func (x *stream[S]) begin(ctx context.Context) error {
	pumps := x.m.KeepUp()
	found, errs := make([]snapshot[S], len(pumps)), make([]error, len(pumps))
	var wait sync.WaitGroup
	for i, p := range pumps {
		found[i].p = p
		wait.Go(func() { errs[i] = found[i].begin(ctx) })
	}
	wait.Wait()
	for _, y := range found {
		if y.st != nil {
			x.snapshots = append(x.snapshots, y)
		}
	}
	for i, err := range errs {
		switch {
		case err == nil:
		case found[i].st == nil && ctx.Err() == nil && x.m.o.Away(err):
			x.miss(pumps[i])
		case ctx.Err() != nil:
			return ended(ctx, "events")
		default:
			return err
		}
	}
	return nil
}

// miss notes that the reader was not told of all that a node has stored. Once the node is followed there is a gap, for
// this reader alone: the node's stream may go on as if nothing had been. A reader whose node is followed and cannot be
// asked does not ask all the time.
func (x *stream[S]) miss(p *pump[S]) {
	x.missed = append(x.missed, missed[S]{p, skep.Steady().Add(mostPause)})
}

// due takes the misses off of which the reader can ask again, and says whether there are such, or else how long it is
// till then; 0: that is not known. m.mu is held.
func (x *stream[S]) due() (some bool, wait time.Duration) {
	now := skep.Steady()
	x.missed = slices.DeleteFunc(x.missed, func(y missed[S]) bool {
		left := y.from.Sub(now)
		over := y.p.there && left <= 0
		some = some || over
		if y.p.there && !over && (wait == 0 || left < wait) {
			wait = left
		}
		return over
	})
	return some, wait
}

// begin opens the stream.
func (y *snapshot[S]) begin(ctx context.Context) error {
	life, err := y.p.n.Life(ctx)
	if err != nil {
		return err
	}
	st, err := life.Events(ctx, skep.Cursor{}, true)
	if err != nil {
		return err
	}
	y.of, y.st = life, st
	y.told, err = st.Told()
	return err
}

// Next implements skep.EventStream.
func (x *stream[S]) Next(ctx context.Context, into []skep.Event) (int, error) {
	const op = "next event"
	if len(into) == 0 {
		return 0, skep.Invalidf(op, "events to fill", 0, "at least 1")
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	for {
		if err := x.usable(op); err != nil {
			return 0, err
		}
		if len(x.snapshots) > 0 {
			n, err := x.stored(ctx, into)
			if n > 0 || err != nil {
				return n, err
			}
			continue
		}
		n, more, wait := x.take(into)
		if n > 0 {
			return n, nil
		}
		var later <-chan time.Time // nil: never
		if wait > 0 {
			later = time.After(wait)
		}
		select {
		case <-more:
		case <-later:
		case <-x.done:
		case <-x.m.o.Ctx.Done():
		case <-ctx.Done():
			return 0, ended(ctx, op)
		}
	}
}

func (x *stream[S]) usable(op string) error {
	select {
	case <-x.done:
		return &skep.Error{Op: op, Kind: skep.Closed}
	case <-x.m.o.Ctx.Done():
		return &skep.Error{Op: op, Kind: skep.Closed}
	default:
		return nil
	}
}

// stored gives what the first of the snapshots tells of. What follows it on the same stream the merged events have,
// too.
func (x *stream[S]) stored(ctx context.Context, into []skep.Event) (int, error) {
	y := x.snapshots[0]
	select {
	case <-y.told:
		x.drop()
		return 0, nil
	default:
	}
	within, cancel := context.WithCancel(ctx)
	defer cancel()
	over := make(chan struct{})
	defer close(over)
	go func() { // its Next waits for what follows the snapshot
		select {
		case <-y.told:
		case <-x.done:
		case <-x.m.o.Ctx.Done():
		case <-over:
		}
		cancel()
	}()
	n, err := y.st.Next(within, into)
	k := 0
	for i := range into[:n] {
		if e := &into[i]; e.Kind == skep.EventStored {
			y.of.Translate(ctx, e)
			e.Cursor = skep.Cursor{Epoch: x.m.o.Epoch, Seq: x.next - 1}
			into[k] = *e
			k++
		}
	}
	switch {
	case k > 0 || err == nil || within.Err() != nil && ctx.Err() == nil:
		return k, nil // told of all, or closed: the caller looks
	case ctx.Err() != nil:
		return 0, ended(ctx, "next event")
	case x.m.o.Away(err) || errors.Is(err, skep.Closed):
		x.miss(y.p)
		x.drop()
		return 0, nil
	}
	return 0, err
}

// drop ends the first of the snapshots.
func (x *stream[S]) drop() {
	_ = x.snapshots[0].st.Close()
	if x.snapshots = x.snapshots[1:]; len(x.snapshots) == 0 {
		close(x.told)
	}
}

// take copies what there is, and gives what to wait for, and how long; 0: for ever.
func (x *stream[S]) take(into []skep.Event) (n int, more <-chan struct{}, wait time.Duration) {
	m := x.m
	m.mu.Lock()
	defer m.mu.Unlock()
	due, wait := x.due()
	for n < len(into) {
		oldest := m.oldest()
		switch {
		case due:
			due = false
			into[n] = x.gap(x.next-1, 0)
		case x.lost:
			x.lost = false
			into[n] = x.gap(x.next-1, 0)
		case x.next < oldest:
			into[n] = x.gap(oldest-1, oldest-x.next)
			x.next = oldest
		case x.next < m.next:
			into[n] = m.ring[x.next%uint64(len(m.ring))]
			x.next++
		default:
			return n, m.more, wait
		}
		n++
	}
	return n, m.more, wait
}

// gap stands for events that are lost, up to and with number last; lost is 0 where nobody knows how many.
func (x *stream[S]) gap(last, lost uint64) skep.Event {
	return skep.Event{Cursor: skep.Cursor{Epoch: x.m.o.Epoch, Seq: last}, Kind: skep.EventGap, Time: skep.Steady(), Lost: lost}
}

// Told implements skep.EventStream.
func (x *stream[S]) Told() (<-chan struct{}, error) { return x.told, nil }

// Close implements skep.EventStream.
func (x *stream[S]) Close() error {
	x.once.Do(func() {
		close(x.done)
		x.mu.Lock() // a Next that waits has ended
		defer x.mu.Unlock()
		for _, y := range x.snapshots {
			_ = y.st.Close()
		}
	})
	return nil
}
