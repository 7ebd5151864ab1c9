package memory

import (
	"context"
	"github.com/skepkv/skep/store/internal/locks"
	"math/bits"
	"slices"
	"sync/atomic"
	"time"
)

const (
	// PageSize is the unit of allocation and the alignment of direct I/O, bytes.
	PageSize = 4 << 10
	// DefaultMaxBlock and LimitMaxBlock bound the largest buffer, bytes.
	DefaultMaxBlock = 2 << 20
	LimitMaxBlock   = 64 << 20

	hugePage = 2 << 20
	// limitPages keeps page numbers in an int32 and sizes far from overflow: 8 TiB.
	limitPages = 1<<31 - 1
	// MaxBytes is the largest sum of budgets.
	MaxBytes = int64(limitPages) * PageSize
)

// Budget is what a buffer is charged to.
type Budget uint8

const (
	BudgetIO Budget = iota
	BudgetCache
	numBudgets
)

func (b Budget) String() string {
	switch b {
	case BudgetIO:
		return "io budget"
	case BudgetCache:
		return "cache budget"
	}
	return "unknown budget"
}

// Options sizes an Arena.
type Options struct {
	IO    int64 // bytes for BudgetIO, a multiple of PageSize, at least one page
	Cache int64 // bytes for BudgetCache, a multiple of PageSize, may be 0
	// MaxBlock is the largest single buffer in bytes, a power of two between
	// PageSize and LimitMaxBlock. Default: DefaultMaxBlock.
	MaxBlock int
	// SmallPages leaves huge pages off.
	SmallPages bool
	// Taken, when set, gets each part of the mapping the first time that a buffer lies in it: what was
	// never used need not be registered with a drive, which would make all of it resident. Parts are of
	// Parts' size. It is called with the arena's lock held and must not wait.
	Taken func(part []byte)
}

// partBytes is the least size of a part: no buffer lies in two.
const partBytes = LimitMaxBlock

// maxParts bounds their number: a ring looks for the one that holds a buffer one by one.
const maxParts = 64

func (o *Options) ensureDefaults() {
	if o.MaxBlock == 0 {
		o.MaxBlock = DefaultMaxBlock
	}
}

func (o *Options) validate() error {
	switch {
	case o.IO < PageSize || o.IO%PageSize != 0 || o.IO > MaxBytes:
		return invalid("Options.IO", o.IO, "a multiple of 4096 from 4096 up to 8 TiB")
	case o.Cache < 0 || o.Cache%PageSize != 0 || o.Cache > MaxBytes-o.IO:
		return invalid("Options.Cache", o.Cache, "a multiple of 4096 from 0 up to 8 TiB less Options.IO")
	case o.MaxBlock < PageSize || o.MaxBlock > LimitMaxBlock || bits.OnesCount(uint(o.MaxBlock)) != 1:
		return invalid("Options.MaxBlock", o.MaxBlock, "a power of two from 4096 to 67108864")
	}
	return nil
}

// Arena is one mapping off the Go heap, shared by I/O buffers and the cache
// under two hard budgets. It is safe for concurrent use. Close it, after the
// Cache that uses it.
type Arena struct {
	opts      Options
	hugePages bool
	mem       []byte // the whole mapping; its address outlives Close, its memory may not
	unmap     func() error

	lent        atomic.Int64 // buffers with loans
	quarantined atomic.Int64 // of those, the ones without references
	waiting     atomic.Int64 // waiters in both queues
	misused     atomic.Int64

	mu struct {
		locks.Mutex[locks.MemoryArena]
		buddy *buddy
		parts bitset // not used yet; nil without Options.Taken
		live  int64  // buffers not free, quarantined ones included
		used  [numBudgets]int64
		// Each queue is served strictly from its front: the waiter there takes
		// its memory itself when poked, which lets it ask the cache to evict
		// without a lock held.
		queue [numBudgets][]*waiter
		// starved says that the first waiter for BudgetIO found the mapping
		// fragmented; until it has been served, BudgetCache takes nothing, or
		// every window cleared for the one would be eaten by the other.
		starved   bool
		reclaimer reclaimer
		closing   bool
		unmapped  bool
		drained   chan struct{} // made by Close, closed when live reaches 0
	}
}

