package replication

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/replication/calls"
	"github.com/skepkv/skep/replication/checks"
	"github.com/skepkv/skep/replication/clustermap"
	"github.com/skepkv/skep/replication/copies"
	"github.com/skepkv/skep/replication/errand"
	"github.com/skepkv/skep/replication/known"
	"github.com/skepkv/skep/replication/merge"
	"github.com/skepkv/skep/replication/owed"
	"github.com/skepkv/skep/replication/pace"
	"github.com/skepkv/skep/replication/placement"
	"github.com/skepkv/skep/replication/promises"
	"github.com/skepkv/skep/replication/sched"
	"github.com/skepkv/skep/replication/seeds"
	"github.com/skepkv/skep/wire"
)

// Options of New.
type Options struct {
	// Map is the cluster as it stands. A node whose map is newer is asked for that (Dial).
	Map *clustermap.Map
	// Stores are the nodes' Stores, in the order of Map.Nodes: wire clients, or any other. They are the Store's from
	// now on, which closes them.
	Stores []skep.Store

	// Dial makes the Store of a node that a newer map brings; nil: newer maps are not followed.
	Dial func(n clustermap.Node) (skep.Store, error)

	// Memory is whose memory Alloc lends; nil: the first node's Store's.
	Memory skep.Allocator

	// OneAtATime has no node asked for what another one is late with: nodes are asked in turns, and waited for.
	OneAtATime bool

	EventBuffer int          // events kept for readers that lag; 0: 16,384
	Log         *slog.Logger // discarded when nil
}

// Store is a skep.Store made of the Stores of a cluster's nodes. New makes one; it is safe for concurrent use.
type Store struct {
	calls.Calls
	now    atomic.Pointer[view]
	open   func(n clustermap.Node) (skep.Store, error)
	seed   *wire.Client // of Connect; nil: none
	seeds  *seeds.List  // of Connect; nil: none
	again  seeds.Again
	memory skep.Allocator
	// numbered says that callers have the numbers of namespaces that the seed gave before there was a map.
	numbered atomic.Bool
	learns   chan struct{} // has one element while somebody asks for a newer map
	log      *slog.Logger
	opened   time.Time
	epoch    uint64

	spaces     spaces
	known      *known.Memory
	leases     promises.Book[*lease]
	merge      *merge.Merger[source]
	plans      *sched.Scheduler
	count      copies.Counters
	hedges     *pace.Hedges
	oneAtATime bool

	ctx      context.Context // ends with Close
	cancel   context.CancelFunc
	wait     sync.WaitGroup // what is started beside the calls
	mu       sync.Mutex
	sessions map[*session]struct{}
	closed   atomic.Bool
}

var _ skep.Store = (*Store)(nil)

// view is the cluster as a map says. Calls keep the one that they began with.
type view struct {
	of    *clustermap.Map
	nodes []*node       // those of earlier maps, too: a later view has all of an earlier one at their places
	owner []*node       // in the map's order
	live  []*node       // owner, but for those that the map says are down
	near  []*node       // live, those in this process first
	debts []*owed.Total // of nodes
	asks  []*owed.Total
	table *placement.Table
	bound bool // there is no map, and calls are not for a server of no cluster
}

// many is a Store of a cluster of several nodes: a Store, and the view that a call began with. Its methods carry calls
// out; a cluster of one node has none (Store.to).
type many struct {
	*Store
	*view
}

// node is one server of the cluster.
type node struct {
	clustermap.Node
	i     int
	st    skep.Store
	trips atomic.Uint32 // how often it was away, as calls of its namespaces found, or may have been between two maps

	lookups pace.Pair
	runs    *pace.Line
	behind  errand.Behind // calls that nobody waits for any more
	gone    atomic.Bool   // no map has it any more
	owed    owed.Total    // to sessions of this Store
	asked   owed.Total    // by its lookups under way
}

// New makes a Store of the Stores of a cluster's nodes. It asks none of them anything.
func New(o Options) (*Store, error) {
	const op = "open cluster"
	if o.Map == nil {
		return nil, skep.Invalidf(op, "map", "nil", "set")
	}
	if err := o.Map.Validate(); err != nil {
		return nil, err
	}
	if len(o.Stores) != len(o.Map.Nodes) {
		return nil, skep.Invalidf(op, "stores", len(o.Stores), len(o.Map.Nodes))
	}
	if o.EventBuffer < 0 {
		return nil, skep.Invalidf(op, "event buffer", o.EventBuffer, "1 or more, or 0: 16384")
	}
	s := made(o.Log, o.EventBuffer)
	s.open, s.memory, s.oneAtATime = o.Dial, o.Memory, o.OneAtATime
	if s.memory == nil {
		s.memory = o.Stores[0]
	}
	v := &view{of: o.Map, table: placement.New(o.Map)}
	for i, st := range o.Stores {
		v.nodes = append(v.nodes, newNode(o.Map.Nodes[i], i, st))
	}
	v.owner = v.nodes
	v.ready(s)
	s.now.Store(v)
	return s, nil
}

// How the nodes' times are judged; tests are more patient.
var lookupKind, runKind = pace.Lookups, pace.Runs

func newNode(of clustermap.Node, i int, st skep.Store) *node {
	return &node{Node: of, i: i, st: st, lookups: pace.NewPair(lookupKind), runs: pace.NewLine(runKind)}
}

