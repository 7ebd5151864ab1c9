package store

import (
	"context"
	"sync"
	"time"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/catalog"
	"github.com/skepkv/skep/store/segment"
)

// eventLog keeps the last events in a ring. Readers copy out of it at their own pace;
// one that falls behind by more than the ring is told how many it lost.
type eventLog struct {
	mu     sync.Mutex
	epoch  uint64
	ring   []skep.Event
	next   uint64        // sequence number of the next event; the first is 1
	more   chan struct{} // closed and replaced when an event comes while somebody waits
	wanted bool
	closed bool
	now    func() time.Time
}

func newEventLog(epoch uint64, size int, now func() time.Time) *eventLog {
	return &eventLog{epoch: epoch, ring: make([]skep.Event, size), next: 1, more: make(chan struct{}), now: now}
}

func (l *eventLog) emit(e skep.Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed { // told by what outlived Close; nobody reads it
		return
	}
	if e.Time.IsZero() {
		e.Time = l.now()
	}
	e.Cursor = skep.Cursor{Epoch: l.epoch, Seq: l.next}
	l.ring[l.next%uint64(len(l.ring))] = e
	l.next++
	if l.wanted {
		close(l.more)
		l.more = make(chan struct{})
		l.wanted = false
	}
}

func (l *eventLog) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.closed {
		l.closed = true
		close(l.more)
	}
}

// eventStream is one reader.
type eventStream struct {
	s    *Store
	at   uint64 // next event to deliver
	gap  uint64 // events to be reported lost before it
	done chan struct{}
	once sync.Once

	// The snapshot, a group at a time: groups are taken from the list as it stood,
	// then those opened meanwhile, so that a block the cleaner moved is not missed (it
	// may be told of twice).
	groups  []uint32
	highest uint32
	rest    []skep.Event
	follow  bool
	since   uint64 // sequence number of the store when the snapshot was asked for
}

// Events implements skep.Observer.
func (s *Store) Events(ctx context.Context, from skep.Cursor, snapshot bool) (skep.EventStream, error) {
	if err := s.enter(ctx); err != nil {
		return nil, err
	}
	defer s.leave()
	l := s.events
	since := s.seq.Load()
	l.mu.Lock()
	defer l.mu.Unlock()
	st := &eventStream{since: since, s: s, at: l.next, follow: !snapshot, done: make(chan struct{})}
	if from != (skep.Cursor{}) && !snapshot {
		switch {
		case from.Epoch != l.epoch:
			st.at, st.gap = l.next, max(l.next-1, 1)
		case from.Seq > l.next:
			return nil, skep.Invalidf("events", "cursor", from.Seq, "at most "+itoa64(int64(l.next)))
		default:
			st.at = max(from.Seq, 1)
		}
	}
	if snapshot {
		st.groups = s.groupNumbers(0)
	}
	return st, nil
}

// groupNumbers are the groups above n, ascending.
func (s *Store) groupNumbers(n uint32) []uint32 {
	s.space.mu.Lock()
	defer s.space.mu.Unlock()
	var out []uint32
	for num := range s.space.mu.groups {
		if num > n {
			out = append(out, num)
		}
	}
	sortBy(out, func(a, b uint32) bool { return a < b })
	return out
}

// Next implements skep.EventStream.
func (st *eventStream) Next(ctx context.Context, into []skep.Event) (int, error) {
	if len(into) == 0 {
		return 0, skep.Invalidf("next event", "room for events", 0, "at least 1")
	}
	for {
		select {
		case <-st.done:
			return 0, &skep.Error{Op: "events", Kind: skep.Closed}
		default:
		}
		if !st.follow {
			n, err := st.snapshot(ctx, into)
			if n > 0 || err != nil {
				return n, err
			}
			continue
		}
		n, more, err := st.take(into)
		if n > 0 || err != nil {
			return n, err
		}
		select {
		case <-more:
		case <-st.done:
		case <-ctx.Done():
			return 0, &skep.Error{Op: "events", Kind: skep.Deadline, Err: ctx.Err()}
		}
	}
}

