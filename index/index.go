package index

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/skepkv/skep"
)

// Config is what an index is made with. The zero value works: no cap on slots, the
// cost policy, and an unknown capacity, with which nothing ages.
type Config struct {
	// PageBytes is what a page is, in bytes, wherever pages are counted. Default 4096.
	PageBytes int64
	// CapacityPages is the physical room for payload on the devices, in pages:
	// the measure of age, and of the logical cap of lru and s3fifo.
	CapacityPages int64
	// MaxSlots caps blocks and stubs together, and with it the index's memory. Default 2^32-2.
	MaxSlots uint32
	// Policy is "cost" (default), "lru" or "s3fifo".
	Policy string
	// LogicalPages is the cap that NextEvict of lru and s3fifo enforces; default CapacityPages.
	LogicalPages int64
	// Cost tunes the cost policy; zero fields take their defaults.
	Cost CostConfig

	MaxLeases int // at one time, pins included; default 87,382: 65,536 for a tenant that is alone
	MaxHints  int // blocks with hints at one time; default 87,382
	// LeaseCapBytes and PinCapBytes are what a tenant may have leased and pinned when
	// SetLimits did not say otherwise; 0 is no cap.
	LeaseCapBytes int64
	PinCapBytes   int64

	heap bool // slots on the Go heap, so that the race detector sees them
}

// Index is the prefix index. All methods may be called concurrently.
type Index struct {
	cfg    Config
	policy Policy
	order  order // of lru and s3fifo; nil for cost

	mu     sync.RWMutex // guards all below but leases and the atomics
	slots  arena[slot]
	table  table
	top    uint32 // slots 1 to top were handed out at some time
	free   uint32 // first of the free list
	closed bool
	counts counts
	left   atomic.Uint64

	owners  owners
	tenants map[uint16]*tenant
	sharers []*tenant       // that have, or had, a share
	dead    map[uint32]bool // namespace instances nobody can reach
	groups  map[uint32]*group
	recent  struct { // the group asked for last: most blocks come after one of the same
		id uint32
		g  *group
	}
	victims victims
	hints   map[ID]hint
	sweep   uint32 // where SweepDead goes on; its caller's
	budget  budget

	clockPages atomic.Uint64 // pages put since the index was made
	tickPages  uint64        // pages a Tick stands for
	leases     leases
	probes     [16]atomic.Uint64
}

type counts struct {
	blocks, rooted, stubs, accepted uint64
	pages                           uint64
}

// New makes an empty index.
func New(cfg Config) (*Index, error) {
	if cfg.MaxSlots == 0 || cfg.MaxSlots == 1<<32-1 {
		cfg.MaxSlots = 1<<32 - 2
	}
	if cfg.CapacityPages < 0 {
		return nil, skep.Invalidf("index", "capacity in pages", cfg.CapacityPages, "at least 0")
	}
	if cfg.PageBytes < 0 {
		return nil, skep.Invalidf("index", "bytes of a page", cfg.PageBytes, "at least 0")
	}
	if cfg.PageBytes == 0 {
		cfg.PageBytes = 4096
	}
	if cfg.LogicalPages == 0 {
		cfg.LogicalPages = cfg.CapacityPages
	}
	if cfg.MaxLeases == 0 {
		cfg.MaxLeases = allOfShare
	}
	if cfg.MaxHints == 0 {
		cfg.MaxHints = allOfShare
	}
	x := &Index{
		cfg: cfg, owners: newOwners(), tenants: map[uint16]*tenant{}, dead: map[uint32]bool{},
		groups: map[uint32]*group{}, victims: newVictims(), hints: map[ID]hint{}, leases: newLeases(),
		tickPages: uint64(max(1, cfg.CapacityPages/ticksPerCapacity)),
	}
	x.slots.heap, x.table.heads.heap = cfg.heap, cfg.heap
	var err error
	if x.policy, err = newPolicy(cfg); err != nil {
		return nil, err
	}
	if x.order, err = newOrder(x); err != nil {
		return nil, err
	}
	if err := x.slots.grow(0); err != nil {
		return nil, err
	}
	x.clockPages.Store(x.tickPages) // Tick 0 means "not given" in an Entry
	x.budget.init(cfg)
	return x, x.table.init()
}

// Close gives the memory back. Later calls find an empty index and store nothing.
func (x *Index) Close() {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.closed {
		return
	}
	x.closed = true
	clear(x.hints) // Tick follows them into the slots
	x.slots.free()
	x.table.heads.free()
	if x.order != nil {
		x.order.free()
	}
}

