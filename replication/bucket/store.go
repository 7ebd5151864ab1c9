package bucket

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/skepkv/skep"
)

// Options of New.
type Options struct {
	Bucket Bucket
	Key    []byte // KeySize bytes; whoever has it can read the objects. The same at every node
	// OtherKey is what objects are read with, too, while keys change; nil: none. Blocks of such objects that come back are
	// sent anew with Key. DropOther has the objects of the other key be removed.
	OtherKey  []byte
	DropOther bool
	// Sends says which namespaces are sent, of those that may be; nil: all of them.
	Sends func(*skep.NamespaceSpec) bool
	// BeginAt is how much of the node's capacity is used before something is sent, 0 to 1; 0: .7.
	BeginAt float64
	// Unfound has blocks be sent that no lookup has found yet, too.
	Unfound     bool
	ObjectBytes int64         // of an object, about; 1 to MaxObjectBytes; 0: 64 MiB
	Every       time.Duration // between passes, and looks at what other nodes wrote; 0: 30 s
	MaxBytes    int64         // of all objects; beyond, the oldest are removed; 0: any
	// IndexBytes is how much memory the index may take, about 192 bytes a block. Beyond, nothing is sent, and what others
	// have sent is left out, of which only so much can be deleted. 0: 1 GiB.
	IndexBytes int64
	Budget     Budget
	// Alone says that no other node writes below the bucket's prefix: a deletion need not look for what it wrote.
	Alone bool
	// Serves says whether the node knows what was deleted without it: until it does nothing is sent. nil: it always does.
	Serves func() bool
	// Recompute is what computing costs where a lookup does not say; nil: nothing is declined then.
	Recompute *skep.RecomputeCost
	// Timeout is how long one call of the bucket may take; 0: 30 s.
	Timeout time.Duration
	Logger  *slog.Logger // nil: none

	pause time.Duration // before a call is made again; 0: 100 ms
}

// Limits of Options.
const (
	MaxObjectBytes = 1 << 30
	MinIndexBytes  = 1 << 20
	MinEvery       = 10 * time.Millisecond
	MaxEvery       = forgetFor / 4 // others' deletions are heard of before they are forgotten
	mostTimeout    = time.Hour
)

const op = "bucket"

// Check says what is wrong with the numbers.
//
// Errors: Invalid.
func (o *Options) Check() error {
	filled := *o
	filled.fill()
	return filled.check()
}

