package store

import (
	"context"
	"log/slog"
	"sort"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/index"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/catalog"
	"github.com/skepkv/skep/store/memory"
	"github.com/skepkv/skep/store/segment"
)

// Store is the embedded engine: a skep.Store on devices. Make it with Open.
//
// Lock order: gate, sides.turn, changes, space.opening, names.mu, a session's mu, space.mu, then
// the index's own. No lock is held over device I/O but opening and, over commits of
// the catalog, changes and names.mu.
type Store struct {
	options Options
	log     *slog.Logger
	opened  time.Time
	lock    *dirLock
	id      segment.StoreID

	drives   []*drive
	segBytes int64
	reserve  int // free groups that only the cleaner may open
	catalog  *catalog.Catalog
	names    *names
	index    *index.Index
	arena    *memory.Arena
	cache    *memory.Cache // nil without a DRAM tier
	space    space
	events   *eventLog
	workers  workers
	cleaner  cleaner
	monitor  monitor
	tasks    tasks

	catalogFull atomic.Bool // its file system has too little left for puts: full.go
	fullText    atomic.Pointer[string]
	sessions    sessions
	two         twoPointers
	flights     flights
	accepted    acceptances
	pending     pendings
	count       counters
	leases      leaseTable
	pins        pinTable
	rate        rate
	metrics     *metrics // nil without a registerer
	// writeback decides which Cache blocks go to the drives; nil: all
	writeback *writeback
	profile   *profile // of reuse; nil: none
	programs  programs
	joins     joins
	wanted    wanted
	prefetch  prefetcher
	works     works
	calls     underway
	scarce    scarce
	wear      wearTable
	admin     *admin // nil: none
	logTail   *logRing

	seq       atomic.Uint64   // last sequence number given out
	flushed   atomic.Uint64   // everything at or below it is on the drives
	marked    atomic.Uint64   // the same, as the synced catalog has it
	wasOpen   []*group        // when the store ended
	leftFree  map[uint32]bool // groups that were cleaned, whose headers may not say so
	exclusive bool            // read-only, and nobody else has it open
	marks     marks
	markMu    sync.Mutex
	unsynced  chan struct{} // says that rows of Cache blocks were committed; see harden
	rootMu    sync.Mutex    // over making and committing the root row; taken after names.mu
	changes   sync.Mutex    // changes of rows that exist: deletes, replacements, moves
	lastStart lastStart     // guarded by space.mu
	openBytes atomic.Int64
	loose     atomic.Uint64 // rows deleted without a sync, so far
	firm      atomic.Uint64 // how many of those are synced
	stale     atomic.Int64  // stale groups
	intents   intents
	suspects  suspects
	rivals    rivals
	sides     sides
	repairs   repairs
	logCache  logCache   // of a store whose catalog has failed
	naming    sync.Mutex // makes and purges namespaces; before space.opening
	format    uint32     // of the store; what it lacks is made up for at open
	epoch     uint64
	aside     bool     // the catalog that is there is to be set aside
	making    bool     // a store is being made, or could not be
	made      []string // files and directories this call made
	// Of the index; logicalPages is the cleaner's.
	capacityPages, logicalPages int64
	loadedSeq                   [2]uint64 // of the groups an open found: the first opening, and the end
	secret                      segment.Secret
	keys                        atomic.Pointer[keyring] // of tenants whose payload is encrypted

	ctx        context.Context // ends with Close
	cancel     context.CancelFunc
	closing    chan struct{}
	gate       sync.RWMutex // held shared by calls, so that Close waits for them
	closed     bool         // guarded by gate
	closeOnce  sync.Once
	closeErr   error
	outlived   bool // background work did not end with Close
	background sync.WaitGroup
	failure    atomic.Pointer[error]
}

var _ skep.Store = (*Store)(nil)

// lastStart remembers where the last placed block began, for a child placed before
// its parent is in the index: the next of the same put.
type lastStart struct {
	fp     index.Fingerprint
	device int
	set    bool
}

var errClosed = &skep.Error{Op: "store", Kind: skep.Closed}

// enter begins a call; leave ends it. Calls that only wait for drives (sessions) do
// not hold the gate while they wait.
func (s *Store) enter(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return &skep.Error{Op: "store", Kind: skep.Deadline, Err: err}
	}
	s.gate.RLock()
	if s.closed {
		s.gate.RUnlock()
		return errClosed
	}
	return nil
}

func (s *Store) leave() { s.gate.RUnlock() }

// enterWrite begins a call that changes the store.
func (s *Store) enterWrite(ctx context.Context, op string) error {
	if err := s.enter(ctx); err != nil {
		return err
	}
	if s.options.ReadOnly {
		s.leave()
		return &skep.Error{Op: op, Kind: skep.ReadOnly}
	}
	if e := s.failure.Load(); e != nil {
		s.leave()
		return &skep.Error{Op: op, Kind: skep.Failed, Err: *e}
	}
	return nil
}

// fail stops the store from accepting changes: the catalog can no longer keep them.
// Reads go on.
func (s *Store) fail(err error) {
	if s.failure.CompareAndSwap(nil, &err) {
		s.log.Error("store failed: it takes no more changes; restart it once the cause is mended", "error", err)
	}
}

// unsure follows a commit after which memory and rows must agree. Of one that ended in an
// error it may not be known whether it happened, or is still to happen: then nothing that
// memory says can be built upon, and the store takes no more changes. The next open goes by
// the rows. It gives err.
func (s *Store) unsure(err error) error {
	switch skep.KindOf(err) {
	case skep.Full, skep.ReadOnly, skep.Closed, skep.Invalid: // it did not happen
		return err
	}
	if err != nil && s.ctx.Err() == nil { // a store that is closed is opened by its rows anyway
		s.fail(err)
	}
	return err
}