// Clock is the present Tick.
func (x *Index) Clock() Tick { return Tick(min(x.clockPages.Load()/x.tickPages, 1<<32-1)) }

// age is how long ago t was, in capacities put.
func (x *Index) age(t Tick) float64 {
	now := x.Clock()
	if t >= now || x.cfg.CapacityPages == 0 {
		return 0
	}
	return float64(now-t) * float64(x.tickPages) / float64(x.cfg.CapacityPages)
}

func validate(op string, e *Entry) error {
	switch {
	case e.Depth > MaxDepth:
		return skep.Invalidf(op, "depth", e.Depth, fmt.Sprintf("at most %d", MaxDepth))
	case e.HasParent && e.Opaque:
		return skep.Invalidf(op, "parent", "set", "none for an opaque key")
	case e.HasParent != (e.Depth > 0):
		return skep.Invalidf(op, "depth", e.Depth, "0 without a parent, else at least 1")
	case e.HasParent && cut(&e.Parent) == cut(&e.FP):
		return skep.Invalidf(op, "parent", "the block itself", "another block")
	}
	return nil
}

// Insert adds a block. When it is there already nothing changes and existed is true:
// the first writer wins. A block whose parent is rooted, or that has none, is seen at
// once, together with all that waited for it; an orphan is kept and hidden.
//
// Invalid is returned for an entry outside its limits or not one deeper than its
// parent, Full when the index has no slot left; nothing changed then.
func (x *Index) Insert(e Entry) (id ID, existed bool, err error) {
	if err := validate("insert", &e); err != nil {
		return 0, false, err
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.insertLocked(&e)
}

func (x *Index) insertLocked(e *Entry) (ID, bool, error) {
	if x.closed {
		return 0, false, &skep.Error{Op: "insert", Kind: skep.Closed}
	}
	f := cut(&e.FP)
	id := x.find(&f)
	if id != 0 && x.slots.at(id).has(flagLive) {
		return ID(id), true, nil
	}
	var pid uint32
	if e.HasParent {
		pf := cut(&e.Parent)
		if pid = x.find(&pf); pid != 0 {
			if p := x.slots.at(pid); p.has(flagLive) && p.depth()+1 != e.Depth {
				return 0, false, skep.Invalidf("insert", "depth", e.Depth, p.depth()+1)
			}
		}
	}
	if err := x.room(2); err != nil {
		return 0, false, err
	}
	now := *e
	now.Last, now.Touched = x.Clock(), false
	id, err := x.place(id, &now)
	if err != nil {
		return 0, false, err
	}
	if e.HasParent {
		if pid == 0 {
			pid = x.stub(&e.Parent)
		}
		x.link(id, pid)
	}
	if x.mayRoot(id) {
		x.root(id)
	}
	x.advance(uint64(e.Pages))
	return ID(id), false, nil
}

// place makes a live slot of e, without a parent: of the stub id, or a new one when
// id is 0. There must be room.
func (x *Index) place(id uint32, e *Entry) (uint32, error) {
	owner, err := x.takeOwner(e.Namespace, e.Tenant)
	if err != nil {
		return 0, err
	}
	if id == 0 {
		id = x.alloc()
		x.slots.at(id).fp = cut(&e.FP)
		x.hash(id)
	} else {
		x.counts.stubs--
	}
	s := x.slots.at(id)
	s.loc, s.pages, s.owner, s.last = e.Location, e.Pages, owner, uint32(e.Last)
	s.depthUses = e.Depth<<8 | uint32(e.Uses)
	s.flags = flagLive
	setFlag(s, flagHasParent, e.HasParent)
	setFlag(s, flagOpaque, e.Opaque)
	setFlag(s, flagDurable, e.Durable)
	setFlag(s, flagPartial, e.Partial)
	setFlag(s, flagOdd, e.Odd)
	setFlag(s, flagTouched, e.Touched)
	s.setCopies(e.Copies)
	x.counts.blocks++
	x.account(s, 1)
	if x.order != nil {
		x.order.insert(ID(id))
	}
	return id, nil
}

// stub makes the place of an absent parent. There must be room.
func (x *Index) stub(fp *Fingerprint) uint32 {
	id := x.alloc()
	s := x.slots.at(id)
	s.fp, s.flags = cut(fp), flagStub
	x.hash(id)
	x.counts.stubs++
	return id
}

// advance lets the clock run over pages put.
func (x *Index) advance(pages uint64) {
	x.clockPages.Add(pages)
	x.budget.earn(int64(pages))
}

// room makes sure that n more slots can be had.
func (x *Index) room(n uint32) error {
	used := uint64(x.counts.blocks + x.counts.stubs)
	if used+uint64(n) > uint64(x.cfg.MaxSlots) {
		return &skep.Error{Op: "insert", Kind: skep.Full, Field: "slots of the index",
			Value: used, Limit: fmt.Sprintf("at most %d", x.cfg.MaxSlots)}
	}
	// With or without a free list, n slots past the top are enough.
	err := x.slots.grow(x.top + n)
	if err == nil && x.order != nil {
		err = x.order.grow(x.top + n)
	}
	if err != nil {
		return &skep.Error{Op: "insert", Kind: skep.NoMemory, Field: "slots of the index", Value: used, Err: err}
	}
	return nil
}

func (x *Index) alloc() uint32 {
	if id := x.free; id != 0 {
		s := x.slots.at(id)
		x.free = s.next
		*s = slot{}
		return id
	}
	x.top++
	return x.top
}

func (x *Index) release(id uint32) {
	x.unhash(id)
	s := x.slots.at(id)
	*s = slot{next: x.free}
	x.free = id
}

func setFlag(s *slot, f uint16, on bool) {
	if on {
		s.flags |= f
	} else {
		s.flags &^= f
	}
}

// entry is the slot as callers see it.
func (x *Index) entry(s *slot) Entry {
	o := x.owners.at(s.owner)
	e := Entry{
		FP: s.fp.full(), HasParent: s.has(flagHasParent), Depth: s.depth(), Location: s.loc, Pages: s.pages,
		Namespace: o.namespace, Tenant: o.tenant, Opaque: s.has(flagOpaque), Durable: s.has(flagDurable),
		Partial: s.has(flagPartial), Odd: s.has(flagOdd), Rooted: s.has(flagRooted),
		Touched: s.has(flagTouched), Uses: s.uses(), Copies: uint8(s.copies()), Last: Tick(s.last),
	}
	if s.parent != 0 {
		e.Parent = x.slots.at(s.parent).fp.full()
	}
	return e
}

// AnyLocation makes Remove and Evict take the block wherever it is.
const AnyLocation = ^uint64(0)

// live is the slot of a live block, or 0.
func (x *Index) live(fp *Fingerprint) uint32 {
	if x.closed {
		return 0
	}
	f := cut(fp)
	if id := x.find(&f); id != 0 && x.slots.at(id).has(flagLive) {
		return id
	}
	return 0
}

// Remove takes a block out when it lies at loc and hides what depends on it. It does
// not ask leases: it is for deletes and damage; the cleaner uses Evict.
func (x *Index) Remove(fp Fingerprint, loc uint64) (old Entry, ok bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	id := x.live(&fp)
	if id == 0 || loc != AnyLocation && x.slots.at(id).loc != loc {
		return Entry{}, false
	}
	old = x.entry(x.slots.at(id))
	x.removeLocked(id)
	return old, true
}

func (x *Index) removeLocked(id uint32) {
	s := x.slots.at(id)
	if s.has(flagRooted) {
		x.hide(id)
	}
	if x.order != nil {
		x.order.remove(ID(id))
	}
	x.account(s, -1)
	x.counts.blocks--
	x.left.Add(1)
	x.forgetHint(id)
	x.owners.drop(s.owner)
	x.breakLeases(ID(id), s.child == 0)
	x.unlink(id)
	if s.child != 0 {
		s.loc, s.pages, s.owner, s.last, s.depthUses, s.flags = 0, 0, 0, 0, 0, flagStub
		x.counts.stubs++
		return
	}
	x.release(id)
}

// Move gives a block another location if it still lies at from: a commit (from 0), a
// cleaner's or a recluster's copy. It counts as written anew: Touched is cleared.
func (x *Index) Move(fp Fingerprint, from, to uint64) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	id := x.live(&fp)
	if id == 0 || x.slots.at(id).loc != from {
		return false
	}
	s := x.slots.at(id)
	x.account(s, -1)
	s.loc = to
	if from != 0 { // what was used while it waited to be written stays used
		s.flags &^= flagTouched
		x.left.Add(1)
	}
	x.account(s, 1)
	return true
}