// reclaimer gives cached memory back to the arena. It is called without locks,
// by several goroutines at once.
type reclaimer interface {
	// reclaim evicts so that w can be met and returns the bytes it freed. When
	// it freed none but could later without being told, it says when to ask again.
	reclaim(w want) (freed int64, retry time.Duration)
}

// want is what an allocation lacks: bytes of the cache budget, or else a window
// of aligned pages anywhere in the mapping.
type want struct {
	bytes  int64
	window int // pages, a power of two; 0 when the budget is what is short
}

type waiter struct{ ready chan struct{} }

// New maps an arena. The memory is touched, and so taken from the system, only
// as it is used or registered with the kernel.
func New(opts Options) (*Arena, error) {
	opts.ensureDefaults()
	if err := opts.validate(); err != nil {
		return nil, err
	}
	size := int(opts.IO + opts.Cache)
	mem, huge, unmap, err := mapMemory(size, !opts.SmallPages)
	if err != nil {
		return nil, err
	}
	a := &Arena{opts: opts, hugePages: huge, mem: mem, unmap: unmap}
	a.mu.buddy = newBuddy(size/PageSize, orderFor(opts.MaxBlock/PageSize))
	if opts.Taken != nil {
		a.mu.parts = newBitset(a.Parts())
		for i := range a.Parts() {
			a.mu.parts.add(i)
		}
	}
	return a, nil
}

// part is the size of all parts but the last.
func (a *Arena) part() int {
	return (len(a.mem)/maxParts/partBytes + 1) * partBytes
}

// Parts is how many there are.
func (a *Arena) Parts() int { return (len(a.mem) + a.part() - 1) / a.part() }

// takeLocked tells of the part in which the buffer at off lies, if it is the first there.
func (a *Arena) takeLocked(off int) {
	i := off / a.part()
	if a.opts.Taken == nil || !a.mu.parts.has(i) {
		return
	}
	a.mu.parts.remove(i)
	end := min((i+1)*a.part(), len(a.mem))
	a.opts.Taken(a.mem[i*a.part() : end : end])
}

// Bytes returns the whole mapping. Only the parts
// covered by the caller's own buffers may be read or written. It is nil once the
// arena has been unmapped.
func (a *Arena) Bytes() []byte {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.mu.unmapped {
		return nil
	}
	return a.mem
}

// Contains reports whether all of b lies in the mapping.
func (a *Arena) Contains(b []byte) bool {
	_, ok := a.Offset(b)
	return ok
}

// Offset returns where b starts in Bytes, if all of it lies in the mapping.
func (a *Arena) Offset(b []byte) (off int64, ok bool) {
	start, base := address(b), address(a.mem)
	if len(b) == 0 || len(b) > len(a.mem) || start < base || start-base > uintptr(len(a.mem)-len(b)) {
		return 0, false
	}
	return int64(start - base), true
}

// MaxBlock returns the largest length of one buffer, bytes.
func (a *Arena) MaxBlock() int { return a.opts.MaxBlock }

// Split cuts n bytes into lengths that one buffer each can hold: as many of
// MaxBlock as fit and the rest. It is meant for AllocVec.
func (a *Arena) Split(n int) []int {
	var lens []int
	for ; n > a.opts.MaxBlock; n -= a.opts.MaxBlock {
		lens = append(lens, a.opts.MaxBlock)
	}
	if n > 0 {
		lens = append(lens, n)
	}
	return lens
}

