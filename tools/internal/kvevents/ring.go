package kvevents

import "sync"

// batch is one message of the PUB socket.
type batch struct {
	seq     uint64
	topic   string
	payload []byte
	before  int64 // bytes of all batches before it
}

// perBatch is what a batch takes beside its payload and topic, about.
const perBatch = 64

func (b *batch) bytes() int64 { return int64(len(b.topic)+len(b.payload)) + perBatch }

// ring keeps the last batches, a set number of them and of bytes. Every connection reads it from a place of its own.
type ring struct {
	mu    sync.Mutex
	slots []batch
	room  int64  // bytes
	first uint64 // the oldest that is held
	next  uint64 // the next that comes
	base  uint64 // where the last snapshot begins
	total int64  // bytes of all that ever came
	more  chan struct{}
	read  chan struct{} // closed and replaced when a reader has got on
	at    map[*reader]struct{}
	lost  int64 // batches that fell out before a subscriber took them
}

// newRing makes a ring for so many batches and bytes, whose first batch is number next.
func newRing(batches int, bytes int64, next uint64) *ring {
	return &ring{slots: make([]batch, batches), room: bytes, first: next, next: next, base: next,
		more: make(chan struct{}), read: make(chan struct{}), at: map[*reader]struct{}{}}
}

// add appends a batch. The oldest make room for it. One that is larger than all the room is held alone.
func (r *ring) add(topic string, payload []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	b := batch{seq: r.next, topic: topic, payload: payload, before: r.total}
	r.total += b.bytes()
	for r.first < r.next && (r.next-r.first == uint64(len(r.slots)) || r.total-r.slot(r.first).before > r.room) {
		*r.slot(r.first) = batch{}
		r.first++
	}
	*r.slot(r.next) = b
	r.next++
	close(r.more)
	r.more = make(chan struct{})
}

func (r *ring) slot(seq uint64) *batch { return &r.slots[seq%uint64(len(r.slots))] }

// rebase notes that a snapshot begins with the next batch.
func (r *ring) rebase() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.base = r.next
}

// held is how many bytes are held, and how many batches.
func (r *ring) held() (bytes int64, batches uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.first == r.next {
		return 0, 0
	}
	return r.total - r.slot(r.first).before, r.next - r.first
}

// reader is a place in the ring.
type reader struct {
	of *ring
	at uint64
}

// follow is a place before the next batch. Its reader counts as a subscriber until it leaves.
func (r *ring) follow() *reader {
	r.mu.Lock()
	defer r.mu.Unlock()
	d := &reader{of: r, at: r.next}
	r.at[d] = struct{}{}
	return d
}

// leave ends a subscriber's place.
func (d *reader) leave() {
	d.of.mu.Lock()
	defer d.of.mu.Unlock()
	delete(d.of.at, d)
	close(d.of.read)
	d.of.read = make(chan struct{})
}

// replay is a place from which a request for batches from start on is answered, and the end of the answer. whole says
// that the answer begins where was asked for, or with a snapshot.
func (r *ring) replay(start uint64) (d *reader, end uint64, whole bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case start >= r.first && start <= r.next:
	case r.base >= r.first:
		start = r.base
	default:
		return &reader{of: r, at: r.first}, r.next, false
	}
	return &reader{of: r, at: start}, r.next, true
}

// take copies the next batches. What has fallen out meanwhile is passed over, and counted for subscribers. Where there
// is nothing, more is closed when there is something.
func (d *reader) take(into []batch) (n int, more <-chan struct{}) {
	r := d.of
	r.mu.Lock()
	defer r.mu.Unlock()
	_, subscribes := r.at[d]
	if d.at < r.first {
		if subscribes {
			r.lost += int64(r.first - d.at)
		}
		d.at = r.first
	}
	for n < len(into) && d.at < r.next {
		into[n] = *r.slot(d.at)
		n++
		d.at++
	}
	if n > 0 && subscribes {
		close(r.read)
		r.read = make(chan struct{})
	}
	return n, r.more
}

// crowded says whether the next batches of a snapshot would make a subscriber lose some before long; read is closed
// when one has got on.
func (r *ring) crowded() (is bool, read <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for d := range r.at {
		if d.at >= r.next {
			continue
		}
		at := max(d.at, r.first)
		if r.next-at > uint64(len(r.slots))/2 || r.total-r.slot(at).before > r.room/2 {
			return true, r.read
		}
	}
	return false, r.read
}