// Left counts the blocks that have gone from where they lay: removed, or moved.
func (x *Index) Left() uint64 { return x.left.Load() }

// Replace stores an opaque block over whatever its key held: the last writer wins.
// old is what was there. Errors are Insert's; nothing changed then.
func (x *Index) Replace(e Entry) (old Entry, replaced bool, err error) {
	if err := validate("replace", &e); err != nil {
		return Entry{}, false, err
	}
	if !e.Opaque {
		return Entry{}, false, skep.Invalidf("replace", "opaque", false, true)
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	id := x.live(&e.FP)
	if id == 0 {
		_, _, err := x.insertLocked(&e)
		return Entry{}, false, err
	}
	s := x.slots.at(id)
	owner, err := x.takeOwner(e.Namespace, e.Tenant)
	if err != nil {
		return Entry{}, false, err
	}
	old = x.entry(s)
	x.account(s, -1)
	x.owners.drop(s.owner)
	if x.order != nil {
		x.order.resize(ID(id), int64(e.Pages)-int64(s.pages))
	}
	s.loc, s.pages, s.owner, s.last = e.Location, e.Pages, owner, uint32(x.Clock())
	s.flags &^= flagTouched
	setFlag(s, flagDurable, e.Durable)
	setFlag(s, flagPartial, e.Partial)
	setFlag(s, flagOdd, e.Odd)
	s.setCopies(e.Copies)
	x.account(s, 1)
	x.advance(uint64(e.Pages))
	return old, true, nil
}

// Resolve is the block of a fingerprint, rooted or not.
func (x *Index) Resolve(fp Fingerprint) (Entry, bool) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	id := x.live(&fp)
	if id == 0 {
		return Entry{}, false
	}
	e := x.entry(x.slots.at(id))
	e.FP = fp
	return e, true
}

