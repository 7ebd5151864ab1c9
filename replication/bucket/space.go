package bucket

import (
	"context"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/skepkv/skep"
)

const (
	// forgetFor is how long a node takes no block of another node's after it has heard that it is deleted: others hear
	// of it as soon, and by then have said so in the bucket.
	forgetFor = 10 * time.Minute
	// maxForgotten is how many keys of all spaces are remembered so; beyond, nothing is taken of the one with the most.
	maxForgotten = 1 << 20
	// pauseFor is how long a node sends nothing of what all was deleted of: others take nothing of it for forgetFor, and
	// may hear of it later.
	pauseFor = forgetFor + MaxEvery
)

// object is one of blocks, as a node knows it.
type object struct {
	in   *space
	id   string // its name in its space
	size int64
	salt [saltSize]byte
	live int          // blocks of it that are found in it
	all  []*place     // its blocks, by their numbers, deleted ones too
	made time.Time    // when this node had put it; zero: another one has
	used atomic.Int64 // when something of it was fetched, or it was made: milliseconds since 1970
}

func newObject(in *space, id string, size int64, salt [saltSize]byte) *object {
	o := &object{in: in, id: id, size: size, salt: salt}
	if at := timeOf(id); !at.IsZero() {
		o.used.Store(at.UnixMilli())
	}
	return o
}

// place is where a block is.
type place struct {
	of     *object
	number uint32 // of it in its object
	next   *place // another object that has it, which is found where this one goes
	record
}

// space is one namespace's part of the index.
type space struct {
	name  string
	spec  skep.NamespaceSpec
	key   []byte
	first bool   // key is the one that objects are sealed with
	other *space // of the same namespace by the other key: it is asked, and locked, after this one; nil: none

	mu        sync.RWMutex
	objects   map[string]*object
	blocks    map[skep.Key]*place
	forgotten map[skep.Key]time.Time // when it was deleted
	quiet     time.Time              // until then objects of other nodes' are removed: all was deleted, or too much
	owedAll   bool                   // all objects are to be removed, and were not yet
	paused    time.Time              // until then nothing is sent: all was deleted, or more than is remembered
	sending   map[skep.Key]bool      // on its way to the bucket
	sent      chan struct{}          // closed when that has ended; nil: nothing is on its way
	since     time.Time              // when it began
	coming    string                 // the object that was announced for it; "": none
	owed      map[string][]skep.Key  // deleted of objects, by their ids, and the bucket does not say so yet

	heard map[string]hearing // what the bucket says is deleted, by its name in the space

	doubts    map[string]*doubt  // objects that may come yet, by their ids
	unread    map[string]leftOut // objects that are there and not in the index, by their ids
	condemned map[string]bool    // those that are to be removed
	complete  bool               // the latest look was taken in whole, and each object it showed is in one of these
	stale     time.Time          // what a look that began before shows is not taken
	held      *held              // memory of the index, of all spaces

	paying  chan struct{} // has one while the bucket is told what is deleted
	puts    sync.RWMutex  // read: around a look at blocks and the put of a fetched one; written: around what deletes
	passing chan struct{} // has one while an object is made and put, and while all is deleted
	named   atomic.Bool   // SPACE/spec is there, as far as is known
	looking chan struct{} // has one while a look at the bucket is taken in
	looked  time.Time     // when the latest of them began; while looking has one
}

// hearing is a deletion, and when it was heard of.
type hearing struct {
	*deletion
	at time.Time
}

func newSpace(key []byte, spec *skep.NamespaceSpec, held *held) *space {
	return &space{name: spaceOf(key, spec), spec: *spec, key: key, held: held,
		objects: map[string]*object{}, blocks: map[skep.Key]*place{}, forgotten: map[skep.Key]time.Time{},
		owed: map[string][]skep.Key{}, heard: map[string]hearing{}, doubts: map[string]*doubt{},
		unread: map[string]leftOut{}, condemned: map[string]bool{},
		paying: make(chan struct{}, 1), passing: make(chan struct{}, 1), looking: make(chan struct{}, 1)}
}

// adopt takes another node's object, which a look that began then has shown, into the index, but for the blocks that
// gone names. Those that were deleted here lately are owed: who made the object had not heard of that. Where all was
// deleted lately it is to be removed; where the index has no room it is left out. Of several objects that have a block
// each node finds it in the one of the lowest id.
func (s *space) adopt(o *object, records []record, gone map[skep.Key]bool, begun, now time.Time) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.objects[o.id] != nil || s.condemned[o.id] {
		return nil
	}
	if s.owedAll || now.Before(s.quiet) || gone[whole] {
		s.condemned[o.id] = true
		delete(s.unread, o.id)
		return nil
	}
	if begun.Before(s.stale) {
		return s.leaveLocked(o.id, nextLook)
	}
	if !s.held.take(memoryOf(len(records))) {
		return s.leaveLocked(o.id, withRoom)
	}
	delete(s.unread, o.id)
	delete(s.doubts, o.id)
	s.objects[o.id] = o
	owed := map[skep.Key]bool{} // since it was in the index before
	for _, k := range s.owed[o.id] {
		owed[k] = true
	}
	s.take(o, records, func(k skep.Key) bool {
		_, dead := s.forgotten[k]
		if dead && !gone[k] && !owed[k] {
			s.owed[o.id] = append(s.owed[o.id], k)
		}
		return !dead && !gone[k] && !owed[k]
	})
	return nil
}

