package memstore

import (
	"context"
	"sync"
	"unsafe"

	"github.com/skepkv/skep"
)

// eventLog is a ring of the last events. Readers hold a place in it and nothing
// else, so a slow reader costs no memory: it finds its place overwritten.
type eventLog struct {
	epoch uint64
	ring  []skep.Event
	next  uint64        // sequence number of the next event; the first is 1
	more  chan struct{} // closed and renewed when there is one
}

func newEventLog(epoch uint64, size int) eventLog {
	return eventLog{epoch: epoch, ring: make([]skep.Event, size), next: 1, more: make(chan struct{})}
}

func (l *eventLog) append(e skep.Event) {
	e.Cursor = skep.Cursor{Epoch: l.epoch, Seq: l.next}
	l.ring[l.next%uint64(len(l.ring))] = e
	l.next++
	l.wake()
}

func (l *eventLog) wake() {
	close(l.more)
	l.more = make(chan struct{})
}

// oldest is the sequence number of the oldest event still there.
func (l *eventLog) oldest() uint64 {
	if n := uint64(len(l.ring)); l.next > n {
		return l.next - n
	}
	return 1
}

func (l *eventLog) bytes() int64    { return int64(min(l.next-1, uint64(len(l.ring)))) * eventSize }
func (l *eventLog) capBytes() int64 { return int64(len(l.ring)) * eventSize }

const eventSize = int64(unsafe.Sizeof(skep.Event{}))

func (s *Store) emitLocked(kind skep.EventKind, b *block, reason skep.Kind) {
	e := s.describe(kind, b)
	e.Reason = reason
	s.events.append(e)
}

func (s *Store) describe(kind skep.EventKind, b *block) skep.Event {
	e := skep.Event{
		Kind: kind, Time: s.opt.Clock(), Namespace: b.room.space.ID,
		Key: b.key, Salted: b.room.salted, Depth: b.depth, Tier: skep.TierDRAM,
	}
	if b.parent != nil {
		p := *b.parent
		e.Parent = &p
	}
	if b.gone {
		e.Tier = skep.TierNone
	}
	return e
}

// stream is one reader's place in the log.
type stream struct {
	st *Store

	mu       sync.Mutex // one Next at a time; never held while waiting
	snapshot []skep.Event
	told     chan struct{} // closed when that has been delivered
	next     uint64
	lost     bool // the place asked for was in another epoch
	closed   bool
	done     chan struct{}
}

// Events implements skep.Observer. A stream starts with the event at from, or with a
// gap when that one is not there any more. With a snapshot, from is not looked at: the
// stream goes on from the moment of the snapshot. Snapshots list parents first.
func (s *Store) Events(ctx context.Context, from skep.Cursor, snapshot bool) (skep.EventStream, error) {
	if err := s.begin(ctx, "events"); err != nil {
		return nil, err
	}
	defer s.mu.Unlock()
	x := &stream{st: s, next: s.events.next, told: make(chan struct{}), done: make(chan struct{})}
	switch {
	case snapshot:
		blocks := make([]*block, 0, s.lru.Len())
		for e := s.lru.Back(); e != nil; e = e.Prev() {
			blocks = append(blocks, e.Value.(*block))
		}
		byDepth(blocks)
		for _, b := range blocks {
			e := s.describe(skep.EventStored, b)
			e.Cursor = skep.Cursor{Epoch: s.epoch, Seq: s.events.next - 1}
			x.snapshot = append(x.snapshot, e)
		}
	case from == skep.Cursor{}:
	case from.Epoch != s.epoch || from.Seq > s.events.next:
		x.lost = true
	default:
		x.next = from.Seq
	}
	if len(x.snapshot) == 0 {
		close(x.told)
	}
	return x, nil
}

// Next implements skep.EventStream.
func (x *stream) Next(ctx context.Context, into []skep.Event) (int, error) {
	const op = "next event"
	if len(into) == 0 {
		return 0, skep.Invalidf(op, "events to fill", 0, "at least 1")
	}
	for {
		n, more, err := x.take(ctx, op, into)
		if n > 0 || err != nil {
			return n, err
		}
		select {
		case <-more:
		case <-x.done:
		case <-ctx.Done():
		}
	}
}

// take fills into with what there is, and gives what to wait on when that is nothing.
func (x *stream) take(ctx context.Context, op string, into []skep.Event) (int, <-chan struct{}, error) {
	s := x.st
	s.mu.Lock()
	defer s.mu.Unlock()
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.closed {
		return 0, nil, &skep.Error{Op: op, Kind: skep.Closed}
	}
	if err := s.usable(ctx, op); err != nil {
		return 0, nil, err
	}
	n := copy(into, x.snapshot)
	if x.snapshot = x.snapshot[n:]; n > 0 && len(x.snapshot) == 0 {
		close(x.told)
	}
	for n < len(into) && len(x.snapshot) == 0 {
		oldest := s.events.oldest()
		switch {
		case x.lost:
			x.lost = false
			into[n] = s.gap(s.events.next-1, 0)
		case x.next < oldest:
			into[n] = s.gap(oldest-1, oldest-x.next)
			x.next = oldest
		case x.next < s.events.next:
			into[n] = s.events.ring[x.next%uint64(len(s.events.ring))]
			x.next++
		default:
			return n, s.events.more, nil
		}
		n++
	}
	return n, s.events.more, nil
}

// gap stands for lost events, up to and with sequence number last; 0 is a number
// that is not known.
func (s *Store) gap(last, lost uint64) skep.Event {
	return skep.Event{Cursor: skep.Cursor{Epoch: s.epoch, Seq: last}, Kind: skep.EventGap, Time: s.opt.Clock(), Lost: lost}
}

// Told implements skep.EventStream.
func (x *stream) Told() (<-chan struct{}, error) { return x.told, nil }

// Close implements skep.EventStream.
func (x *stream) Close() error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if !x.closed {
		x.closed = true
		close(x.done)
	}
	return nil
}
