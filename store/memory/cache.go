package memory

import (
	"fmt"
	"github.com/skepkv/skep/store/internal/locks"
	"slices"
	"time"
)

// Key names a block within the cache.
type Key [16]byte

// ID names what the cache holds: one part of one block.
type ID struct {
	Key  Key
	Part uint64
}

// Version tells successive values of one ID apart, so that the commit or the
// failure of one write is never mistaken for another's. It is never 0.
type Version uint64

// CacheOptions tunes a Cache.
type CacheOptions struct {
	Policy Policy    // default CostAware
	Costs  CostModel // for items that do not say what reloading costs
	// HandleLife is how long Get protects an entry from revocation. Default 10 s.
	HandleLife time.Duration
	// Now is the clock of deadlines. Default time.Now.
	Now func() time.Time
}

func (o *CacheOptions) ensureDefaults() {
	o.Costs.ensureDefaults()
	if o.HandleLife == 0 {
		o.HandleLife = 10 * time.Second
	}
	if o.Now == nil {
		o.Now = time.Now
	}
}

func (o *CacheOptions) validate() error {
	switch {
	case o.Policy > LRU:
		return invalid("CacheOptions.Policy", uint8(o.Policy), "CostAware or LRU")
	case o.Costs.Base < 0:
		return invalid("CacheOptions.Costs.Base", o.Costs.Base, "not negative")
	case !(o.Costs.BytesPerSecond > 0):
		return invalid("CacheOptions.Costs.BytesPerSecond", o.Costs.BytesPerSecond, "positive")
	case o.HandleLife < 0:
		return invalid("CacheOptions.HandleLife", o.HandleLife, "not negative")
	}
	return nil
}

// Item is what Put takes.
type Item struct {
	ID     ID
	Bufs   []*Buffer // the value, in order; each belongs to this item alone
	Length int64     // bytes of the value; what Bufs hold beyond is never shown
	Where  uint64    // the location that the index had of it; 0: none
	// Cost is the time it takes to bring the value back; 0 means CostModel.Cost.
	Cost time.Duration
	// Uses is the frequency to start from, if the index remembers one. Default 1.
	Uses uint32
	// Dirty keeps the entry until MarkClean or Discard: it has been accepted, and
	// the devices do not have it yet.
	Dirty bool
	// Current, when set, says whether the value is still the block's. It is asked under the cache's lock, which Forget
	// takes, too, must be quick and must not call the cache. False: Put returns ErrStale, and nobody has seen the value.
	Current func() bool
	// Replace lets a cached value of the same ID go; without it Put returns
	// ErrExists.
	Replace bool
}

// Cache is the DRAM tier: entries in the cache budget of an Arena. One lock
// guards it, held for the bookkeeping of single entries and for nothing that
// waits; evictions under pressure and the spilling of revoked bytes are done
// under it too. It is safe for concurrent use.
type Cache struct {
	arena *Arena
	opts  CacheOptions

	mu struct {
		locks.Mutex[locks.MemoryCache]
		closed  bool
		version Version
		blocks  map[Key]*entry // the first part of each, which has the others behind it
		entries int64
		pages   map[int]*Buffer // by first page, to see what stands in a window
		pinned  []*entry        // with handles, also removed ones; in no order
		ranking ranking
		cursor  int // where the search for a window goes on
		stats   CacheStats
	}
}

// entry is one cached value. All but its immutable fields are guarded by
// Cache.mu.
//
// It is a candidate for eviction (filed in the ranking) if it is linked, clean
// and without handles. With handles it may also be filed: the ranking is told
// only when the entry surfaces there, so that a hit stays cheap.
type entry struct {
	id      ID
	version Version
	length  int64
	where   uint64
	charged int64
	bufs    []*Buffer // immutable until freed
	views   [][]byte  // bufs cut to length, immutable

	also     *entry // another part of the block that Get finds
	node     node
	dirty    bool
	linked   bool // Get finds it
	handles  []*Handle
	pinnedAt int // index in Cache.mu.pinned while there are handles
}

// idle reports whether nobody but the cache uses the entry's buffers.
func (e *entry) idle() bool {
	for _, b := range e.bufs {
		if !b.idle() {
			return false
		}
	}
	return true
}

// protectedUntil returns the latest deadline among the handles.
func (e *entry) protectedUntil() (t time.Time) {
	for _, h := range e.handles {
		if h.deadline.After(t) {
			t = h.deadline
		}
	}
	return t
}

