package server

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/wire/auth"
	"github.com/skepkv/skep/wire/frames"
	"github.com/skepkv/skep/wire/gate"
	"github.com/skepkv/skep/wire/link"
	"github.com/skepkv/skep/wire/near"
	"github.com/skepkv/skep/wire/turns"
)

// Server puts a Store on connections. Several Serve calls, one a listener, share its
// limits.
type Server struct {
	store  skep.Store
	opt    Options
	log    *slog.Logger
	id     [16]byte
	memory auth.Pool // bytes
	shared auth.Pool // bytes of regions
	files  auth.Pool // of connections whose tenant is known
	leases leaseTable
	spaces spaces
	turns  *turns.Turns

	cluster atomic.Pointer[clusterState] // nil: it is a node of none

	mu       sync.Mutex
	conns    map[*serverConn]struct{}
	draining bool
	clients  map[clientID]int  // connections of each client
	attached map[clientID]bool // clients whose shared memory is mapped
	// snapshots holds a token where a tenant's stream of events reads one.
	snapshots map[string]chan struct{}

	wait  sync.WaitGroup // connections
	count struct {
		accepted, refused, calls, shed, sent, taken atomic.Int64
		sessions, streams, regions, leaving         atomic.Int64
	}
}

// clientID is a client, among those of its tenant by the bytes it chose.
type clientID struct {
	tenant string
	chosen [16]byte
}

// New makes a server in front of store, which stays the caller's to close, after
// every Serve has returned.
func New(store skep.Store, o Options) (*Server, error) {
	o.Limits.EnsureDefaults()
	if err := o.Limits.validate(); err != nil {
		return nil, err
	}
	if o.Auth == nil {
		d, err := auth.New(nil, nil, nil)
		if err != nil {
			return nil, err
		}
		o.Auth = d
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Name == "" {
		o.Name = "skep"
	}
	if o.Gate == nil {
		o.Gate = gate.New(o.Limits.Connections, nil)
	}
	def(&o.Drain, 10*time.Second)
	s := &Server{store: store, opt: o, log: o.Log, conns: map[*serverConn]struct{}{}, clients: map[clientID]int{},
		attached: map[clientID]bool{}, snapshots: map[string]chan struct{}{}}
	s.memory.Limit, s.shared.Limit, s.files.Limit = o.Limits.Memory, o.Limits.SharedMemory, int64(o.Gate.Limit())
	if s.turns = o.Turns; s.turns == nil {
		t := turns.New()
		s.turns = &t
	}
	s.leases.m = map[skep.LeaseID]leaseEntry{}
	s.spaces.store = store
	if o.ClusterMap != nil {
		s.cluster.Store(&clusterState{o.ClusterMap, max(o.Epoch, 1), o.NodeID, make(chan struct{})})
	}
	if _, err := rand.Read(s.id[:]); err != nil {
		return nil, err
	}
	return s, nil
}

// Serve is New and Serve in one.
func Serve(ctx context.Context, l net.Listener, store skep.Store, o Options) error {
	s, err := New(store, o)
	if err != nil {
		return err
	}
	return s.Serve(ctx, l)
}

// Serve accepts connections from l until ctx ends, then drains: clients are told,
// nothing new is begun, calls under way get Options.Drain to end, and what is left
// is cut off. It closes l and returns when every connection is gone: nil after ctx
// ended, else the listener's error. Where a drive holds memory of a connection for longer than
// Limits.Stall after that, it returns NotReleased, and that memory stays mapped.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	stop := context.AfterFunc(ctx, func() { l.Close() })
	defer stop()
	link.PassRights(l, false) // who has not said hello has nothing to attach
	var failed error
	var pause time.Duration
	for {
		c, err := l.Accept()
		if ctx.Err() != nil {
			if err == nil {
				c.Close()
			}
			break
		}
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				failed = err
				break
			}
			// Out of descriptors, say: what is there goes on.
			pause = min(max(2*pause, 5*time.Millisecond), time.Second)
			s.log.Warn("accept", "error", err, "again in", pause)
			select {
			case <-time.After(pause):
			case <-ctx.Done():
			}
			continue
		}
		pause = 0
		s.accept(c)
	}
	l.Close()
	return errors.Join(failed, s.drain())
}