func (o *Options) fill() {
	set := func(v *time.Duration, to time.Duration) {
		if *v == 0 {
			*v = to
		}
	}
	set(&o.Every, 30*time.Second)
	set(&o.Timeout, 30*time.Second)
	set(&o.pause, 100*time.Millisecond)
	if o.BeginAt == 0 {
		o.BeginAt = .7
	}
	if o.IndexBytes == 0 {
		o.IndexBytes = 1 << 30
	}
	if o.ObjectBytes == 0 {
		o.ObjectBytes = 64 << 20
	}
	if o.Sends == nil {
		o.Sends = func(*skep.NamespaceSpec) bool { return true }
	}
	if o.Serves == nil {
		o.Serves = func() bool { return true }
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
}

func (o *Options) check() error {
	switch {
	case !(o.BeginAt > 0) || o.BeginAt > 1:
		return skep.Invalidf(op, "used share at which sending begins", o.BeginAt, "above 0, at most 1")
	case o.ObjectBytes < 1 || o.ObjectBytes > MaxObjectBytes:
		return skep.Invalidf(op, "bytes of an object", o.ObjectBytes, fmt.Sprintf("1 to %d", MaxObjectBytes))
	case o.Every < MinEvery || o.Every > MaxEvery:
		return skep.Invalidf(op, "time between passes", o.Every, fmt.Sprintf("%v to %v", MinEvery, MaxEvery))
	case o.Timeout < 0 || o.Timeout > mostTimeout:
		return skep.Invalidf(op, "timeout", o.Timeout, "up to 1h")
	case o.IndexBytes < MinIndexBytes:
		return skep.Invalidf(op, "bytes of the index", o.IndexBytes, fmt.Sprintf("%d or more", MinIndexBytes))
	case o.MaxBytes < 0:
		return skep.Invalidf(op, "bytes of all objects", o.MaxBytes, "0 or more")
	}
	return o.Budget.validate()
}

// blockLister is what New needs of a node's Store besides.
type blockLister interface {
	ListBlocks(ctx context.Context, space skep.NamespaceID, group int, from uint64, n int) (
		blocks []skep.StoredBlock, next uint64, err error)
}

// taker is a Store that may take no blocks of a tenant now (package sealed): what objects have of it is not found, for
// it could not be put.
type taker interface{ Takes(tenant string) bool }

func (s *Store) takes(sp *space) bool {
	t, ok := skep.As[taker](s.Store)
	return !ok || t.Takes(sp.spec.Tenant)
}

// Store is a node's Store with object storage behind it. What is deleted is deleted through this Store.
type Store struct {
	skep.Store
	o      Options
	lister blockLister
	budget *budget
	stay   time.Duration   // for at least which an object stays
	kick   chan chan error // has a round begin now, and is told what became of it
	found  *found
	held   held
	speed  speed
	use    usage
	looked time.Time // when the latest look ended
	beside int64     // bytes that it has shown and the index does not have
	own    own
	// tooLarge is a size of memory that can never be had for a block, who sends knows it; 0: none is known.
	tooLarge int64

	mu     sync.Mutex
	spaces map[string]*space
	purges []purge
	stale  time.Time     // of spaces that are made from then on: see space
	ids    sync.Map      // *space by skep.NamespaceID; nil where the namespace can have none
	loaded chan struct{} // closed when the bucket was read
	ready  atomic.Bool   // it is closed
	tried  chan struct{} // closed when it was to be read for the first time
	first  sync.Once     // closes tried
	why    struct{ reads, writes failure }

	fetching fetches
	stop     context.CancelFunc
	life     context.Context // ends when Close begins
	done     sync.WaitGroup
}

// usage is counted.
type usage struct {
	sentBlocks, sentBytes, sentObjects     atomic.Int64
	loadedBlocks, loadedBytes, loadedCalls atomic.Int64
	refused, declined, failed, damaged     atomic.Int64
	unindexed                              atomic.Int64
}

// own is calls of the node's Store that are this one's, and nobody's who asks for Stats.
type own struct {
	mu            sync.Mutex
	blocks, bytes int64
	tiers         map[string]int64 // bytes
	misses        map[string]int64
}

// read notes a chunk, which is a part of a block.
func (o *own) read(c *skep.Chunk) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.tiers == nil {
		o.tiers, o.misses = map[string]int64{}, map[string]int64{}
	}
	if c.Err != nil {
		o.misses[skep.KindOf(c.Err).Error()]++
		return
	}
	o.blocks, o.bytes = o.blocks+1, o.bytes+c.Bytes
	o.tiers[c.Tier.String()] += c.Bytes
}

// Stats implements skep.Store.
func (s *Store) Stats(ctx context.Context) (skep.Stats, error) {
	o := &s.own
	o.mu.Lock()
	defer o.mu.Unlock()
	st, err := s.Store.Stats(ctx)
	if err != nil {
		return st, err
	}
	st.RestoredBlocks, st.RestoredBytes = st.RestoredBlocks-o.blocks, st.RestoredBytes-o.bytes
	for _, x := range []struct{ of, less map[string]int64 }{{st.RestoreTiers, o.tiers}, {st.RestoreMisses, o.misses}} {
		for name, n := range x.less {
			if x.of[name] -= n; x.of[name] == 0 {
				delete(x.of, name)
			}
		}
	}
	return st, nil
}

// Usage is what a Store did since it was made, and what it knows.
type Usage struct {
	Objects, Blocks, Bytes                 int64 // that the index has; Bytes of the objects
	SentObjects, SentBlocks, SentBytes     int64
	LoadedCalls, LoadedBlocks, LoadedBytes int64
	Refused                                int64 // blocks that were not sent or not fetched because a budget was used up
	Declined                               int64 // blocks that were fetched, and the node's Store did not take
	Failed                                 int64 // calls of the bucket that failed
	Damaged                                int64 // objects and blocks that cannot be read
	Unindexed                              int64 // blocks not sent because the index is full, or too many calls failed
	Unread                                 int64 // objects that are there and not in the index
	OtherKey                               int64 // objects of the other key
	FirstByte                              time.Duration
	Rate                                   float64 // bytes a second, of one fetch
	Err                                    error   // of the last call that reads or writes, where one failed
}

