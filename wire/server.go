package wire

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/wire/auth"
	"github.com/skepkv/skep/wire/near"
)

// Server puts a Store on connections. Several Serve calls, one a listener, share its
// limits.
type Server struct {
	store  skep.Store
	opt    ServerOptions
	log    *slog.Logger
	id     [16]byte
	memory budget
	shared budget
	leases leaseTable
	spaces spaces
	turns  turns

	mu       sync.Mutex
	conns    map[*serverConn]struct{}
	draining bool
	clients  map[[16]byte]int  // connections of each client
	attached map[[16]byte]bool // clients whose shared memory is mapped

	wait  sync.WaitGroup // connections
	count struct {
		accepted, refused, calls, shed, sent, taken atomic.Int64
		sessions, streams, regions                  atomic.Int64
	}
}

// NewServer makes a server in front of store, which stays the caller's to close, after
// every Serve has returned.
func NewServer(store skep.Store, o ServerOptions) (*Server, error) {
	o.Limits.ensureDefaults()
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
	def(&o.Drain, 10*time.Second)
	s := &Server{store: store, opt: o, log: o.Log, conns: map[*serverConn]struct{}{}, clients: map[[16]byte]int{}, attached: map[[16]byte]bool{}}
	s.memory.limit, s.shared.limit = o.Limits.Memory, o.Limits.SharedMemory
	s.turns = newTurns()
	s.leases.m = map[skep.LeaseID]leaseEntry{}
	s.spaces.store = store
	if _, err := rand.Read(s.id[:]); err != nil {
		return nil, err
	}
	return s, nil
}

// Serve is NewServer and Serve in one.
func Serve(ctx context.Context, l net.Listener, store skep.Store, o ServerOptions) error {
	s, err := NewServer(store, o)
	if err != nil {
		return err
	}
	return s.Serve(ctx, l)
}

// Serve accepts connections from l until ctx ends, then drains: clients are told,
// nothing new is begun, calls under way get ServerOptions.Drain to end, and what is left
// is cut off. It closes l and returns when every connection is gone: nil after ctx
// ended, else the listener's error.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	stop := context.AfterFunc(ctx, func() { l.Close() })
	defer stop()
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
	s.drain()
	return failed
}

// accept takes a connection, or refuses it by closing it.
func (s *Server) accept(c net.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.draining || len(s.conns) >= s.opt.Limits.Connections {
		s.count.refused.Add(1)
		c.Close()
		return
	}
	s.count.accepted.Add(1)
	near.Tune(c)
	x := newServerConn(s, c)
	s.conns[x] = struct{}{}
	s.wait.Add(1)
	go x.run()
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
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			_ = s.store.Release(ctx, id)
			cancel()
		}
	}
	s.wait.Done()
}

// drain ends all connections, politely first.
func (s *Server) drain() {
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
	until := time.After(s.opt.Drain)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-gone:
			return
		case <-until:
			for _, x := range list {
				x.end(errDraining)
			}
			<-gone
			return
		case <-tick.C:
			for _, x := range list {
				if x.idle() {
					x.end(errDraining)
				}
			}
		}
	}
}

var errDraining = &skep.Error{Op: "server", Kind: skep.Unavailable, Field: "state", Value: "shutting down"}

// Stats says how the server stands.
func (s *Server) Stats() ServerStats {
	c := &s.count
	s.mu.Lock()
	conns := len(s.conns)
	s.mu.Unlock()
	return ServerStats{Connections: conns, Accepted: c.accepted.Load(), Refused: c.refused.Load(),
		Sessions: int(c.sessions.Load()), Streams: int(c.streams.Load()), Calls: c.calls.Load(), Shed: c.shed.Load(),
		Memory: s.memory.used.Load(), MemoryCap: s.memory.limit, Leases: s.leases.len(), SentBytes: c.sent.Load(),
		TakenBytes: c.taken.Load(), Regions: int(c.regions.Load())}
}

// budget is bytes that may be held.
type budget struct {
	limit int64
	used  atomic.Int64
}

// take charges n bytes; false when they do not fit.
func (b *budget) take(n int64) bool {
	if b.used.Add(n) > b.limit {
		b.used.Add(-n)
		return false
	}
	return true
}

// charge takes n bytes of memory for a call that holds held already, and is told what for. What would
// not fit an idle server either is Invalid: coming back would not help.
func (s *Server) charge(op, what string, held, n int64) error {
	switch {
	case n > s.memory.limit-held:
		return skep.Invalidf(op, "memory for "+what+" in bytes", held+n, fmt.Sprintf("at most %d", s.memory.limit))
	case !s.memory.take(n):
		return overloaded("memory", s.comeBack())
	}
	return nil
}

func (b *budget) give(n int64) { b.used.Add(-n) }

func (b *budget) free() int64 { return b.limit - b.used.Load() }

// comeBack is when a caller that was shed should try again: soon, and spread out.
func (s *Server) comeBack() time.Duration {
	spread := time.Duration(s.count.shed.Add(1)*0x9e3779b9%16) * time.Millisecond
	return 5*time.Millisecond + spread
}

// spaces remembers whose namespaces are.
type spaces struct {
	store skep.Store
	mu    sync.RWMutex
	m     map[skep.NamespaceID]string
}

func (p *spaces) put(n skep.NamespaceInfo) {
	p.mu.Lock()
	if p.m == nil {
		p.m = map[skep.NamespaceID]string{}
	}
	p.m[n.ID] = n.Tenant
	p.mu.Unlock()
}

// reach says whether id is a namespace that who may use. One of another tenant and one
// that is not there take the same way.
func (p *spaces) reach(ctx context.Context, op string, who auth.Identity, id skep.NamespaceID) error {
	p.mu.RLock()
	tenant, ok := p.m[id]
	p.mu.RUnlock()
	if ok && who.Reaches(tenant) {
		return nil
	}
	list, err := p.store.Namespaces(ctx)
	if err != nil {
		return err
	}
	mine := false
	for _, n := range list {
		if n.ID == id && who.Reaches(n.Tenant) {
			p.put(n)
			mine = true
		}
	}
	if mine {
		return nil
	}
	return &skep.Error{Op: op, Kind: skep.NotFound, Field: "namespace", Value: id}
}

// leaseTable remembers whose leases are: their numbers can be guessed.
type leaseTable struct {
	mu  sync.Mutex
	m   map[skep.LeaseID]leaseEntry
	new int // since the last sweep
}

type leaseEntry struct {
	tenant string
	client [16]byte
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
	return e, ok && who.Reaches(e.tenant)
}

func (t *leaseTable) remove(id skep.LeaseID) {
	t.mu.Lock()
	delete(t.m, id)
	t.mu.Unlock()
}

func (t *leaseTable) takeClient(client [16]byte) (out []skep.LeaseID) {
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
