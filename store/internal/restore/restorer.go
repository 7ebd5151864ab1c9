package restore

import (
	"context"
	"iter"
	"log/slog"
	"sync"
	"time"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/index"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/layout/twopointer"
	"github.com/skepkv/skep/store/device"
	"github.com/skepkv/skep/store/internal/crypt"
	"github.com/skepkv/skep/store/internal/namespaces"
	"github.com/skepkv/skep/store/internal/observe"
	"github.com/skepkv/skep/store/internal/segio"
	"github.com/skepkv/skep/store/memory"
)

// Restorer restores chains from drives and the DRAM tier. The zero value is ready to be asked about and to be
// stopped; Start makes it ready to restore.
type Restorer struct {
	Parts
	workers  workers
	sessions sessions
	two      twoPointers
	rate     rate
	joins    joins
	wanted   wanted
	prefetch prefetcher
}

// Parts are what a Restorer works with.
type Parts struct {
	Options
	Source     Source
	Context    context.Context // ends with the store's Close
	Background *sync.WaitGroup // of goroutines that end with Context
	Log        *slog.Logger
	Clock      func() time.Time
	Arena      *memory.Arena
	Cache      *memory.Cache // nil without a DRAM tier
	Scarce     memory.Scarce // shared with whoever else waits for I/O buffers
	Index      *index.Index
	Names      *namespaces.Table
	Count      *observe.Counts
}

// Options say how a Restorer restores; store.Options has their meaning.
type Options struct {
	Workers       int // goroutines that check and copy; at least 1
	OpTimeout     time.Duration
	CloseTimeout  time.Duration // for the session of a prefetch
	PrefetchBytes int64
	ReadInPlace   bool
	FirstCome     bool
	Policy        string
}

// Source is what a Restorer asks of the store. Its methods may be called from any goroutine.
type Source interface {
	// Enter begins a call, which Close waits for until Leave. Errors: Closed; Deadline when ctx has ended.
	Enter(ctx context.Context) error
	Leave()
	// Hold counts bytes that a tenant's session keeps, and says as how many they were counted: LetGo gives those back.
	// Errors: Overloaded, and nothing is counted.
	Hold(tenant uint16, bytes int64) (int64, error)
	LetGo(tenant uint16, bytes int64)
	// Leased says how many leading keys of a chain its lease covers now.
	Leased(a *Asked) int

	// Locate finds blocks of chains, in the order in which they are asked for. What is on drives, or in memory, is
	// pinned until it is let go of.
	Locate(asks []Ask) []*Located
	// Unpin lets go of where a block lies.
	Unpin(g Stripe)
	// Recall gives l, which is in memory, the checksums that its block's record has. It may find none.
	Recall(a *Asked, l *Located)
	// PayloadOf is how many bytes a block has that the index knows.
	PayloadOf(ns *namespaces.Namespace, fp index.Fingerprint, e index.Entry) int64
	// Drives are all of the store's.
	Drives() iter.Seq[Drive]

	// Used is told of a block's first chunk that reached its reader, and from where.
	Used(fp index.Fingerprint, t skep.Tier)
	// Failed is told of a copy that could not be read, or was wrong; lost says that no copy has the right bytes.
	Failed(a *Asked, l *Located, why error, lost bool)
	// Undecipherable is told of a block with right checksums that its key does not open.
	Undecipherable(a *Asked, l *Located)
}

// Drive is a drive of the store.
type Drive interface {
	Queue() *Queue                 // of its reads, always the same
	Number() int                   // among the store's drives, from 0
	Submit(ops []*device.Op) error // as device.Device's
	ReadRank() int                 // less is better, segio.NoPlace and above never
	GaveWrong()                    // counts a read that brought wrong bytes
}

// Stripe is where a block lies: a segment on each of some drives.
type Stripe interface {
	segio.Group
	Drive(i int) Drive // that segment i is on
	Healthy() bool     // no drive of it needs to be read around
}

// Asked is the chain that blocks are asked for by.
type Asked struct {
	*layout.ChainPlan
	NS  *namespaces.Namespace
	Tag namespaces.Tag // of the salt
}

