package store

import (
	"context"
	"encoding/binary"
	"sync"
	"time"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/internal/namespaces"
	"github.com/skepkv/skep/store/internal/observe"
	"github.com/skepkv/skep/store/segment"
)

// eventStream is one reader.
type eventStream struct {
	s    *Store
	next *observe.Reader
	done chan struct{}
	once sync.Once

	// The snapshot, a group at a time: groups are taken from the list as it stood,
	// then those opened meanwhile, where the cleaner moves blocks to. A block that was
	// moved to a group that has been read already is told of by the event that follows.
	groups  []uint32
	highest uint32
	rest    []skep.Event
	follow  bool
	told    chan struct{} // closed when it follows
	asked   time.Time     // when the snapshot was asked for
	since   uint64        // sequence number of the store then
}

// Events implements skep.Observer.
func (s *Store) Events(ctx context.Context, from skep.Cursor, snapshot bool) (skep.EventStream, error) {
	if err := s.gate.Enter(ctx); err != nil {
		return nil, err
	}
	defer s.gate.Leave()
	if snapshot {
		from = skep.Cursor{}
	}
	next, err := s.events.Reader(from)
	if err != nil {
		return nil, err
	}
	st := &eventStream{s: s, next: next, follow: !snapshot, told: make(chan struct{}), done: make(chan struct{})}
	// In this order: what has a later number was put after the stream had its place, so its event follows.
	st.asked = s.options.Wall()
	st.since = s.root.Last()
	if snapshot {
		st.groups = s.space.Numbers(0)
	} else {
		close(st.told)
	}
	return st, nil
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
		n, more, err := st.next.Take(into)
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

// snapshot delivers stored blocks, then turns to following.
func (st *eventStream) snapshot(ctx context.Context, into []skep.Event) (int, error) {
	for len(st.rest) == 0 {
		if len(st.groups) == 0 {
			if st.groups = st.s.space.Numbers(st.highest); len(st.groups) == 0 {
				st.follow = true
				close(st.told)
				return 0, nil
			}
		}
		num := st.groups[0]
		st.groups = st.groups[1:]
		st.highest = max(st.highest, num)
		if err := st.s.gate.Enter(ctx); err != nil {
			return 0, err
		}
		err := st.s.catalog.ScanGroup(ctx, num, func(l layout.Location, rec []byte) error {
			h, err := segment.DecodeHead(rec)
			if err != nil {
				return nil // reported when it is read
			}
			if h.Seq > st.since && h.Flags&segment.RecordMoved == 0 {
				return nil // put since: the events that follow tell of it
			}
			if e, ok := st.stored(l, &h); ok {
				e.Cursor, e.Time = st.next.Before(), st.asked
				st.rest = append(st.rest, e)
			}
			return nil
		})
		st.s.gate.Leave()
		if err != nil {
			return 0, err
		}
	}
	n := copy(into, st.rest)
	st.rest = st.rest[n:]
	return n, nil
}

// stored tells of a block in a snapshot, if it is visible and lies at l.
func (st *eventStream) stored(l layout.Location, h *segment.Head) (skep.Event, bool) {
	s := st.s
	ns := s.names.Of(h.Instance)
	if ns == nil || s.names.Dead(h.Instance, namespaces.Tag(h.SaltTag)) {
		return skep.Event{}, false
	}
	e, ok := s.index.Resolve(s.names.Fingerprint(h.Instance, namespaces.Tag(h.SaltTag), h.Key))
	if !ok || e.Location != l.Pack() {
		return skep.Event{}, false
	}
	ev := skep.Event{Kind: skep.EventStored, Namespace: ns.Info.ID, Key: h.Key,
		Depth: int(h.Depth), Tier: skep.TierDevice}
	if h.HasParent {
		p := h.Parent
		ev.Parent = &p
	}
	s.rows.Salt(&ev, h.Instance, namespaces.Tag(h.SaltTag))
	return ev, true
}

// Told implements skep.EventStream.
func (st *eventStream) Told() (<-chan struct{}, error) { return st.told, nil }

// Close implements skep.EventStream.
func (st *eventStream) Close() error {
	st.once.Do(func() { close(st.done) })
	return nil
}

// eventsEpoch is the epoch of cursors: how often the store was opened, beside a part of the store's own number, since
// what is at an address may be another store, which was opened as often. 53 bits, that JSON keeps it.
func eventsEpoch(id segment.StoreID, opens uint64) uint64 {
	return uint64(binary.LittleEndian.Uint32(id[:])&(1<<21-1))<<32 | opens&(1<<32-1)
}
