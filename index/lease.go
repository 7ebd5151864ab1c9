package index

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/skepkv/skep"
)

// LeaseRequest asks for a promise on a block and all before it in its chain.
type LeaseRequest struct {
	Deepest ID          // what Lookup or Probe gave
	FP      Fingerprint // of that block: a slot reused since is noticed
	Bytes   int64       // what it counts against the tenant's cap, once for all its leases of that block
	Tenant  uint16
	Until   time.Time
	Pin     bool // counted against the pin cap instead of the lease cap
}

type lease struct {
	id      skep.LeaseID
	deepest ID
	next    *lease // of the same block
	prev    *lease
	bytes   int64
	tenant  uint16
	pin     bool
	until   int64
}

// share is a tenant's leases, or pins, of one block.
type share struct {
	deepest ID
	tenant  uint16
	pin     bool
}

// shared is how many there are and what they count against the cap together: the most of any since there were none.
type shared struct {
	n     int
	bytes int64
}

func (e *lease) share() share { return share{e.deepest, e.tenant, e.pin} }

// held is what a tenant has leased and pinned, and may.
type held struct {
	bytes, caps [2]int64 // leases, pins; cap 0: none
	n           int      // leases and pins
	own         bool     // caps were set for this tenant
}

// leases knows who was promised what. Which slots that protects is a bit a slot in
// marks: set by walking up from the deepest block until a set bit, so a chain is
// walked once however many leases share it. Granting only queues the walk, and
// whoever wants to evict makes it up. Bits are cleared by rebuilding the set (Tick)
// after leases ended: until then too much is protected, never too little.
type leases struct {
	mu         sync.Mutex // after Index.mu
	byID       map[skep.LeaseID]*lease
	of         map[ID]*lease // of a deepest block: the one granted last
	shares     map[share]shared
	held       map[uint16]*held
	marks      []uint64
	pending    []ID // granted, not marked yet
	fresh      []ID // granted since a rebuild began
	rebuilding bool
	ended      bool   // marks hold bits of leases that are over
	unmarked   uint64 // how often such bits were cleared
	soonest    int64
	steps      uint64 // leases that removals of blocks looked at, for tests
}

func newLeases() leases {
	return leases{byID: map[skep.LeaseID]*lease{}, of: map[ID]*lease{}, shares: map[share]shared{},
		held: map[uint16]*held{}, soonest: math.MaxInt64}
}

func (l *leases) bytes() int64 { return int64(cap(l.marks)) * 8 }

func kind(pin bool) int {
	if pin {
		return 1
	}
	return 0
}

func (x *Index) held(tenant uint16) *held {
	h := x.leases.held[tenant]
	if h == nil {
		h = &held{caps: [2]int64{x.cfg.LeaseCapBytes, x.cfg.PinCapBytes}}
		x.leases.held[tenant] = h
	}
	return h
}

// SetLimits says how many bytes a tenant may have leased and pinned at a time; 0 is
// no limit. What is promised already stays promised.
func (x *Index) SetLimits(tenant uint16, leaseBytes, pinBytes int64) error {
	if leaseBytes < 0 || pinBytes < 0 {
		return skep.Invalidf("set limits", "bytes", min(leaseBytes, pinBytes), "at least 0")
	}
	x.leases.mu.Lock()
	defer x.leases.mu.Unlock()
	h := x.held(tenant)
	h.caps, h.own = [2]int64{leaseBytes, pinBytes}, true
	return nil
}

// Held is what a tenant has leased and pinned, in bytes.
func (x *Index) Held(tenant uint16) (leased, pinned int64) {
	x.leases.mu.Lock()
	defer x.leases.mu.Unlock()
	if h := x.leases.held[tenant]; h != nil {
		return h.bytes[0], h.bytes[1]
	}
	return 0, 0
}

// LeasedBytes is the payload under leases, pins apart, that are not over at now: a block counts once, however many
// leases protect it. It is reckoned from what the leases were granted with, as if the blocks of a chain had one size.
func (x *Index) LeasedBytes(now time.Time) (sum int64) {
	l := &x.leases
	l.mu.Lock()
	roots := make([]lease, 0, len(l.byID))
	for _, e := range l.byID {
		if !e.pin && e.until > now.UnixNano() {
			roots = append(roots, lease{deepest: e.deepest, bytes: e.bytes})
		}
	}
	l.mu.Unlock()
	var seen []uint64
	for some := range slices.Chunk(roots, 64) { // lookups come in between
		x.mu.RLock()
		for _, e := range some {
			var n, of int64
			for i := uint32(e.deepest); i != 0 && !x.closed; i = x.slots.at(i).parent {
				w, bit := int(i/64), uint64(1)<<(i%64)
				if w >= len(seen) {
					seen = append(seen, make([]uint64, w+1-len(seen))...)
				} else if seen[w]&bit != 0 {
					break
				}
				seen[w] |= bit
				n++
			}
			if n > 0 {
				of = max(n, int64(x.slots.at(uint32(e.deepest)).depth())+1)
				sum += e.bytes/of*n + e.bytes%of*n/of
			}
		}
		x.mu.RUnlock()
	}
	return sum
}