// New puts a bucket behind a node's Store, which it owns from then on unless it fails. The bucket is read meanwhile:
// until that is done nothing is found there, and deletions wait.
//
// Errors: Invalid; Unsupported where the Store does not list its blocks.
func New(own skep.Store, o Options) (*Store, error) {
	o.fill()
	switch {
	case o.Bucket == nil:
		return nil, skep.Invalidf(op, "bucket", "none", "one")
	case len(o.Key) != KeySize:
		return nil, skep.Invalidf(op, "length of the key in bytes", len(o.Key), KeySize)
	}
	if o.OtherKey != nil && (len(o.OtherKey) != KeySize || bytes.Equal(o.OtherKey, o.Key)) {
		return nil, skep.Invalidf(op, "length of the other key in bytes", len(o.OtherKey),
			fmt.Sprintf("%d, of another key", KeySize))
	}
	if err := o.check(); err != nil {
		return nil, err
	}
	lister, ok := skep.As[blockLister](own)
	if !ok {
		return nil, &skep.Error{Op: op, Kind: skep.Unsupported, Field: "store", Limit: "one that lists its blocks"}
	}
	s := &Store{Store: own, o: o, lister: lister, budget: newBudget(o.Budget), stay: time.Hour,
		kick: make(chan chan error), found: newFound(),
		spaces: map[string]*space{}, loaded: make(chan struct{}), tried: make(chan struct{})}
	s.held.most, s.held.forgets = o.IndexBytes, maxForgotten
	s.fetching.init()
	s.life, s.stop = context.WithCancel(context.Background())
	s.done.Go(s.run)
	return s, nil
}

// Unwrap is the node's Store: see skep.As.
func (s *Store) Unwrap() skep.Store { return s.Store }

// Close ends what goes to the bucket and comes from it, and closes the node's Store.
func (s *Store) Close() error {
	s.stop()
	s.done.Wait()
	s.fetching.wait()
	return s.Store.Close()
}

// Usage is what it did, and knows.
func (s *Store) Usage() Usage {
	u := Usage{SentObjects: s.use.sentObjects.Load(), SentBlocks: s.use.sentBlocks.Load(), SentBytes: s.use.sentBytes.Load(),
		LoadedCalls: s.use.loadedCalls.Load(), LoadedBlocks: s.use.loadedBlocks.Load(), LoadedBytes: s.use.loadedBytes.Load(),
		Refused: s.use.refused.Load(), Declined: s.use.declined.Load(), Failed: s.use.failed.Load(),
		Damaged: s.use.damaged.Load(), Unindexed: s.use.unindexed.Load()}
	u.FirstByte, u.Rate = s.speed.is()
	for _, of := range []*failure{&s.why.writes, &s.why.reads} {
		if why := of.Load(); why != nil {
			u.Err = *why
		}
	}
	for _, sp := range s.all() {
		sp.mu.RLock()
		u.Blocks += int64(len(sp.blocks))
		u.Objects += int64(len(sp.objects))
		u.Unread += int64(len(sp.unread))
		if !sp.first {
			u.OtherKey += int64(len(sp.objects) + len(sp.unread))
		}
		for _, o := range sp.objects {
			u.Bytes += o.size
		}
		sp.mu.RUnlock()
	}
	return u
}

func (s *Store) all() (out []*space) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, sp := range s.spaces {
		out = append(out, sp)
	}
	slices.SortFunc(out, func(a, b *space) int { return cmp.Compare(a.name, b.name) })
	return out
}

// failure is why the last call of the bucket that reads, or one that writes, was not answered; nil: it was. A bucket
// that takes no more writes is read all the same.
type failure = atomic.Pointer[error]

// errLate is in the error of a call that was not answered in time.
var errLate = errors.New("no answer")

// A call that failed is made again so often, unless the one before it failed, too: after a pause that doubles.
const mostRepeats = 2

// asked is a call of the bucket, which may be made more than once: it has a time, and what becomes of it is noted.
func (s *Store) asked(ctx context.Context, why *failure, call func(ctx context.Context) error) error {
	again := why.Load() == nil
	for n := 0; ; n++ {
		err := s.asking(ctx, why, func(ctx context.Context, _ func()) error { return call(ctx) })
		if skep.KindOf(err) != skep.Unavailable || err == nil || errors.Is(err, errLate) || !again || n == mostRepeats {
			return err
		}
		pause := s.o.pause << n
		select {
		case <-time.After(pause/2 + rand.N(pause)):
		case <-ctx.Done():
			return err
		}
	}
}

