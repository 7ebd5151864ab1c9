package observe

import (
	"github.com/skepkv/skep/store/internal/locks"
	"strconv"
	"time"

	"github.com/skepkv/skep"
)

// EventBytes is what an event takes of memory, about.
const EventBytes = 160

// Events keeps the last events in a ring. Readers copy out of it at their own pace;
// one that falls behind by more than the ring is told how many it lost.
type Events struct {
	mu     locks.Mutex[locks.Events]
	epoch  uint64
	ring   []skep.Event
	next   uint64        // sequence number of the next event; the first is 1
	more   chan struct{} // closed and replaced when an event comes while somebody waits
	wanted bool
	closed bool
	now    func() time.Time
}

// NewEvents makes a ring of so many, of a store that was opened for the epoch-th time.
func NewEvents(epoch uint64, size int, now func() time.Time) *Events {
	return &Events{epoch: epoch, ring: make([]skep.Event, size), next: 1, more: make(chan struct{}), now: now}
}

// Emit gives an event its cursor, and its time where it has none.
func (l *Events) Emit(e skep.Event) { l.EmitIf(e, func() bool { return true }) }

// EmitIf is Emit if f says so, which is asked at the event's place among the others: what it finds was so for all
// events before, and what it changes is so for all behind.
func (l *Events) EmitIf(e skep.Event, f func() bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !f() {
		return
	}
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

// Close ends the ring: what is emitted afterwards is told to nobody.
func (l *Events) Close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.closed {
		l.closed = true
		close(l.more)
	}
}

// Epoch is the one that cursors are of.
func (l *Events) Epoch() uint64 { return l.epoch }

// Reader is at a place among the events.
type Reader struct {
	of  *Events
	at  uint64 // next event to deliver
	gap uint64 // events to be reported lost before it
}

// Reader begins with what is emitted next. With from, which is not zero, it begins there, or tells of
// what is lost. Error: Invalid for a cursor of events that never were.
func (l *Events) Reader(from skep.Cursor) (*Reader, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	st := &Reader{of: l, at: l.next}
	switch {
	case from == (skep.Cursor{}):
	case from.Epoch != l.epoch:
		st.gap = max(l.next-1, 1)
	case from.Seq > l.next:
		return nil, skep.Invalidf("events", "cursor", from.Seq, "at most "+strconv.FormatUint(l.next, 10))
	default:
		st.at = max(from.Seq, 1)
	}
	return st, nil
}

// Before is the cursor of the event before the next.
func (st *Reader) Before() skep.Cursor { return skep.Cursor{Epoch: st.of.epoch, Seq: st.at - 1} }

// Take copies what is there. Where that is nothing, more is closed when there is something; the error
// is Closed when nothing comes any more.
func (st *Reader) Take(into []skep.Event) (n int, more chan struct{}, err error) {
	l := st.of
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
		return 0, nil, &skep.Error{Op: "store", Kind: skep.Closed}
	}
	l.wanted = true
	return n, l.more, nil
}