func (s *Store) state() string {
	if e := s.failure.Load(); e != nil {
		return "failed: " + (*e).Error()
	}
	if s.options.ReadOnly {
		return "read-only"
	}
	if text := s.fullText.Load(); text != nil && s.catalogFull.Load() {
		return *text
	}
	return "ok"
}

func (s *Store) now() time.Time  { return s.options.Clock() }
func (s *Store) nextSeq() uint64 { return s.seq.Add(1) }

// passSeq has n, and all below it, never given out again: somebody who knew of it was here
// before, whatever the root row says.
func (s *Store) passSeq(n uint64) {
	for at := s.seq.Load(); at < n && !s.seq.CompareAndSwap(at, n); at = s.seq.Load() {
	}
}

// beginSeq gives an append its number and marks it as under way, in one step.
func (s *Store) beginSeq() uint64 {
	s.marks.mu.Lock()
	defer s.marks.mu.Unlock()
	seq := s.seq.Add(1)
	s.marks.underway[seq] = struct{}{}
	return seq
}

// storeState is the root row as it stands.
func (s *Store) storeState(next catalog.StoreState, clean bool) catalog.StoreState {
	next.StoreID, next.Secret, next.Format = s.id, s.secret, s.format
	next.Epoch, next.Clean = s.epoch, clean
	next.NextSeq = s.seq.Load() + 1
	next.FlushedSeq = s.flushed.Load()
	s.space.mu.Lock()
	next.NextGroup = s.space.mu.next
	s.space.mu.Unlock()
	return next
}

// saveSeq commits b together with the root row. The row is made and committed under
// rootMu, or a row made earlier and committed later would take marks back that others rely
// on. REQUIRES: not names.mu.
func (s *Store) saveSeq(ctx context.Context, b *catalog.Batch, sync bool) error {
	s.names.mu.RLock()
	defer s.names.mu.RUnlock()
	s.rootMu.Lock()
	defer s.rootMu.Unlock()
	b.PutStore(s.storeState(s.names.mu.next, false))
	return s.catalog.Commit(ctx, b, sync)
}

// saveNext commits b with new high-water marks. REQUIRES: names.mu.
func (s *Store) saveNext(ctx context.Context, b *catalog.Batch, next catalog.StoreState) error {
	s.rootMu.Lock()
	defer s.rootMu.Unlock()
	b.PutStore(s.storeState(next, false))
	return s.catalog.Commit(ctx, b, true)
}

func (s *Store) namespaceOf(id skep.NamespaceID) *namespace {
	s.names.mu.RLock()
	defer s.names.mu.RUnlock()
	return s.names.mu.byID[id]
}

// Alloc implements skep.Allocator.
func (s *Store) Alloc(ctx context.Context, n int64) (skep.Memory, error) {
	if err := s.enter(ctx); err != nil {
		return nil, err
	}
	defer s.leave()
	if n < 1 {
		return nil, skep.Invalidf("alloc", "bytes", n, "at least 1")
	}
	if n > int64(s.arena.MaxBlock()) {
		return nil, &skep.Error{Op: "alloc", Kind: skep.NoMemory, Field: "bytes", Value: n, Limit: "at most " + itoa(s.arena.MaxBlock()) + " in one piece"}
	}
	b, err := s.arena.Alloc(ctx, int(n), memory.BudgetIO)
	if err != nil {
		return nil, noMemory("alloc", err)
	}
	return b, nil
}

func noMemory(op string, err error) error {
	return &skep.Error{Op: op, Kind: skep.NoMemory, Err: err}
}

// pendings are the records of accepted blocks that have no row yet.
type pendings struct {
	mu sync.Mutex
	m  map[index.Fingerprint]*segment.Record
}

func (p *pendings) add(fp index.Fingerprint, r *segment.Record) {
	p.mu.Lock()
	p.m[fp] = r
	p.mu.Unlock()
}

// removeThat removes in's record, unless another's of the same key has taken its place.
func (p *pendings) removeThat(in *incoming) {
	p.mu.Lock()
	if p.m[in.fp] == in.known {
		delete(p.m, in.fp)
	}
	p.mu.Unlock()
}

func (p *pendings) len() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.m)
}

func (p *pendings) get(fp index.Fingerprint) *segment.Record {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.m[fp]
}

// sessions are the restores under way.
type sessions struct {
	mu     sync.Mutex
	m      map[*session]struct{}
	closed bool
}

func (l *sessions) add(ses *session) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return false
	}
	l.m[ses] = struct{}{}
	return true
}

func (l *sessions) remove(ses *session) {
	l.mu.Lock()
	delete(l.m, ses)
	l.mu.Unlock()
}

func (l *sessions) all(closing bool) []*session {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = l.closed || closing
	out := make([]*session, 0, len(l.m))
	for ses := range l.m {
		out = append(out, ses)
	}
	return out
}

func unpack(v uint64) layout.Location { return layout.Unpack(v) }

func layoutOf(l catalog.Loc) layout.Location {
	return layout.Location{Group: l.Group, Page: l.Page, Device: l.Device, Sub: l.Sub}
}

func itoa(n int) string     { return strconv.Itoa(n) }
func itoa64(n int64) string { return strconv.FormatInt(n, 10) }

func sortBy[T any](s []T, less func(a, b T) bool) {
	sort.Slice(s, func(i, j int) bool { return less(s[i], s[j]) })
}

// go0 runs f on a goroutine that w waits for.
func go0(w *sync.WaitGroup, f func()) {
	w.Add(1)
	go func() {
		defer w.Done()
		f()
	}()
}