// Alloc returns a buffer of n bytes with one reference, waiting for memory until
// ctx ends. Waiters of one budget are served in the order of their arrival.
//
// Errors: skep.Invalid when n can never be served, NoMemoryError (wrapping the
// context's error) when ctx ended first, skep.Closed.
func (a *Arena) Alloc(ctx context.Context, n int, budget Budget) (*Buffer, error) {
	return first(a.alloc(ctx, budget, []int{n}))
}

// TryAlloc is Alloc without the wait. It may evict cached entries but never
// overtakes a waiter: it returns a NoMemoryError instead.
func (a *Arena) TryAlloc(n int, budget Budget) (*Buffer, error) {
	return first(a.tryAlloc(budget, []int{n}))
}

// AllocVec is Alloc for several buffers at once, all or none. Taking the pieces
// of a block one by one would let two readers wait for each other's halves.
func (a *Arena) AllocVec(ctx context.Context, lens []int, budget Budget) ([]*Buffer, error) {
	return a.alloc(ctx, budget, lens)
}

// TryAllocVec is AllocVec without the wait.
func (a *Arena) TryAllocVec(lens []int, budget Budget) ([]*Buffer, error) {
	return a.tryAlloc(budget, lens)
}

func first(bufs []*Buffer, err error) (*Buffer, error) {
	if err != nil {
		return nil, err
	}
	return bufs[0], nil
}

// free takes back the memory of a buffer whose state has reached 0.
func (a *Arena) free(b *Buffer) {
	if invariants {
		fillPoison(b.mem[:cap(b.mem)])
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.freeLocked(b)
	a.pokeLocked()
}

func (a *Arena) freeLocked(b *Buffer) {
	a.mu.buddy.release(b.page, b.pages)
	a.mu.used[b.budget] -= int64(cap(b.mem))
	a.mu.live--
	if a.mu.live == 0 && a.mu.drained != nil {
		close(a.mu.drained)
		a.mu.drained = nil
	}
}

// transfer moves the charges of all bufs to BudgetCache, or none. With it go the
// buffers of instead, which must be charged to BudgetCache and idle: either bufs
// take their place at one stroke or both stay as they were.
func (a *Arena) transfer(bufs, instead []*Buffer) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	var credit int64
	for _, b := range instead {
		credit += int64(cap(b.mem))
	}
	var bytes int64
	for _, b := range bufs {
		if refs(b.state.Load()) == 0 {
			return ErrReleased
		}
		if b.budget == BudgetIO {
			bytes += int64(cap(b.mem))
		}
	}
	if used := a.mu.used[BudgetCache] - credit; bytes > a.opts.Cache-used {
		return &NoMemoryError{Field: BudgetCache.String(), Wanted: bytes, Used: used, Limit: a.opts.Cache}
	}
	for _, b := range instead {
		// An idle buffer's one reference is the cache's, so nobody can add to it.
		b.state.Store(0)
		if invariants {
			fillPoison(b.mem[:cap(b.mem)])
		}
		a.freeLocked(b)
	}
	for _, b := range bufs {
		b.budget = BudgetCache
	}
	a.mu.used[BudgetIO] -= bytes
	a.mu.used[BudgetCache] += bytes
	a.pokeLocked()
	return nil
}

// chargedToIO returns the bytes of bufs that a transfer would move.
func (a *Arena) chargedToIO(bufs []*Buffer) (bytes int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, b := range bufs {
		if b.budget == BudgetIO {
			bytes += int64(cap(b.mem))
		}
	}
	return bytes
}

func (a *Arena) cacheRoom() int64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.opts.Cache - a.mu.used[BudgetCache]
}

// occupants lists the buffers in the pages [page, page+n), asking owner for the
// buffer that starts at a page. It returns false as soon as it meets a taken page
// that owner does not know, or when the window does not lie in the mapping.
func (a *Arena) occupants(page, n int, owner func(page int) *Buffer) (bufs []*Buffer, ok bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if page+n > a.mu.buddy.pages {
		return nil, false
	}
	for p := page; p < page+n; {
		if order, ok := a.mu.buddy.freeAt(p); ok {
			p += 1 << order
			continue
		}
		b := owner(p)
		if b == nil {
			return nil, false
		}
		bufs = append(bufs, b)
		p += b.pages
	}
	return bufs, true
}