// accept takes a connection, or refuses it by closing it.
func (s *Server) accept(c net.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := filesOf(c)
	if s.draining || !s.opt.Gate.Enter(n) {
		s.count.refused.Add(1)
		c.Close()
		return
	}
	s.count.accepted.Add(1)
	near.Tune(c)
	x := newServerConn(s, c)
	s.conns[x] = struct{}{}
	s.wait.Add(1)
	go func() {
		defer s.opt.Gate.Leave(n)
		x.run()
	}()
}

// filesOf is how many descriptors a connection may hold: over a Unix socket a region of shared memory, its event, and
// what waits for the frame it belongs to.
func filesOf(c net.Conn) int {
	if _, ok := c.(*net.UnixConn); ok {
		return 3 + link.MaxFiles
	}
	return 1
}

// forget is called by a connection's reader as its last act.
func (s *Server) forget(x *serverConn) {
	s.mu.Lock()
	delete(s.conns, x)
	last := false
	if x.known {
		if s.clients[x.client]--; s.clients[x.client] == 0 {
			delete(s.clients, x.client)
			last = true
		}
	}
	s.mu.Unlock()
	if last && x.polite.Load() {
		// Whoever was cut off may come back and keeps its leases for as long as they last;
		// whoever said goodbye needs them no more.
		for _, id := range s.leases.takeClient(x.client) {
			ctx, cancel := context.WithTimeout(context.Background(), s.opt.Limits.Stall)
			_ = s.store.Release(ctx, id) // one that is not released runs out
			cancel()
		}
	}
	s.wait.Done()
}

// drain ends all connections, politely first.
func (s *Server) drain() error {
	s.mu.Lock()
	s.draining = true
	list := make([]*serverConn, 0, len(s.conns))
	for x := range s.conns {
		list = append(list, x)
	}
	s.mu.Unlock()
	for _, x := range list {
		go x.sayGoodbye(s.opt.Drain)
	}
	gone := make(chan struct{})
	go func() {
		s.wait.Wait()
		close(gone)
	}()
	cut := time.NewTimer(s.opt.Drain)
	defer cut.Stop()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-gone:
			return nil
		case <-cut.C:
			for _, x := range list {
				go x.end(frames.ErrDraining) // each by itself: TLS takes its time to say goodbye
			}
			return s.gone(gone)
		case <-tick.C:
			list = slices.DeleteFunc(list, func(x *serverConn) bool {
				idle := x.idle()
				if idle {
					go x.end(frames.ErrDraining)
				}
				return idle
			})
		}
	}
}

// gone waits for the connections that were cut off. A drive that does not answer can keep one for good: the
// memory it may still write to stays mapped, the goroutines that wait for it stay, and the caller is told.
func (s *Server) gone(all <-chan struct{}) error {
	late := time.NewTimer(s.opt.Limits.Stall)
	defer late.Stop()
	select {
	case <-all:
		return nil
	case <-late.C:
	}
	n := s.Stats().Connections
	s.log.Error("connections did not end: what they asked of the store has not come back", "connections", n)
	return &skep.Error{Op: "serve", Kind: skep.NotReleased, Field: "connections", Value: n, Limit: "0, " + s.opt.Limits.Stall.String() + " after they were cut off"}
}

// Stats says how the server stands.
func (s *Server) Stats() Stats {
	c := &s.count
	s.mu.Lock()
	conns := len(s.conns)
	s.mu.Unlock()
	return Stats{Connections: conns, Accepted: c.accepted.Load(), Refused: c.refused.Load(),
		Sessions: int(c.sessions.Load()), Streams: int(c.streams.Load()), Calls: c.calls.Load(), Shed: c.shed.Load(),
		Memory: s.memory.Used(), MemoryCap: s.memory.Limit, Leases: s.leases.len(), SentBytes: c.sent.Load(),
		TakenBytes: c.taken.Load(), Regions: int(c.regions.Load()),
		SharedBytes: s.shared.Used(), Leaving: int(c.leaving.Load())}
}