// NewCache makes the cache of an arena, which can have one, and fills the cache
// budget. Close it before the arena.
func NewCache(a *Arena, opts CacheOptions) (*Cache, error) {
	opts.ensureDefaults()
	if err := opts.validate(); err != nil {
		return nil, err
	}
	c := &Cache{arena: a, opts: opts}
	c.mu.blocks = make(map[Key]*entry)
	c.mu.pages = make(map[int]*Buffer)
	c.mu.ranking.policy = opts.Policy
	if err := a.attach(c); err != nil {
		return nil, err
	}
	return c, nil
}

// Get returns a pin on id's bytes, protected from revocation for HandleLife, or
// false. The caller must Release it.
func (c *Cache) Get(id ID) (*Handle, bool) { return c.GetWith(id, GetOptions{}) }

// GetOptions shape a pin.
type GetOptions struct {
	Deadline time.Time // when protection ends. Default: HandleLife from now
	// Spill, when at least as long as the entry, is where its bytes move if they
	// are revoked; Read then goes on from there. It belongs to the handle until
	// Release and may be of any memory. Without it a revoked Read is a miss.
	Spill []byte
}

// GetWith is Get with a deadline and a place for revoked bytes.
func (c *Cache) GetWith(id ID, opts GetOptions) (*Handle, bool) {
	if opts.Deadline.IsZero() {
		opts.Deadline = c.opts.Now().Add(c.opts.HandleLife)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.findLocked(id)
	if e == nil {
		c.mu.stats.Misses++
		return nil, false
	}
	c.mu.stats.Hits++
	c.mu.ranking.touch(&e.node)
	h := &Handle{cache: c, entry: e, deadline: opts.Deadline, spill: opts.Spill, at: len(e.handles), pinning: true}
	e.handles = append(e.handles, h)
	if h.at == 0 {
		e.pinnedAt = len(c.mu.pinned)
		c.mu.pinned = append(c.mu.pinned, e)
		c.mu.stats.PinnedBytes += e.charged
	}
	return h, true
}

// Has reports whether id is cached. It neither pins nor counts as a use.
func (c *Cache) Has(id ID) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.findLocked(id) != nil
}