// Ask is blocks of a chain that are looked for, by their place among those it asks for.
type Ask struct {
	*Asked
	Blocks []int
}

func (a *Asked) fingerprint(n *namespaces.Table, block int) index.Fingerprint {
	return n.Fingerprint(a.NS.Instance, a.Tag, a.Keys[block])
}

// Located is where a block of a chain lies, and what its part's bytes must hash to.
type Located struct {
	FP     index.Fingerprint
	Block  int    // index into the chain's keys
	Err    error  // why it is a miss
	Stripe Stripe // pinned; nil: it is not on drives
	At     layout.Location
	Copies []layout.Location
	Stored int64          // bytes of a copy on its devices
	Offset int64          // of the part in the stored form
	Size   int64          // of the part, in bytes
	Sums   segio.Sums     // its own: of what lies on the devices
	Opener *crypt.Opener  // of a sealed block; nil: it is not
	Inline []byte         // the part, where it lies in its record
	Packed bool           // it shares a page
	Memory *memory.Handle // the part is in the DRAM tier
	Where  uint64         // the location that the index had when it was found; no other version ever has it; 0: none

	left     int       // chunks that still need it
	before   *Located  // where it lay when it was looked for before; chunks may still look at that
	recalled sync.Once // sums of what is in memory were looked for
}

// LetGo unpins what l holds. Safe to call twice, and for nil.
func (l *Located) LetGo(from interface{ Unpin(Stripe) }) {
	if l == nil {
		return
	}
	if l.Stripe != nil {
		from.Unpin(l.Stripe)
		l.Stripe = nil
	}
	if l.Memory != nil {
		l.Memory.Release()
		l.Memory = nil
	}
	l.before.LetGo(from)
	l.before = nil
}

// Start makes it ready, with goroutines that end with p.Context, and with Stop.
func (rs *Restorer) Start(p Parts) {
	rs.Parts = p
	rs.sessions.m = map[*session]struct{}{}
	rs.two.start(rs)
	rs.workers.start(p.Workers)
	rs.Background.Go(rs.watch)
}

// Close closes all sessions, and has none begin any more. Errors: the sessions'.
func (rs *Restorer) Close(ctx context.Context) (errs []error) {
	for _, ses := range rs.sessions.all(true) {
		if err := ses.Close(ctx); err != nil {
			errs = append(errs, err)
		}
	}
	return errs
}

// Stop ends the workers, once nothing waits for them. What drives give back later is let go of.
func (rs *Restorer) Stop() { rs.workers.stop() }

// State is what is under way.
type State struct {
	Sessions int     // begun and not closed
	Ready    int     // chunks that wait for their readers
	Untold   int     // others, which are made as they are asked for
	Joinable int     // chunks whose reads others may share
	Wanted   int     // parts of blocks that restores still want
	Ahead    float64 // bytes the two-pointer scheduler has handed out that have not come
	Rate     float64 // what it takes the drives to move, in bytes a second; 0: nobody has asked it
}

// State says what is under way now.
func (rs *Restorer) State() (st State) {
	for _, ses := range rs.sessions.all(false) {
		ses.mu.Lock()
		st.Sessions++
		st.Ready += len(ses.ready) - ses.readyAt
		st.Untold += ses.untold
		ses.mu.Unlock()
	}
	rs.joins.mu.Lock()
	st.Joinable = len(rs.joins.m)
	rs.joins.mu.Unlock()
	rs.wanted.mu.Lock()
	st.Wanted = len(rs.wanted.m)
	rs.wanted.mu.Unlock()
	rs.two.mu.Lock()
	defer rs.two.mu.Unlock()
	if rs.two.sched != nil {
		st.Ahead, st.Rate = rs.two.away, rs.two.sched.Rate(0)
	}
	return st
}

// SawRate tells the two-pointer scheduler what the drives were seen to move, in bytes a second.
func (rs *Restorer) SawRate(bps float64) error {
	rs.two.mu.Lock()
	defer rs.two.mu.Unlock()
	err := rs.two.ready()
	if err == nil {
		_, err = rs.two.step(twopointer.Event{Kind: twopointer.Speed, Rate: bps})
	}
	return err
}