// Grant promises that a block and all before it in its chain survive cleaning until
// r.Until, unless deleted or damaged. NotFound is returned when the block is gone
// since it was looked up, Quota when the tenant's cap or its share of all leases would be
// passed, Full when there are too many leases.
func (x *Index) Grant(r LeaseRequest) (skep.LeaseID, error) {
	const op = "lease"
	if r.Bytes < 0 {
		return 0, skep.Invalidf(op, "bytes", r.Bytes, "at least 0")
	}
	x.mu.RLock()
	defer x.mu.RUnlock()
	if !x.valid(r.Deepest) || x.slots.at(uint32(r.Deepest)).fp != cut(&r.FP) {
		return 0, &skep.Error{Op: op, Kind: skep.NotFound, Field: "block"}
	}
	l := &x.leases
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.byID) >= x.cfg.MaxLeases {
		return 0, &skep.Error{Op: op, Kind: skep.Full, Field: "leases", Value: len(l.byID), Limit: x.cfg.MaxLeases}
	}
	h, k := x.held(r.Tenant), kind(r.Pin)
	if left := x.cfg.MaxLeases - len(l.byID); !mayTake(h.n, left) {
		return 0, overShare(op, "leases and pins", h.n, left)
	}
	until, id := timeOf(r.Until), l.newID()
	e := &lease{id: id, deepest: r.Deepest, bytes: r.Bytes, tenant: r.Tenant, pin: r.Pin, until: until}
	s := l.shares[e.share()]
	more := max(0, r.Bytes-s.bytes)
	if c := h.caps[k]; c > 0 && more > c-h.bytes[k] {
		return 0, &skep.Error{Op: op, Kind: skep.Quota, Field: [2]string{"leased bytes", "pinned bytes"}[k],
			Value: fmt.Sprintf("%d and %d more", h.bytes[k], more), Limit: fmt.Sprintf("at most %d", c)}
	}
	l.shares[e.share()] = shared{s.n + 1, s.bytes + more}
	h.bytes[k] += more
	h.n++
	l.enter(e)
	l.soonest = min(l.soonest, until)
	if l.pending = append(l.pending, r.Deepest); len(l.pending) >= maxPending {
		x.markPending() // nobody evicts: do not let the queue grow
	}
	if l.rebuilding {
		l.fresh = append(l.fresh, r.Deepest)
	}
	return id, nil
}

// newID is the number of a lease: random, so that none of an earlier run, or of another tenant, is named by one that
// was counted on from a beginning.
func (l *leases) newID() skep.LeaseID {
	for {
		if id := skep.LeaseID(rand.Uint64()); id != 0 && l.byID[id] == nil {
			return id
		}
	}
}

// Renew sets a new end. LeaseExpired is returned when the lease is unknown, over at
// now, or its block was removed.
func (x *Index) Renew(id skep.LeaseID, now, until time.Time) error {
	l := &x.leases
	l.mu.Lock()
	defer l.mu.Unlock()
	e, ok := l.byID[id]
	if !ok || e.until <= now.UnixNano() {
		return &skep.Error{Op: "renew", Kind: skep.LeaseExpired}
	}
	e.until = timeOf(until)
	l.soonest = min(l.soonest, e.until)
	return nil
}

// Leased says whether a lease, or pin, is there: it has not ended, and its block was not removed.
func (x *Index) Leased(id skep.LeaseID) bool {
	x.leases.mu.Lock()
	defer x.leases.mu.Unlock()
	return x.leases.byID[id] != nil
}

// Release ends a lease; one that is unknown or over is none to end.
func (x *Index) Release(id skep.LeaseID) {
	x.leases.mu.Lock()
	defer x.leases.mu.Unlock()
	x.leases.end(id)
}

// enter adds a lease.
func (l *leases) enter(e *lease) {
	l.byID[e.id] = e
	if e.next = l.of[e.deepest]; e.next != nil {
		e.next.prev = e
	}
	l.of[e.deepest] = e
}

// leave takes a lease off its block: one of them is over.
func (l *leases) leave(e *lease) {
	switch {
	case e.prev != nil:
		e.prev.next = e.next
	case e.next != nil:
		l.of[e.deepest] = e.next
	default:
		delete(l.of, e.deepest)
	}
	if e.next != nil {
		e.next.prev = e.prev
	}
	e.next, e.prev = nil, nil
}