// asking is one call, which may come in parts: each has the time, and answered says that one is there.
func (s *Store) asking(ctx context.Context, why *failure,
	call func(ctx context.Context, answered func()) error) error {
	within, cancel := context.WithCancel(ctx)
	defer cancel()
	late := time.AfterFunc(s.o.Timeout, cancel)
	defer late.Stop()
	err := call(within, func() { late.Reset(s.o.Timeout) })
	if err != nil && within.Err() != nil && ctx.Err() == nil {
		err = &skep.Error{Op: op, Kind: skep.Unavailable, Field: "time of a call", Value: "no answer", Limit: s.o.Timeout,
			Err: errors.Join(errLate, err)}
	}
	if ctx.Err() != nil && err != nil { // the caller gave it up, and nothing is said of the bucket
		return &skep.Error{Op: op, Kind: skep.Deadline, Err: ctx.Err()}
	}
	if err == nil {
		why.Store(nil)
		return nil
	}
	switch skep.KindOf(err) {
	case skep.NotFound, skep.Damaged, skep.Version: // it has answered
		why.Store(nil)
		return err
	case skep.Denied: // of one object, as far as is known
		s.use.failed.Add(1)
		return err
	case skep.Other:
		err = &skep.Error{Op: op, Kind: skep.Unavailable, Err: err}
	}
	s.use.failed.Add(1)
	why.Store(&err)
	return err
}

// may says whether a namespace may have objects.
func may(n *skep.NamespaceSpec) bool { return n.Chained && n.Class == skep.Cache }

// keys are those that objects are read with.
func (s *Store) keys() [][]byte {
	if s.o.OtherKey == nil {
		return [][]byte{s.o.Key}
	}
	return [][]byte{s.o.Key, s.o.OtherKey}
}

// spaceNamed is the space of a namespace, made where it is not known, and with it that of the other key.
func (s *Store) spaceNamed(spec *skep.NamespaceSpec) *space {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.named(spec)
}

// named is spaceNamed; mu is held.
func (s *Store) named(spec *skep.NamespaceSpec) *space {
	if sp := s.spaces[spaceOf(s.o.Key, spec)]; sp != nil {
		return sp
	}
	var last *space
	for _, key := range slices.Backward(s.keys()) {
		sp := newSpace(key, spec, &s.held)
		sp.stale = s.stale
		for _, p := range s.purges {
			if p.some(spec) {
				sp.hush(p.from, s.o.Alone)
			}
		}
		s.spaces[sp.name] = sp
		sp.other, last = last, sp
	}
	last.first = true
	return last
}

// spaceOf is the space of a namespace; nil: it can have none.
func (s *Store) spaceOf(ctx context.Context, id skep.NamespaceID) (*space, error) {
	if sp, ok := s.ids.Load(id); ok {
		return sp.(*space), nil
	}
	info, err := s.FindNamespace(ctx, id)
	if err != nil {
		return nil, err
	}
	var sp *space
	if may(&info.NamespaceSpec) {
		s.mu.Lock() // a space without an id may be forgotten
		defer s.mu.Unlock()
		sp = s.named(&info.NamespaceSpec)
	}
	s.ids.Store(id, sp)
	return sp, nil
}

// isLoaded waits while the bucket is read for the first time. Where that failed nobody waits for the next time.
func (s *Store) isLoaded(ctx context.Context) error {
	select {
	case <-s.loaded:
		return nil
	case <-s.tried:
		if s.ready.Load() {
			return nil
		}
	case <-ctx.Done():
	case <-s.life.Done():
		return &skep.Error{Op: op, Kind: skep.Closed}
	}
	err := ctx.Err()
	if why := s.why.reads.Load(); why != nil {
		err = *why
	}
	return &skep.Error{Op: op, Kind: skep.Unavailable, Field: "bucket", Value: "not read yet", Err: err}
}

// run reads the bucket, and then sends, and looks at what others wrote.
func (s *Store) run() {
	tick := time.NewTicker(s.o.Every)
	defer tick.Stop()
	var tell chan error
	for {
		err := s.round(s.life)
		if err != nil && s.life.Err() == nil {
			s.o.Logger.Warn("object storage", "error", err)
		}
		if tell != nil {
			tell <- err
		}
		tell = nil
		select {
		case <-tick.C:
		case tell = <-s.kick:
		case <-s.life.Done():
			return
		}
	}
}

// round is one look at the bucket and, where that is read, one pass over the node's blocks.
func (s *Store) round(ctx context.Context) error {
	asked, err := s.refresh(ctx)
	if asked && !s.ready.Load() {
		s.ready.Store(true)
		close(s.loaded)
	}
	s.first.Do(func() { close(s.tried) })
	if !asked {
		return err
	}
	return errors.Join(err, s.pass(ctx))
}