func (a *Arena) misuse(what string) {
	if invariants {
		panic("memory: " + what)
	}
	a.misused.Add(1)
}

// Close refuses new allocations, fails the waiting ones, waits until every buffer
// is free, and unmaps. If ctx ends first it leaves the mapping in place, on
// purpose, and returns a LeakError; it may be called again to finish.
func (a *Arena) Close(ctx context.Context) error {
	a.mu.Lock()
	a.mu.closing = true
	for _, q := range a.mu.queue {
		for _, w := range q {
			w.poke()
		}
	}
	if a.mu.live > 0 {
		if a.mu.drained == nil {
			a.mu.drained = make(chan struct{})
		}
		drained := a.mu.drained
		a.mu.Unlock()
		select {
		case <-drained:
		case <-ctx.Done():
		}
		a.mu.Lock()
	}
	defer a.mu.Unlock()
	if a.mu.live > 0 {
		lent := a.lent.Load()
		return &LeakError{Lent: lent, Held: max(a.mu.live-lent, 0), cause: context.Cause(ctx)}
	}
	if a.mu.unmapped {
		return nil
	}
	a.mu.unmapped = true
	return a.unmap()
}

// ArenaStats is a snapshot. Sizes are bytes.
type ArenaStats struct {
	IOBudget, IOUsed       int64
	CacheBudget, CacheUsed int64
	Buffers                int64 // not free, quarantined ones included
	Lent                   int64 // buffers a device may still use
	Quarantined            int64 // of those, the ones nobody references any more
	Waiters                int64
	LargestFree            int64 // the largest buffer that would fit without eviction
	Misuse                 int64 // releases and returns too many, uses after release
	HugePages              bool  // the kernel took the advice
}

// Stats returns a snapshot.
func (a *Arena) Stats() ArenaStats {
	a.mu.Lock()
	defer a.mu.Unlock()
	return ArenaStats{
		IOBudget: a.opts.IO, IOUsed: a.mu.used[BudgetIO],
		CacheBudget: a.opts.Cache, CacheUsed: a.mu.used[BudgetCache],
		Buffers:     a.mu.live,
		Lent:        a.lent.Load(),
		Quarantined: a.quarantined.Load(),
		Waiters:     a.waiting.Load(),
		LargestFree: int64(a.mu.buddy.largest()) * PageSize,
		Misuse:      a.misused.Load(),
		HugePages:   a.hugePages,
	}
}

func (a *Arena) attach(r reclaimer) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.mu.reclaimer != nil && r != nil {
		return invalid("arena", "has a cache", "one cache per arena")
	}
	a.mu.reclaimer = r
	return nil
}

func (w *waiter) poke() {
	select {
	case w.ready <- struct{}{}:
	default: // poked already
	}
}

// pokeLocked lets the first waiter of each budget try again.
func (a *Arena) pokeLocked() {
	for _, q := range a.mu.queue {
		if len(q) > 0 {
			q[0].poke()
		}
	}
}

// kick is pokeLocked for events outside the arena, and costs one load when
// nobody waits. No wake-up is lost: a waiter is counted before it looks.
func (a *Arena) kick() {
	if a.waiting.Load() == 0 {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.pokeLocked()
}

// leaveLocked takes w out of its queue and lets the next one try.
func (a *Arena) leaveLocked(w *waiter, budget Budget) {
	q := a.mu.queue[budget]
	i := slices.Index(q, w)
	a.mu.queue[budget] = slices.Delete(q, i, i+1)
	a.waiting.Add(-1)
	if budget == BudgetIO && i == 0 {
		a.mu.starved = false
	}
	a.pokeLocked()
}