// Put caches an item, evicting what is worth less per byte. It takes over the
// caller's reference on each buffer, and moves charges from BudgetIO to
// BudgetCache. The item's bytes must be complete and no longer change. A buffer
// that others also hold, or that is lent for a write to a device, is fine: the
// entry is not evicted before they let go.
//
// On an error the caller still owns the buffers: skep.Invalid, ErrExists,
// ErrStale, ErrReleased, skep.Closed, or a NoMemoryError when what is dirty, pinned or in use
// leaves no room. Put never waits.
func (c *Cache) Put(item Item) (Version, error) {
	charged, err := c.check(&item)
	if err != nil {
		return 0, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.closed {
		return 0, closed("put")
	}
	for _, b := range item.Bufs {
		if b.owner != nil {
			return 0, invalid("Item.Bufs", b.owner.id, "buffers that no entry holds")
		}
	}
	old := c.findLocked(item.ID)
	if old != nil && !item.Replace {
		return 0, ErrExists
	}
	if item.Current != nil && !item.Current() {
		return 0, ErrStale
	}
	if err := c.chargeLocked(item.Bufs, old); err != nil {
		return 0, err
	}
	e := c.newEntryLocked(&item, charged)
	c.linkLocked(e)
	c.mu.stats.Bytes += charged
	if e.dirty {
		c.mu.stats.DirtyBytes += charged
	} else {
		c.mu.ranking.file(&e.node)
	}
	return e.version, nil
}

// check validates what can be validated without the lock and returns the bytes
// the item is charged.
func (c *Cache) check(item *Item) (charged int64, err error) {
	if len(item.Bufs) == 0 {
		return 0, invalid("Item.Bufs", 0, "at least one buffer")
	}
	var sum int64
	for i, b := range item.Bufs {
		if b == nil || b.arena != c.arena {
			return 0, invalid("Item.Bufs", i, "buffers of this cache's arena")
		}
		if slices.Contains(item.Bufs[:i], b) {
			return 0, invalid("Item.Bufs", i, "each buffer once")
		}
		sum += int64(b.Len())
		charged += int64(b.Charged())
	}
	switch {
	case item.Length <= 0 || item.Length > sum:
		return 0, invalid("Item.Length", item.Length, fmt.Sprintf("from 1 to %d", sum))
	case item.Cost < 0:
		return 0, invalid("Item.Cost", item.Cost, "not negative")
	case charged > c.arena.opts.Cache:
		return 0, invalid("Item.Bufs", charged, fmt.Sprintf("at most %d bytes", c.arena.opts.Cache))
	}
	return charged, nil
}

// chargeLocked moves the buffers to the cache budget, making room first, and
// takes old, which may be nil, out of the cache. Others may take the room with
// Alloc before the transfer, hence the attempts. On an error old has not been
// removed for the sake of bufs, though it may have been evicted like any other.
func (c *Cache) chargeLocked(bufs []*Buffer, old *entry) (err error) {
	for range 4 {
		// What nobody uses may go at once, even if it is dirty; its room counts.
		var instead []*Buffer
		var credit int64
		if old != nil && old.linked && len(old.handles) == 0 && old.idle() {
			instead, credit = old.bufs, old.charged
		}
		need := c.arena.chargedToIO(bufs) - c.arena.cacheRoom() - credit
		if need > 0 {
			c.makeRoomLocked(need, old)
		}
		if err = c.arena.transfer(bufs, instead); err == nil {
			if instead != nil {
				c.disownLocked(old)
			}
			if old != nil && old.linked {
				c.discardLocked(old)
			}
			return nil
		}
		if need <= 0 {
			return err
		}
	}
	return err
}

func (c *Cache) newEntryLocked(item *Item, charged int64) *entry {
	c.mu.version++
	e := &entry{id: item.ID, version: c.mu.version, length: item.Length, where: item.Where, charged: charged,
		bufs: slices.Clone(item.Bufs), views: make([][]byte, 0, len(item.Bufs)), dirty: item.Dirty}
	rest := item.Length
	for _, b := range e.bufs {
		b.owner = e
		c.mu.pages[b.page] = b
		if n := min(rest, int64(b.Len())); n > 0 {
			e.views = append(e.views, b.mem[:n:n])
			rest -= n
		}
	}
	e.node = node{uses: item.Uses, cost: item.Cost, bytes: charged, entry: e}
	if e.node.cost == 0 {
		e.node.cost = c.opts.Costs.Cost(item.Length)
	}
	c.mu.ranking.admit(&e.node)
	return e
}

// MarkClean makes version v of id evictable: the devices have it. It returns
// false when that version is not cached, or not dirty.
func (c *Cache) MarkClean(id ID, v Version) bool {
	c.mu.Lock()
	e := c.findLocked(id)
	if e == nil || e.version != v || !e.dirty {
		c.mu.Unlock()
		return false
	}
	e.dirty = false
	c.mu.stats.DirtyBytes -= e.charged
	if len(e.handles) == 0 {
		c.mu.ranking.file(&e.node)
	}
	c.mu.Unlock()
	c.arena.kick()
	return true
}

// Discard removes version v of id, dirty or not: its write has failed. It returns
// false when that version is not cached. Pins stay valid, as with Remove.
func (c *Cache) Discard(id ID, v Version) bool {
	return c.remove(id, func(e *entry) bool { return e.version == v })
}

// Remove removes id, dirty or not, and reports whether it was cached. No later
// Get finds it; those who pin it may still read, and its memory is free after the
// last of them.
func (c *Cache) Remove(id ID) bool {
	return c.remove(id, func(*entry) bool { return true })
}

func (c *Cache) remove(id ID, which func(*entry) bool) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.findLocked(id)
	if e == nil || !which(e) {
		return false
	}
	c.discardLocked(e)
	return true
}

// Forget removes every part of a block that has gone, as Remove does. Whoever removes a block may be late here: where
// accepted, which is asked under the lock, says that the block has been accepted anew, its dirty parts stay.
func (c *Cache) Forget(k Key, accepted func() bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	anew := accepted()
	for e := c.mu.blocks[k]; e != nil; {
		next := e.also
		if !anew || !e.dirty {
			c.discardLocked(e)
		}
		e = next
	}
}

// Held is a value in the cache.
type Held struct {
	ID
	Version
}

// While calls f if all of list are in the cache, and lets no Forget come meanwhile. False: f was not called. f must be
// quick and must not call the cache.
func (c *Cache) While(list []Held, f func()) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, h := range list {
		if e := c.findLocked(h.ID); e == nil || e.version != h.Version {
			return false
		}
	}
	f()
	return true
}