// take takes those of an object's blocks that may into the index; mu is held.
func (s *space) take(o *object, records []record, may func(skep.Key) bool) {
	for i, r := range records {
		p := &place{of: o, number: uint32(i), record: r}
		o.all = append(o.all, p)
		if may(r.key) {
			s.insert(p)
		}
	}
}

func (s *space) insert(p *place) {
	first := s.blocks[p.key]
	if first != nil && first.of.id < p.of.id {
		first.next, p.next = p, first.next
		return
	}
	if first != nil {
		first.of.live--
	}
	p.next = first
	s.blocks[p.key] = p
	p.of.live++
}

// out takes those places of a block that are meant out of the index.
func (s *space) out(k skep.Key, meant func(*place) bool) {
	first := s.blocks[k]
	for first != nil && meant(first) {
		first.of.live--
		if first = first.next; first == nil {
			delete(s.blocks, k)
			return
		}
		first.of.live++
		s.blocks[k] = first
	}
	for p := first; p != nil && p.next != nil; {
		if meant(p.next) {
			p.next = p.next.next
		} else {
			p = p.next
		}
	}
}

// drop takes an object out: it is gone, or has nothing that is to be found.
func (s *space) drop(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	o := s.objects[id]
	if o == nil {
		return
	}
	s.remove(o)
}

// remove takes an object out; mu is held.
func (s *space) remove(o *object) {
	delete(s.objects, o.id)
	s.held.Add(-memoryOf(len(o.all)))
	for _, p := range o.all {
		s.out(p.key, func(q *place) bool { return q == p })
	}
}

// dropBlock takes a block out that is damaged: the bucket is told that it is deleted, or it would be found again.
func (s *space) dropBlock(p *place) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.out(p.key, func(q *place) bool {
		if q == p {
			s.owed[p.of.id] = append(s.owed[p.of.id], p.key)
		}
		return q == p
	})
}

// has says whether any of these keys is in an object.
func (s *space) has(keys []skep.Key) bool {
	s.mu.RLock()
	is := len(s.blocks) > 0 && slices.ContainsFunc(keys, func(k skep.Key) bool { return s.blocks[k] != nil })
	s.mu.RUnlock()
	return is || s.other != nil && s.other.has(keys)
}

// run is the blocks of a chain from its from-th key on that objects have, up to the first that none has.
func (s *space) run(keys []skep.Key, from int) (out []*place) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.other != nil {
		s.other.mu.RLock()
		defer s.other.mu.RUnlock()
	}
	for i := from; i < len(keys); i++ {
		var parent *skep.Key
		if i > 0 {
			parent = &keys[i-1]
		}
		p, hash := s.blocks[keys[i]], hashOf(parent)
		if (p == nil || p.parent != hash) && s.other != nil {
			p = s.other.blocks[keys[i]]
		}
		if p == nil || p.parent != hash {
			break
		}
		out = append(out, p)
	}
	return out
}

// forget takes keys out, because they are deleted, and notes what the bucket is to be told. What is on its way to the
// bucket is waited for by who is told so: once that has ended, forget is to be called again. Where objects were not
// read, and it would be too much to say it of each, that is an error, and keys that were not forgotten are not.
func (s *space) forget(keys []skep.Key, now time.Time) (wait chan struct{}, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer s.remembers(len(s.forgotten))
	var fresh []skep.Key
	for _, k := range keys {
		if _, known := s.forgotten[k]; !known {
			fresh = append(fresh, k)
		}
		s.forgotten[k] = now
		if s.sending[k] {
			wait = s.sent
		}
		s.out(k, func(p *place) bool {
			s.owed[p.of.id] = append(s.owed[p.of.id], k)
			return true
		})
	}
	if err = s.forgetUnsure(keys, fresh); err != nil {
		for _, k := range fresh {
			delete(s.forgotten, k)
		}
	}
	return wait, err
}

// remembers counts what is forgotten, which was so many; mu is held.
func (s *space) remembers(was int) { s.held.forgotten.Add(int64(len(s.forgotten) - was)) }

// bound has spaces remember no more together than they may. The one with the most takes nothing for a while instead.
func (s *Store) bound(now time.Time) {
	for s.held.forgotten.Load() > s.held.forgets {
		var most *space
		n := 0
		for _, sp := range s.all() {
			sp.mu.RLock()
			if len(sp.forgotten) > n {
				most, n = sp, len(sp.forgotten)
			}
			sp.mu.RUnlock()
		}
		if most == nil { // they were forgotten meanwhile
			return
		}
		most.mu.Lock()
		n = len(most.forgotten)
		most.forgotten = map[skep.Key]time.Time{}
		most.remembers(n)
		most.hush(now, false)
		most.mu.Unlock()
	}
}