func (l *leases) end(id skep.LeaseID) {
	e, ok := l.byID[id]
	if !ok {
		return
	}
	delete(l.byID, id)
	l.leave(e)
	h, k := l.held[e.tenant], kind(e.pin)
	if s := l.shares[e.share()]; s.n > 1 {
		l.shares[e.share()] = shared{s.n - 1, s.bytes}
	} else {
		h.bytes[k] -= s.bytes
		delete(l.shares, e.share())
	}
	if h.n--; h.n == 0 && !h.own {
		delete(l.held, e.tenant)
	}
	l.ended = true
}

// Tick ends the leases and hints that are over at now and makes what no lease
// protects any more evictable. Call it every second or so; Survivors does as well.
func (x *Index) Tick(now time.Time) {
	at := now.UnixNano()
	l := &x.leases
	x.mu.Lock()
	x.expireHints(at)
	x.mu.Unlock()

	roots, ok := l.beginRebuild(at)
	if !ok {
		return
	}
	// The long walk shares the lock with lookups, a piece at a time. Chains of live
	// leases do not change under it: a removed ancestor leaves a stub in its slot.
	var marks []uint64
	const piece = 64
	for len(roots) > 0 {
		n := min(piece, len(roots))
		x.mu.RLock()
		for _, id := range roots[:n] {
			marks = x.mark(marks, id)
		}
		x.mu.RUnlock()
		roots = roots[n:]
	}
	x.finishRebuild(marks)
}

// beginRebuild ends the leases that are over at a time, and lists what the others
// protect when the marks must be made anew and nobody does it already.
func (l *leases) beginRebuild(at int64) (roots []ID, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.soonest <= at {
		l.soonest = math.MaxInt64
		for id, e := range l.byID {
			if e.until <= at {
				l.end(id)
			} else {
				l.soonest = min(l.soonest, e.until)
			}
		}
	}
	if !l.ended || l.rebuilding {
		return nil, false
	}
	l.rebuilding, l.ended = true, false
	l.fresh = l.fresh[:0]
	roots = make([]ID, 0, len(l.byID))
	for _, e := range l.byID {
		roots = append(roots, e.deepest)
	}
	return roots, true
}

// finishRebuild adds what was granted since beginRebuild and puts the new marks in
// place.
func (x *Index) finishRebuild(marks []uint64) {
	l := &x.leases
	x.mu.Lock()
	defer x.mu.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, id := range l.fresh {
		marks = x.mark(marks, id)
	}
	l.marks, l.pending, l.fresh, l.rebuilding = marks, l.pending[:0], nil, false
	l.unmarked++
}

// unmarked is how often blocks became evictable as their leases had ended. REQUIRES: x.mu held.
func (x *Index) unmarked() uint64 {
	x.leases.mu.Lock()
	defer x.leases.mu.Unlock()
	return x.leases.unmarked
}

// mark sets the bits of id and its ancestors up to the first that is set.
func (x *Index) mark(marks []uint64, id ID) []uint64 {
	for i := uint32(id); i != 0 && !x.closed; i = x.slots.at(i).parent {
		w, bit := int(i/64), uint64(1)<<(i%64)
		if w >= len(marks) {
			marks = append(marks, make([]uint64, w+1-len(marks))...)
		} else if marks[w]&bit != 0 {
			break
		}
		marks[w] |= bit
	}
	return marks
}

// maxPending is how many grants wait to be marked at most.
const maxPending = 1024

// markPending makes up the walks. REQUIRES: x.mu and leases.mu held.
func (x *Index) markPending() {
	l := &x.leases
	for _, id := range l.pending {
		l.marks = x.mark(l.marks, id)
	}
	l.pending = l.pending[:0]
}

// protected says that a lease or pin covers the block. REQUIRES: x.mu held.
func (x *Index) protected(id ID) bool {
	l := &x.leases
	l.mu.Lock()
	defer l.mu.Unlock()
	return x.protectedLocked(id)
}

func (x *Index) protectedLocked(id ID) bool {
	l := &x.leases
	x.markPending()
	w := int(id / 64)
	return w < len(l.marks) && l.marks[w]&(1<<(id%64)) != 0
}

// Protected says whether a lease or pin covers a block.
func (x *Index) Protected(fp Fingerprint) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	id := x.live(&fp)
	return id != 0 && x.protected(ID(id))
}

// breakLeases ends the promises on a block that is removed by force: what they counted is its
// tenant's again. freed says that its slot will be somebody else's.
func (x *Index) breakLeases(id ID, freed bool) {
	l := &x.leases
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.byID) == 0 && !l.ended && !l.rebuilding || !x.protectedLocked(id) {
		return
	}
	for e := l.of[id]; e != nil; e = l.of[id] {
		l.end(e.id)
		l.steps++
	}
	if freed {
		l.marks[id/64] &^= 1 << (id % 64)
	}
}