// findLocked is the entry that Get finds; nil: none.
func (c *Cache) findLocked(id ID) *entry {
	e := c.mu.blocks[id.Key]
	for e != nil && e.id.Part != id.Part {
		e = e.also
	}
	return e
}

func (c *Cache) linkLocked(e *entry) {
	e.also, e.linked = c.mu.blocks[e.id.Key], true
	c.mu.blocks[e.id.Key] = e
	c.mu.entries++
}

func (c *Cache) unlinkLocked(e *entry) {
	first := c.mu.blocks[e.id.Key]
	switch {
	case first != e:
		for first.also != e {
			first = first.also
		}
		first.also = e.also
	case e.also == nil:
		delete(c.mu.blocks, e.id.Key)
	default:
		c.mu.blocks[e.id.Key] = e.also
	}
	e.also, e.linked = nil, false
	c.mu.entries--
}

// Drop removes every entry whose ID pred accepts, dirty ones too, and returns how
// many. It visits all entries under the cache's lock: pred must be quick and must
// not call the cache.
func (c *Cache) Drop(pred func(ID) bool) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := 0
	for _, e := range c.mu.blocks {
		for e != nil {
			next := e.also
			if pred(e.id) {
				c.discardLocked(e)
				n++
			}
			e = next
		}
	}
	return n
}

// Close drops all entries and refuses new ones; it does not wait. Pinned memory
// stays valid until it is released, which Arena.Close waits for, and may still be
// revoked after its deadline.
func (c *Cache) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.closed = true
	for _, e := range c.mu.blocks {
		for e != nil {
			next := e.also
			c.discardLocked(e)
			e = next
		}
	}
}

// discardLocked takes e out of sight, and frees it unless somebody pins it.
func (c *Cache) discardLocked(e *entry) {
	c.unlinkLocked(e)
	c.mu.stats.Bytes -= e.charged
	c.mu.ranking.unfile(&e.node)
	if e.dirty {
		e.dirty = false
		c.mu.stats.DirtyBytes -= e.charged
	}
	if len(e.handles) == 0 {
		c.freeLocked(e)
	} else {
		c.arena.kick() // what was dirty may be revoked at its deadline
	}
}

// freeLocked gives up the buffers of an entry that is neither linked nor pinned.
func (c *Cache) freeLocked(e *entry) {
	bufs := e.bufs
	c.disownLocked(e)
	for _, b := range bufs {
		b.Release()
	}
}

func (c *Cache) disownLocked(e *entry) {
	for _, b := range e.bufs {
		delete(c.mu.pages, b.page)
		b.owner = nil
	}
	e.bufs, e.views = nil, nil
}

// unpin is the end of a handle's pin.
func (c *Cache) unpin(h *Handle) {
	c.mu.Lock()
	e := h.entry
	if h.at < 0 { // revoked meanwhile
		c.mu.Unlock()
		return
	}
	last := len(e.handles) - 1
	e.handles[h.at] = e.handles[last]
	e.handles[h.at].at = h.at
	e.handles[last] = nil
	e.handles = e.handles[:last]
	h.at = -1
	if last == 0 {
		c.unpinnedLocked(e)
	}
	c.mu.Unlock()
	c.arena.kick()
}

// unpinnedLocked follows the loss of e's last handle.
func (c *Cache) unpinnedLocked(e *entry) {
	last := len(c.mu.pinned) - 1
	c.mu.pinned[e.pinnedAt] = c.mu.pinned[last]
	c.mu.pinned[e.pinnedAt].pinnedAt = e.pinnedAt
	c.mu.pinned[last] = nil
	c.mu.pinned = c.mu.pinned[:last]
	c.mu.stats.PinnedBytes -= e.charged
	switch {
	case !e.linked:
		c.freeLocked(e)
	case !e.dirty && e.node.pos < 0:
		c.mu.ranking.file(&e.node)
	}
}

// CacheStats is a snapshot. Sizes are bytes charged to the cache budget.
type CacheStats struct {
	Budget      int64
	Bytes       int64 // of entries that Get finds
	Entries     int64
	DirtyBytes  int64
	PinnedBytes int64 // with handles, removed entries included
	Hits        int64
	Misses      int64
	Evictions   int64 // entries that left to make room
	Revocations int64 // handles that lost their bytes
	Spills      int64 // handles whose bytes were moved to their spill memory
}

// Stats returns a snapshot.
func (c *Cache) Stats() CacheStats {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.mu.stats
	s.Budget = c.arena.opts.Cache
	s.Entries = c.mu.entries
	return s
}