// forgetAll takes everything out: the caller removes all objects. Of those that may come yet all is owed. Nothing is
// sent for pauseFor: other nodes, of which the same is asked, would remove it. alone: there are none.
func (s *space) forgetAll(now time.Time, alone bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.owedAll = true
	for _, o := range s.objects {
		s.held.Add(-memoryOf(len(o.all)))
	}
	s.objects, s.blocks, s.owed = map[string]*object{}, map[skep.Key]*place{}, map[string][]skep.Key{}
	for id, d := range s.doubts {
		s.owed[id] = d.all()
	}
	s.hush(now, alone)
}

// hush has nothing be taken of what others send, and nothing be sent; mu is held, or nobody else has the space yet.
func (s *space) hush(from time.Time, alone bool) {
	if s.quiet = from.Add(forgetFor); !alone {
		s.paused = from.Add(pauseFor)
	}
}

// remember ends what was forgotten long ago.
func (s *space) remember(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer s.remembers(len(s.forgotten))
	maps.DeleteFunc(s.forgotten, func(_ skep.Key, at time.Time) bool { return now.Sub(at) > forgetFor })
}

// send notes what is about to go to the bucket: those of keys that no object has and nobody deleted lately.
func (s *space) send(blocks []skep.StoredBlock, now time.Time) []skep.StoredBlock {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sending, s.sent, s.since = map[skep.Key]bool{}, make(chan struct{}), now
	blocks = s.sendable(blocks, now)
	for i := range blocks {
		s.sending[blocks[i].Key] = true
	}
	return blocks
}

// sendable are those of blocks that no object has and nobody deleted lately; mu is held, for reading at least.
func (s *space) sendable(blocks []skep.StoredBlock, now time.Time) []skep.StoredBlock {
	if now.Before(s.paused) {
		return nil
	}
	return slices.DeleteFunc(blocks, func(b skep.StoredBlock) bool {
		_, dead := s.forgotten[b.Key]
		return dead || s.blocks[b.Key] != nil
	})
}

// hear takes out what the bucket says is deleted, once; useless: it names nothing that is there.
func (s *space) hear(name string, d *deletion, useless bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if useless {
		delete(s.heard, name)
		return
	}
	if s.heard[name].deletion != nil {
		return
	}
	s.heard[name] = hearing{d, time.Now()}
	for of, keys := range d.Of {
		for _, k := range keys {
			key, err := skep.ParseKey(k)
			if err == nil {
				s.out(key, func(p *place) bool { return p.of.id == of })
			}
			if o := s.objects[of]; err == nil && key == whole && o != nil {
				s.remove(o)
				s.condemned[of] = true
			}
		}
	}
}

// prune forgets the deletions that are in the bucket no more: another node has removed them.
func (s *space) prune(l *listed) {
	there := map[string]bool{}
	for _, name := range l.deleted {
		there[name] = true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.heard, func(name string, h hearing) bool { return !there[name] && h.at.Before(l.begun) })
}

// keepOnly drops the objects that the bucket has no more, those that were not read among them.
func (s *space) keepOnly(l *listed) {
	is := func(id string, since time.Time) bool { _, ok := l.objects[id]; return !ok && since.Before(l.begun) }
	s.mu.RLock()
	var gone []string
	for id, o := range s.objects {
		if is(id, o.made) {
			gone = append(gone, id)
		}
	}
	s.mu.RUnlock()
	for _, id := range gone {
		s.drop(id)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.unread, func(id string, x leftOut) bool { return is(id, x.since) })
}

// spent names the objects of which nothing is left.
func (s *space) spent() (ids []string) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for id, o := range s.objects {
		if o.live == 0 && len(s.owed[id]) == 0 {
			ids = append(ids, id)
		}
	}
	return ids
}

// hasNow says whether an object has a block.
func (s *space) hasNow(k *skep.Key) bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.blocks[*k] != nil
}

// still says whether a block is where it was.
func (s *space) still(p *place) bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.blocks[p.key] == p
}

// owesAll says whether all objects are to be removed first.
func (s *space) owesAll() bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.owedAll
}

// isComplete says whether a look has shown all that is there, and it is known what of it is deleted.
func (s *space) isComplete() bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.complete && !s.owedAll
}

func (s *space) setComplete(is bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.complete = is
}

// cleared notes that they were.
func (s *space) cleared() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.owedAll = false
	clear(s.condemned)
	clear(s.unread)
}

// pass waits until nobody else sends of the space, or removes all of it.
func (s *space) pass(ctx context.Context) error { return enter(ctx, s.passing) }

func enter(ctx context.Context, one chan struct{}) error {
	select {
	case one <- struct{}{}:
		return nil
	case <-ctx.Done():
		return &skep.Error{Op: op, Kind: skep.Deadline, Field: "object", Value: "on its way", Err: ctx.Err()}
	}
}

func (s *space) passed() { <-s.passing }
