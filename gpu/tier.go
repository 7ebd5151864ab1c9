package gpu

import (
	"container/list"
	"context"
	"crypto/sha256"
	"errors"
	"runtime"
	"slices"
	"sync/atomic"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout/elastic"
)

// blockID names a block of a Store. The salt is a secret and is not kept.
type blockID struct {
	namespace skep.NamespaceID
	salt      [sha256.Size]byte
	key       skep.Key
}

// entry is a block that is in GPU memory.
type entry struct {
	id    blockID
	place Place
	lent  int // index into tier.lent, or -1: local (own), or nowhere
	block int // in the arena it lies in
	size  int64
	sum   uint64   // 0: nothing is there yet
	sums  []uint64 // of each layer, where they are streamed; nil: not known
	used  *list.Element

	pins   int    // prefills that hold it
	fresh  bool   // being computed by one: it is not behind
	host   []byte // of a held block that is in no GPU memory any more, once it was read
	reread bool   // host is from behind, and counted in tier.reread
}

// pool is one device's memory for blocks.
type pool struct {
	device Device
	memory Memory
	stream Stream
	arena  *elastic.Arena // nil once it was detached, and where there is no local memory
	usable func() bool    // nil: always
	owned  bool           // memory that this Store allocated
}

// holds says whether the pool's memory may be used now.
func (p *pool) holds() bool { return p.usable == nil || p.usable() }

// tier is the blocks in GPU memory, least recently used first to go: local ones to lent
// memory, those to nowhere, because all have their copy behind.
type tier struct {
	blockBytes int64
	layers     int // of a block whose layers are streamed; 0: they are not
	timeout    time.Duration

	mu     turns
	local  pool // below its border blocks, above it the layer at work (divide.go)
	lent   []pool
	held   int    // how often the room for layers is held, by prefills or as a whole
	rooms  int    // of them as a whole
	least  int    // of blocks' room while it is
	stream int    // single-layer blocks that there is room for
	slots  []bool // of that room, from its end: those that prefills have
	pins   map[*entry]struct{}
	pinned *pinned // nil: none
	way    way
	// Of sessions behind, which have memory that is lent again when they have let go of it.
	unreleased unreleased
	entries    residents
	order      [2]*list.List // local and lent, most recently used first
	failed     error
	era        atomic.Uint64 // grows with whatever makes blocks go that may come back with other bytes
	// The last eras in which all blocks went, and those of a name with this hash.
	allGone uint64
	gone    [1024]uint64
	hits    int64
	drops   int64

	// Bytes being computed in lent memory, which are not behind yet, and the most there may be; 0: any.
	uncopied, mostUncopied int64
	// Bytes of histories that were read again and are in host memory, and the most there may be.
	reread, mostReread int64
	// Blocks that were copied elsewhere because a border moved over them, and those of them that went to
	// host memory because there was no room and nobody else had them.
	relocated, rescued int64
}

// turns is a lock that is had in the order in which it was asked for: a lender that wants its
// memory back waits for one copy, not for as many as a busy restore gets in before it. Who gives it
// up lets who waits for it run at once: else that goroutine may need a thread that has no CPU.
type turns struct {
	held    chan struct{}
	waiting atomic.Int32
}

func (t *turns) Lock() {
	select {
	case t.held <- struct{}{}:
		return
	default:
	}
	t.waiting.Add(1)
	t.held <- struct{}{}
	t.waiting.Add(-1)
}