// charge takes n bytes of memory for a call that holds held already, and is told what for. What would
// not fit an idle server either is Invalid: coming back would not help.
func (x *serverConn) charge(op, what string, held, n int64) error {
	switch most := x.memory.Most(); {
	case n > most-held:
		return skep.Invalidf(op, "memory for "+what+" in bytes", held+n, fmt.Sprintf("at most %d", most))
	case !x.memory.Take(n):
		return link.Overloaded("memory", x.s.comeBack())
	}
	return nil
}

// What of a client's is small and not told by the length of its frames is charged like this.
const (
	callBytes   = 4 << 10  // a call that may wait
	writerBytes = 4 << 10  // a block that is open
	lastsBytes  = 64 << 10 // a session without a window, a stream of events
)

// comeBack is when a caller that was shed should try again: soon, and spread out.
func (s *Server) comeBack() time.Duration {
	spread := time.Duration(s.count.shed.Add(1)*0x9e3779b9%16) * time.Millisecond
	return 5*time.Millisecond + spread
}

// mostSpaces is of how many namespaces a server remembers whose they are.
const mostSpaces = 1 << 14

// spaces remembers whose namespaces are.
type spaces struct {
	store skep.Store
	mu    sync.RWMutex
	m     map[skep.NamespaceID]string
}

func (p *spaces) put(n skep.NamespaceInfo) {
	p.mu.Lock()
	if p.m == nil || len(p.m) >= mostSpaces { // they come and go
		p.m = map[skep.NamespaceID]string{}
	}
	p.m[n.ID] = n.Tenant
	p.mu.Unlock()
}

// of says whose the namespace is, where that is remembered.
func (p *spaces) of(id skep.NamespaceID) (tenant string, ok bool) {
	p.mu.RLock()
	defer p.mu.RUnlock()
	tenant, ok = p.m[id]
	return tenant, ok
}

// reach says whether id is a namespace that who may use. For one of another tenant and for one that is not there the
// Store is asked, so that how long the answer takes does not tell them apart here.
func (p *spaces) reach(ctx context.Context, op string, who auth.Identity, id skep.NamespaceID) error {
	if tenant, ok := p.of(id); ok && who.Reaches(tenant) {
		return nil
	}
	n, err := who.Namespace(ctx, op, p.store, id)
	if err == nil {
		p.put(n)
	}
	return err
}

// gone says that there is no namespace of that number, and not known whose it was.
func (p *spaces) gone(ctx context.Context, id skep.NamespaceID) bool {
	if _, ok := p.of(id); ok || id == 0 {
		return false
	}
	_, err := p.store.FindNamespace(ctx, id)
	return skep.KindOf(err) == skep.NotFound
}

// leaseTable remembers whose leases are: their numbers can be guessed.
type leaseTable struct {
	mu  sync.Mutex
	m   map[skep.LeaseID]leaseEntry
	new int // since the last sweep
}

type leaseEntry struct {
	client clientID
	until  time.Time
}

func (t *leaseTable) put(id skep.LeaseID, e leaseEntry) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.m[id] = e
	if t.new++; t.new > 1024 && t.new > len(t.m)/2 {
		t.new = 0
		t.sweepLocked()
	}
}

func (t *leaseTable) sweepLocked() {
	now := time.Now()
	for id, e := range t.m {
		if now.After(e.until) {
			delete(t.m, id)
		}
	}
}

func (t *leaseTable) owns(who auth.Identity, id skep.LeaseID) (leaseEntry, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	e, ok := t.m[id]
	return e, ok && who.Reaches(e.client.tenant)
}

func (t *leaseTable) remove(id skep.LeaseID) {
	t.mu.Lock()
	delete(t.m, id)
	t.mu.Unlock()
}

func (t *leaseTable) takeClient(client clientID) (out []skep.LeaseID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for id, e := range t.m {
		if e.client == client {
			out = append(out, id)
			delete(t.m, id)
		}
	}
	return out
}

func (t *leaseTable) len() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.sweepLocked()
	return len(t.m)
}

// tlsOf gives the TLS connection under c, or nil.
func tlsOf(c net.Conn) *tls.Conn {
	t, _ := c.(*tls.Conn)
	return t
}