// take copies what is there.
func (st *eventStream) take(into []skep.Event) (n int, more chan struct{}, err error) {
	l := st.s.events
	l.mu.Lock()
	defer l.mu.Unlock()
	if kept := uint64(len(l.ring)); l.next > kept && st.at < l.next-kept {
		st.gap += l.next - kept - st.at
		st.at = l.next - kept
	}
	if st.gap > 0 {
		into[0] = skep.Event{Kind: skep.EventGap, Cursor: skep.Cursor{Epoch: l.epoch, Seq: st.at - 1}, Time: l.now(), Lost: st.gap}
		st.gap = 0
		n++
	}
	for n < len(into) && st.at < l.next {
		into[n] = l.ring[st.at%uint64(len(l.ring))]
		n++
		st.at++
	}
	if n == 0 && l.closed {
		return 0, nil, errClosed
	}
	l.wanted = true
	return n, l.more, nil
}

// snapshot delivers stored blocks, then turns to following.
func (st *eventStream) snapshot(ctx context.Context, into []skep.Event) (int, error) {
	for len(st.rest) == 0 {
		if len(st.groups) == 0 {
			if st.groups = st.s.groupNumbers(st.highest); len(st.groups) == 0 {
				st.follow = true
				return 0, nil
			}
		}
		num := st.groups[0]
		st.groups = st.groups[1:]
		st.highest = max(st.highest, num)
		if err := st.s.enter(ctx); err != nil {
			return 0, err
		}
		err := st.s.catalog.ScanGroup(ctx, num, func(l catalog.Loc, rec []byte) error {
			h, err := segment.DecodeHead(rec)
			if err != nil {
				return nil // reported when it is read
			}
			if h.Seq > st.since && h.Flags&segment.RecordMoved == 0 {
				return nil // put since: the events that follow tell of it
			}
			if e, ok := st.s.storedEvent(l, &h); ok {
				e.Cursor = skep.Cursor{Epoch: st.s.epoch, Seq: st.at - 1}
				st.rest = append(st.rest, e)
			}
			return nil
		})
		st.s.leave()
		if err != nil {
			return 0, err
		}
	}
	n := copy(into, st.rest)
	st.rest = st.rest[n:]
	return n, nil
}

// storedEvent tells of a block in a snapshot, if it is visible and lies at l.
func (s *Store) storedEvent(l catalog.Loc, h *segment.Head) (skep.Event, bool) {
	ns := s.names.of(h.Instance)
	if ns == nil || s.names.dead(h.Instance, tag(h.SaltTag)) {
		return skep.Event{}, false
	}
	e, ok := s.index.Resolve(s.names.fingerprint(h.Instance, tag(h.SaltTag), h.Key))
	if !ok || e.Location != layoutOf(l).Pack() {
		return skep.Event{}, false
	}
	ev := skep.Event{Kind: skep.EventStored, Time: s.now(), Namespace: ns.info.ID, Key: h.Key,
		Depth: int(h.Depth), Tier: skep.TierDevice}
	if h.HasParent {
		p := h.Parent
		ev.Parent = &p
	}
	s.saltEvent(&ev, tag(h.SaltTag))
	return ev, true
}

// saltEvent replaces a salted block's key by its stored form.
func (s *Store) saltEvent(e *skep.Event, t tag) {
	if t == (tag{}) {
		return
	}
	e.Salted = true
	ns := s.namespaceOf(e.Namespace)
	if ns == nil {
		return
	}
	e.Key = s.names.disguise(ns.instance, t, e.Key)
	if e.Parent != nil {
		p := s.names.disguise(ns.instance, t, *e.Parent)
		e.Parent = &p
	}
}

// disguise is a key as events show it under a salt.
func (n *names) disguise(instance uint32, t tag, k skep.Key) (out skep.Key) {
	fp := n.fingerprint(instance, t, k)
	copy(out[:], fp[:])
	return out
}

// blockEvent is an event about a block.
func (s *Store) blockEvent(ns *namespace, rec *segment.Record, kind skep.EventKind) skep.Event {
	e := skep.Event{Kind: kind, Namespace: ns.info.ID, Key: rec.Key, Depth: int(rec.Depth), Parent: rec.Parent, Tier: skep.TierDevice}
	if kind == skep.EventAccepted {
		e.Tier = skep.TierDRAM
	}
	s.saltEvent(&e, tag(rec.SaltTag))
	return e
}

func (s *Store) eventOf(ns *namespace, in *incoming, kind skep.EventKind) skep.Event {
	return s.blockEvent(ns, &in.rec, kind)
}

// Close implements skep.EventStream.
func (st *eventStream) Close() error {
	st.once.Do(func() { close(st.done) })
	return nil
}