// lockWithin is Lock until ctx ends.
func (t *turns) lockWithin(ctx context.Context) error {
	select {
	case t.held <- struct{}{}:
		return nil
	default:
	}
	t.waiting.Add(1)
	defer t.waiting.Add(-1)
	select {
	case t.held <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (t *turns) Unlock() {
	if <-t.held; t.waiting.Load() > 0 {
		runtime.Gosched()
	}
}

// get copies a block's bytes to dst, which is as long as the block. False: it is not there,
// or not as it was put there.
func (t *tier) get(ctx context.Context, id blockID, dst []byte) bool {
	if t.mu.lockWithin(ctx) != nil {
		return false
	}
	defer t.mu.Unlock()
	e := t.entries.of(id)
	if e == nil || int64(len(dst)) != e.size {
		return false
	}
	p := t.poolOf(e)
	if !p.holds() {
		return false
	}
	p.stream.CopyOut(dst, e.place)
	if err := t.syncLocked(p); err != nil || !p.holds() {
		return false
	}
	if max(xxh3.Hash(dst), 1) != e.sum {
		t.dropLocked(e)
		return false
	}
	t.order[e.row()].MoveToFront(e.used)
	t.hits++
	return true
}

func (t *tier) poolOf(e *entry) *pool {
	if e.lent < 0 {
		return &t.local
	}
	return &t.lent[e.lent]
}

func (e *entry) row() int {
	if e.lent < 0 {
		return 0
	}
	return 1
}

// put keeps a copy of a block that was read in an era, if there is room for one or can be
// made. It is a cache: what goes wrong is no error of the caller's.
func (t *tier) put(era uint64, id blockID, bytes []byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.failed != nil || !t.sinceLocked(era, id) || int64(len(bytes)) > t.blockBytes || t.entries.of(id) != nil || len(bytes) == 0 {
		return
	}
	e := &entry{id: id, size: int64(len(bytes))}
	t.sumLocked(e, bytes)
	if !t.placeLocked(e) {
		return
	}
	p := t.poolOf(e)
	p.stream.CopyIn(e.place, bytes)
	if err := t.syncLocked(p); err != nil {
		return // everything is gone
	}
	t.entries.set(e)
	e.used = t.order[e.row()].PushFront(e)
}

// placeLocked finds a place: a free local one, one of a local block that goes to lent memory
// or away, or a lent one where there is no local memory.
func (t *tier) placeLocked(e *entry) bool {
	if t.localPlaceLocked(e) {
		return true
	}
	if last := t.lastLocked(0); last != nil {
		t.demoteLocked(last)
	}
	return t.localPlaceLocked(e) || t.lentPlaceLocked(e)
}

// localPlaceLocked takes a free local place.
func (t *tier) localPlaceLocked(e *entry) bool {
	if t.local.arena == nil {
		return false
	}
	block, ok := t.local.arena.Alloc(elastic.Lender)
	if ok {
		e.lent, e.block = -1, block
		e.place = Place{t.local.memory, t.local.arena.Offset(elastic.Lender, block)}
	}
	return ok
}

// lentPlaceLocked takes a lent place, of the least recently used lent block if none is free.
func (t *tier) lentPlaceLocked(e *entry) bool {
	for again := true; ; again = false {
		for i := range t.lent {
			p := &t.lent[i]
			if p.arena == nil || !p.holds() {
				continue
			}
			if block, ok := p.arena.Alloc(elastic.ToBorrower); ok {
				e.lent, e.block = i, block
				e.place = Place{p.memory, p.arena.Offset(elastic.ToBorrower, block)}
				return true
			}
		}
		last := t.lastLocked(1)
		if !again || last == nil {
			return false
		}
		t.dropLocked(last)
	}
}

// demoteLocked moves a local block to lent memory, over the link between the devices, or
// drops it.
func (t *tier) demoteLocked(e *entry) {
	to := &entry{id: e.id, size: e.size, sum: e.sum, sums: e.sums}
	if !t.lentPlaceLocked(to) {
		t.dropLocked(e)
		return
	}
	p := t.poolOf(to)
	p.stream.Copy(to.place, e.place, e.size)
	if t.syncLocked(p) != nil {
		return // everything is gone
	}
	t.dropLocked(e)
	t.entries.set(to)
	to.used = t.order[1].PushFront(to)
}

// dropLocked forgets a block. Its copy behind is what counts.
func (t *tier) dropLocked(e *entry) {
	if t.entries.of(e.id) != e {
		return
	}
	t.forgetLocked(e)
	if e.pins == 0 { // else it keeps its place, without a name
		t.vacateLocked(e)
	}
	t.drops++
}

// drop forgets blocks, those a restore under way would keep too.
func (t *tier) drop(ids ...blockID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, id := range ids {
		t.goneLocked(id)
	}
}

// goneLocked forgets what has a name, and what a restore under way would keep under it.
func (t *tier) goneLocked(id blockID) {
	t.gone[id.hash()] = t.era.Add(1)
	if e := t.entries.of(id); e != nil {
		t.dropLocked(e)
	}
}

// sinceLocked says whether a block that was read in an era is that of its name still.
func (t *tier) sinceLocked(era uint64, id blockID) bool {
	return t.allGone <= era && t.gone[id.hash()] <= era
}

func (id *blockID) hash() uint64 { return xxh3.Hash(id.key[:]) % 1024 }

// dropAll forgets all blocks.
func (t *tier) dropAll() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.allGone = t.era.Add(1)
	for _, e := range t.entries.m {
		t.dropLocked(e)
	}
}

// syncLocked waits for a pool's work. A device that fails or hangs ends the tier: every
// block falls back to its copy behind, and copies still under way have only the pools'
// memory to write to, which is not given back before they end.
func (t *tier) syncLocked(p *pool) error {
	ctx, cancel := context.WithTimeout(context.Background(), t.timeout)
	defer cancel()
	err := p.stream.Sync(ctx)
	if err != nil {
		t.failed = err
		t.pinned.lose()
		t.entries.clear()
		t.order[0].Init()
		t.order[1].Init()
	}
	return err
}

// move gives n units of lender i back to it (positive), or lends n more. Blocks there are dropped, and those that are
// held go elsewhere, in no order: which of them find room in GPU memory is not defined.
func (t *tier) move(i, n int) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.moveLocked(i, n)
}