// made is a Store without nodes.
func made(log *slog.Logger, events int) *Store {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	if events == 0 {
		events = 1 << 14
	}
	s := &Store{log: log, opened: skep.Steady(), epoch: rand.Uint64() | 1, sessions: map[*session]struct{}{},
		learns: make(chan struct{}, 1)}
	s.Calls = calls.New(func(ctx context.Context, call func(ctx context.Context, st skep.Store) error) error {
		return act(ctx, s, call)
	})
	s.spaces.init(s)
	s.hedges = pace.NewHedges(2 * workBytes)
	s.known = known.New()
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.merge = s.newMerger(events)
	s.plans = sched.New(sched.Options{Start: s.start, Done: s.ctx.Done()})
	return s
}

// Close implements skep.Store. It closes the nodes' Stores.
func (s *Store) Close() error {
	s.mu.Lock()
	if s.closed.Swap(true) {
		s.mu.Unlock()
		return nil
	}
	sessions := make([]*session, 0, len(s.sessions))
	for x := range s.sessions {
		sessions = append(sessions, x)
	}
	s.mu.Unlock()
	s.cancel()
	var loads []*load
	for _, x := range sessions {
		loads = append(loads, x.end()...)
	}
	nodes := s.now.Load().nodes
	errs := make([]error, len(nodes), len(nodes)+1)
	var seed error
	var closing sync.WaitGroup
	if s.seed != nil && !slices.ContainsFunc(nodes, func(n *node) bool { return n.st == skep.Store(s.seed) }) {
		closing.Go(func() { seed = s.seed.Close() })
	}
	closing.Go(s.seeds.Close)
	for i, n := range nodes {
		closing.Go(func() { errs[i] = n.st.Close() })
	}
	closing.Wait()
	for _, l := range loads {
		<-l.done
	}
	s.wait.Wait()
	return errors.Join(append(errs, seed)...)
}

// enter is begin of a call about a namespace, which has to be there.
func (s many) enter(ctx context.Context, op string, id skep.NamespaceID) (*space, error) {
	if err := s.begin(ctx, op); err != nil {
		return nil, err
	}
	return s.spaces.get(op, id)
}

// passOver follows an error of a node where another may answer in its place: lost is the first of such errors. Where
// none may, the call ends with the error it gives.
func (s many) passOver(ctx context.Context, op string, n *node, err error, lost *error) error {
	switch {
	case err == nil:
	case ctx.Err() != nil:
		return ended(ctx, op)
	case !s.away(err):
		return err
	case *lost == nil:
		*lost = n.missing(op, err)
	}
	return nil
}

// begin is the first of every call: the Store is open and ctx has not ended.
func (s *Store) begin(ctx context.Context, op string) error {
	if s.closed.Load() {
		return &skep.Error{Op: op, Kind: skep.Closed}
	}
	return ended(ctx, op)
}

func ended(ctx context.Context, op string) error { return checks.Ended(ctx, op) }

// start runs f beside the calls, until it returns; Close waits for it. It is false where the Store is closed.
func (s *Store) start(f func()) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed.Load() {
		return false
	}
	s.wait.Go(f)
	return true
}

// away says that a node does not serve: it is not there, has too much to do or has been closed. What it has is
// missed, and what it should get is declined.
func (s *Store) away(err error) bool {
	switch skep.KindOf(err) {
	case skep.Unavailable, skep.Overloaded, skep.Behind:
		return true
	case skep.Closed:
		return !s.closed.Load()
	}
	return false
}

// missing is the error of a call that did not reach a node that it had to reach.
func (n *node) missing(op string, err error) error {
	const limit = "one that answers, and takes it"
	return &skep.Error{Op: op, Kind: checks.Reason(err), Field: "node", Value: n.Name, Limit: limit, Err: err}
}

// each calls f for each of the map's nodes that are not down at once, and gives what it answered, by the nodes' places.
func (s many) each(f func(n *node) error) []error { return s.eachOf(s.live, f) }

func (s many) eachOf(nodes []*node, f func(n *node) error) []error {
	errs := make([]error, len(s.nodes))
	if len(nodes) == 1 {
		errs[nodes[0].i] = f(nodes[0])
		return errs
	}
	var wait sync.WaitGroup
	for _, n := range nodes {
		wait.Go(func() { errs[n.i] = f(n) })
	}
	wait.Wait()
	return errs
}

// all is each, for a call that has to reach every one of them: what the others did is done. What the first said that
// answered otherwise is the error, or that one did not answer.
func (s many) all(ctx context.Context, op string, f func(n *node) error) error {
	return s.allOf(ctx, op, s.live, f)
}

func (s many) allOf(ctx context.Context, op string, nodes []*node, f func(n *node) error) error {
	var lost error
	for i, err := range s.eachOf(nodes, f) {
		if err := s.passOver(ctx, op, s.nodes[i], err, &lost); err != nil {
			return err
		}
	}
	return lost
}

// Alloc implements skep.Allocator: of Options.Memory. A wire client has memory of its own.
func (s many) Alloc(ctx context.Context, n int64) (skep.Memory, error) {
	const op = "alloc"
	if n < 1 {
		return nil, skep.Invalidf(op, "bytes", n, "at least 1")
	}
	if err := s.begin(ctx, op); err != nil {
		return nil, err
	}
	return s.memory.Alloc(ctx, n)
}

// Flush implements skep.Putter. It has to reach every node.
func (s many) Flush(ctx context.Context) error {
	const op = "flush"
	if err := s.begin(ctx, op); err != nil {
		return err
	}
	return s.all(ctx, op, func(n *node) error { return n.st.Flush(ctx) })
}