// account adds (sign 1) or takes away (-1) a live slot from all statistics.
func (x *Index) account(s *slot, sign int64) {
	x.owners.at(s.owner).usage.pages += sign * int64(s.pages)
	x.counts.pages += uint64(sign * int64(s.pages))
	if s.loc == 0 {
		x.counts.accepted += uint64(sign)
		return
	}
	id := groupOf(s.loc)
	g := x.group(id)
	had := g.blocks
	g.add(s, x.owners.at(s.owner), sign)
	if g.sealed && (had == 0) != (g.blocks == 0) {
		x.victims.noteHollow(id, g)
	}
}

// Stats is the index in numbers.
type Stats struct {
	Blocks   uint64 // stored, rooted or not
	Rooted   uint64 // that a lookup can find
	Orphans  uint64 // hidden, their chain is broken above them
	Accepted uint64 // in DRAM only
	Stubs    uint64 // slots that hold the place of an absent parent
	Pages    uint64 // of all blocks
	Groups   int    // with blocks, or sealed
	Leases   int    // pins included
	Hints    int
	// Bytes is the memory of slots, buckets, orders and protection marks, in whole huge pages.
	Bytes int64
	// Probes counts lookups by the slots they asked for: [i] is i+1, the last is that or more.
	Probes [16]uint64
	// RewriteHorizon is how far back, in capacities put, a use counts at present (cost).
	RewriteHorizon float64
}

// Stats takes a snapshot.
func (x *Index) Stats() Stats {
	x.mu.RLock()
	defer x.mu.RUnlock()
	c := x.counts
	s := Stats{
		Blocks: c.blocks, Rooted: c.rooted, Orphans: c.blocks - c.rooted, Accepted: c.accepted, Stubs: c.stubs,
		Pages: c.pages, Groups: len(x.groups), Hints: len(x.hints),
		Bytes:          x.slots.bytes(x.top+1) + x.table.heads.bytes(x.table.n),
		RewriteHorizon: x.horizon(),
	}
	if x.order != nil {
		s.Bytes += x.order.bytes()
	}
	x.leases.mu.Lock()
	s.Leases = len(x.leases.byID)
	s.Bytes += x.leases.bytes()
	x.leases.mu.Unlock()
	for i := range s.Probes {
		s.Probes[i] = x.probes[i].Load()
	}
	return s
}

// ForEach calls f for every block until it returns false, a few thousand slots at a
// time under the shared lock: what changes meanwhile may be seen or not, and f must
// not change the index. It is for checkpoints: BulkLoad takes the entries back.
func (x *Index) ForEach(f func(ID, Entry) bool) {
	const piece = 4096
	for from := uint32(1); ; from += piece {
		x.mu.RLock()
		top := x.top
		for id := from; id <= top && id < from+piece && !x.closed; id++ {
			s := x.slots.at(id)
			if s.has(flagLive) && !f(ID(id), x.entry(s)) {
				x.mu.RUnlock()
				return
			}
		}
		done := x.closed || from+piece > top
		x.mu.RUnlock()
		if done {
			return
		}
	}
}

// timeOf keeps times as nanoseconds; the zero time is never.
func timeOf(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixNano()
}