func (t *tier) moveLocked(i, n int) error {
	if i < 0 || i >= len(t.lent) || t.lent[i].arena == nil {
		return skep.Invalidf("move border", "lender", i, len(t.lent)-1)
	}
	a := t.lent[i].arena
	if err := a.Move(n); err != nil {
		return err
	}
	for e := range t.entriesOf(i) {
		if e.pins == 0 && e.block/a.Unit().Borrower < a.Border() {
			t.dropLocked(e)
		}
	}
	for e := range t.pins {
		if e.lent != i || e.block/a.Unit().Borrower >= a.Border() {
			continue
		}
		if t.failed == nil {
			t.relocateLocked(e)
		}
		if t.failed != nil { // nothing is believed any more
			t.vacateLocked(e)
		}
	}
	t.divideLocked()
	if t.failed != nil && n >= 0 {
		return t.idleLocked()
	}
	return nil
}

// idleLocked waits for copies that hung and may still be under way: those out of a lender's memory are on the stream of
// where they go.
func (t *tier) idleLocked() error {
	for _, p := range slices.Concat([]pool{t.local}, t.lent) {
		if p.stream == nil {
			continue
		}
		if err := t.syncLocked(&p); err != nil {
			return err
		}
	}
	return nil
}

// attach adds a pool of lent memory, in the place of a detached one if there is any.
func (t *tier) attach(l Lender) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.failed != nil {
		return 0, t.failed
	}
	p, err := t.borrow(l)
	if err != nil {
		return 0, errors.Join(err, p.close())
	}
	i := slices.IndexFunc(t.lent, func(p pool) bool { return p.arena == nil })
	if i < 0 {
		i, t.lent = len(t.lent), append(t.lent, pool{})
	}
	t.lent[i] = p
	t.divideLocked()
	return i, nil
}

// detach gives back what is left of a pool and ends it.
func (t *tier) detach(i int) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if i < 0 || i >= len(t.lent) || t.lent[i].arena == nil {
		return skep.Invalidf("detach", "lender", i, len(t.lent)-1)
	}
	a := t.lent[i].arena
	if err := t.moveLocked(i, a.Units()-a.Border()); err != nil {
		return err
	}
	err := t.lent[i].close()
	if err == nil {
		t.lent[i] = pool{}
	}
	return err
}

// close ends a pool, of which nothing but its own stream may use anything, and gives its memory back.
func (p *pool) close() error {
	if err := p.end(); err != nil {
		return err // something may still write there: the memory stays
	}
	return p.free()
}

// end ends a pool's stream.
func (p *pool) end() error {
	if p.stream == nil {
		return nil
	}
	err := p.stream.Close()
	if err == nil {
		p.stream = nil
	}
	return err
}

// free gives a pool's memory back where it was allocated for it.
func (p *pool) free() error {
	if !p.owned {
		return nil
	}
	p.owned = false
	return p.memory.Free()
}

func (t *tier) entriesOf(lent int) func(func(*entry) bool) {
	return func(yield func(*entry) bool) {
		for _, e := range t.entries.m {
			if e.lent == lent && !yield(e) {
				return
			}
		}
	}
}

// close gives the devices' memory back, all of it once nothing uses any: each stream copies to and from memory of
// several. NotReleased while an engine has some: it is closed again.
func (t *tier) close() error {
	t.unreleased.end()
	ctx, cancel := context.WithTimeout(context.Background(), t.timeout)
	defer cancel()
	idle := t.way.end(ctx) // who restores needs the lock
	t.mu.Lock()
	defer t.mu.Unlock()
	var first error
	note := func(err error) bool {
		if err != nil && first == nil && (t.failed == nil || skep.KindOf(t.failed) == skep.Closed) {
			first = err
		}
		return err == nil
	}
	notReleased := &skep.Error{Op: "gpu", Kind: skep.NotReleased}
	if !idle {
		notReleased.Field, notReleased.Limit = "memory on its way to an engine", "a stream that goes on"
		note(notReleased)
	}
	if t.held > 0 {
		notReleased.Field, notReleased.Value, notReleased.Limit = "prefills and rooms for layers", t.held, 0
		idle = note(notReleased)
	}
	pools := []*pool{&t.local}
	for i := range t.lent {
		pools = append(pools, &t.lent[i])
	}
	for _, p := range pools {
		idle = note(p.end()) && idle
	}
	if idle {
		for _, p := range pools {
			note(p.free())
		}
		note(t.way.free())
	}
	note(t.pinned.close(idle))
	t.failed = &skep.Error{Op: "gpu", Kind: skep.Closed}
	t.entries.clear()
	return first
}
