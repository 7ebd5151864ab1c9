package resp

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/wire/auth"
	"github.com/skepkv/skep/wire/gate"
	"github.com/skepkv/skep/wire/near"
	"github.com/skepkv/skep/wire/watch"
)

// Options of New. Zero fields take the defaults named.
type Options struct {
	Auth *auth.Directory // required

	Connections int        // at most so many at once; 10,000
	Gate        *gate.Gate // what connections are counted at; nil: one of its own, for Connections
	// SendBytes and ReceiveBytes bound the memory that values on their way out and in hold,
	// over all connections; 96 MiB and 64 MiB. At least one window of 16 MiB, and two pieces
	// of 1 MiB. What a connection holds of a command beyond 64 KiB is of ReceiveBytes.
	SendBytes, ReceiveBytes int64
	// ShedAfter is how long a call waits for that memory before it is refused; 1 s.
	ShedAfter time.Duration
	// OpTimeout is how long a call's part in the store may take; 10 s.
	OpTimeout time.Duration
	// IOTimeout is how long a peer may take for one command, and for each MiB of a value,
	// in either direction; 30 s.
	IOTimeout time.Duration
	// IdleTimeout ends connections that ask nothing; 0: none do.
	IdleTimeout time.Duration

	// ExistsLease is how long what EXISTS found stays, and ExistsLeaseBytes how much of it
	// a tenant may have; 10 s (negative: none) and 256 MiB.
	ExistsLease      time.Duration
	ExistsLeaseBytes int64
	// Copies of each block, on as many devices; 1.
	Copies int

	// Cluster is the servers of which each answers for the keys of all, this one among them; nil where this one is, or now
	// knows itself, alone. It does not wait for long.
	Cluster func(ctx context.Context) *Cluster

	stuckAfter, lockstepWait time.Duration // of tests

	Log    *slog.Logger    // discarded when nil
	Watch  *watch.Recorder // may be nil
	Tracer trace.Tracer    // may be nil
	// Clock is what keys expire and promises end by; it never goes back. Give a store's
	// Lasting where there is one: skep.Steady begins anew with each process. Wall is the
	// machine's clock: for credentials, absolute expiries and people. Clock where only that is
	// given, time.Now when neither is.
	Clock, Wall func() time.Time
}

// machineClock is the default of Options.Wall; tests set it.
var machineClock = time.Now

func (o *Options) ensureDefaults() {
	def(&o.Connections, 10_000)
	def(&o.SendBytes, 96<<20)
	def(&o.ReceiveBytes, 64<<20)
	def(&o.ShedAfter, time.Second)
	def(&o.OpTimeout, 10*time.Second)
	def(&o.IOTimeout, 30*time.Second)
	def(&o.ExistsLease, skep.DefaultLease)
	def(&o.ExistsLeaseBytes, 256<<20)
	def(&o.Copies, 1)
	def(&o.stuckAfter, stuckAfter)
	def(&o.lockstepWait, lockstepWait)
	if o.Log == nil {
		o.Log = slog.New(slog.NewTextHandler(io.Discard, nil))
	}
	if o.Wall == nil {
		if o.Wall = o.Clock; o.Wall == nil {
			o.Wall = machineClock
		}
	}
	if o.Clock == nil {
		o.Clock = skep.Steady
	}
	if o.Gate == nil {
		o.Gate = gate.New(o.Connections, nil)
	}
}

func def[T int | int64 | time.Duration](v *T, d T) {
	if *v == 0 {
		*v = d
	}
}

func (o *Options) validate() error {
	const op = "resp"
	switch {
	case o.Auth == nil:
		return skep.Invalidf(op, "auth", "nil", "a directory")
	case o.SendBytes < MinSendBytes:
		return skep.Invalidf(op, "send bytes", o.SendBytes, fmt.Sprintf("at least %d", MinSendBytes))
	case o.ReceiveBytes < 2*pieceBytes: // a tenant among others gets a piece's of it
		return skep.Invalidf(op, "receive bytes", o.ReceiveBytes, fmt.Sprintf("at least %d", 2*pieceBytes))
	case o.Connections < 1:
		return skep.Invalidf(op, "connections", o.Connections, "at least 1")
	case o.ExistsLease > skep.MaxLease:
		return skep.Invalidf(op, "exists lease", o.ExistsLease, skep.MaxLease)
	}
	return nil
}

// Server answers RESP in front of a Store. It does not close the store.
type Server struct {
	places  auth.Pool // of connections whose tenant is known
	store   skep.Store
	o       Options
	started time.Time
	reap    *reaper

	sending, receiving *budget

	spaces   spaces
	draining atomic.Bool
	ctx      context.Context // ends when connections are to be cut
	cut      context.CancelFunc
	stats    serverStats

	mu        sync.Mutex
	listeners map[net.Listener]struct{}
	conns     map[*conn]struct{}
	tenants   map[string]*tenant
	nextID    int64
	wg        sync.WaitGroup // connections
}

type serverStats struct {
	accepted, refused, shed, denied, cut, stuck atomic.Int64
	declined, padded, hungUp                    atomic.Int64 // of lockstep connections
}

type tenantStats struct{ hits, misses atomic.Int64 }

// about is what others may see of a connection.
type about struct {
	since time.Time
	mu    sync.Mutex
	info  aboutInfo
	waits bool // for a command
}

type aboutInfo struct {
	name, tenant string // the credential's
	client       string // as the client calls itself
	command      string
	last         time.Time
	db, proto    int
}

func (a *about) set(f func(*aboutInfo)) {
	a.mu.Lock()
	f(&a.info)
	a.mu.Unlock()
}

func (a *about) get() aboutInfo {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.info
}

// New makes a server. Shutdown must be called.
func New(st skep.Store, o Options) (*Server, error) {
	o.ensureDefaults()
	if err := o.validate(); err != nil {
		return nil, err
	}
	s := &Server{
		store: st, o: o, started: o.Clock(), reap: newReaper(st),
		sending: newBudget(o.SendBytes), receiving: newBudget(o.ReceiveBytes),
		listeners: map[net.Listener]struct{}{}, conns: map[*conn]struct{}{}, tenants: map[string]*tenant{},
	}
	s.places.Limit = int64(o.Gate.Limit())
	s.ctx, s.cut = context.WithCancel(context.Background())
	return s, nil
}

// Serve accepts connections until the listener fails or Shutdown is called, which is
// not an error. It closes l.
func (s *Server) Serve(l net.Listener) error { return s.accept(l, false) }

func (s *Server) accept(l net.Listener, lockstep bool) error {
	s.mu.Lock()
	if s.draining.Load() {
		s.mu.Unlock()
		return l.Close()
	}
	s.listeners[l] = struct{}{}
	s.mu.Unlock()
	defer func() {
		l.Close()
		s.mu.Lock()
		delete(s.listeners, l)
		s.mu.Unlock()
	}()
	pause := time.Millisecond
	for {
		raw, err := l.Accept()
		if err != nil {
			if s.draining.Load() || errors.Is(err, net.ErrClosed) {
				return nil
			}
			// Descriptors may have run out: what is open goes on, and others come later.
			s.o.Log.Warn("accept", "error", err, "again_after", pause)
			select {
			case <-time.After(pause):
			case <-s.ctx.Done():
				return nil
			}
			pause = min(2*pause, time.Second)
			continue
		}
		pause = time.Millisecond
		s.begin(raw, lockstep)
	}
}

// begin serves a connection on a goroutine of its own, or refuses it.
func (s *Server) begin(raw net.Conn, lockstep bool) {
	c := &conn{s: s, raw: raw, lockstep: lockstep, about: about{since: time.Now()}}
	c.about.info.last, c.nobody = s.o.Clock(), c.about.since
	s.mu.Lock()
	draining := s.draining.Load()
	if draining || !s.o.Gate.Enter(1) {
		s.mu.Unlock()
		s.stats.refused.Add(1)
		if _, secure := raw.(*tls.Conn); !draining && !secure && !lockstep { // a handshake would wait for the peer
			_ = raw.SetWriteDeadline(time.Now().Add(time.Second))
			_, _ = raw.Write([]byte("-ERR max number of clients reached, retry after 1000 ms\r\n"))
		}
		raw.Close()
		return
	}
	s.nextID++
	c.id = s.nextID
	s.conns[c] = struct{}{}
	s.wg.Add(1)
	s.mu.Unlock()
	s.stats.accepted.Add(1)
	near.Tune(raw)
	go func() {
		defer s.wg.Done()
		var cancel context.CancelFunc
		c.ctx, cancel = context.WithCancel(s.ctx)
		stop := context.AfterFunc(c.ctx, func() { raw.Close() })
		err := c.serve()
		stop()
		cancel()
		raw.Close()
		s.o.Gate.Leave(1)
		c.leave()
		s.mu.Lock()
		delete(s.conns, c)
		s.mu.Unlock()
		if err != nil && !errors.Is(err, errQuit) {
			s.o.Log.Debug("connection ended", "id", c.id, "peer", raw.RemoteAddr(), "error", err)
		}
	}()
}

// Shutdown stops accepting, lets every connection finish the commands it has sent, and
// ends. What is not done when ctx ends is cut. The store stays open.
func (s *Server) Shutdown(ctx context.Context) error {
	s.mu.Lock()
	already := s.draining.Swap(true)
	for l := range s.listeners {
		l.Close()
	}
	for c := range s.conns {
		c.wake()
	}
	s.mu.Unlock()
	done := make(chan struct{})
	go func() {
		s.wg.Wait()
		close(done)
	}()
	var err error
	select {
	case <-done:
	case <-ctx.Done():
		err = ctx.Err()
		s.cut()
		<-done // every wait of a connection ends with its context
	}
	s.cut()
	if !already {
		s.reap.close()
	}
	return err
}

func (s *Server) tenantOf(name string) *tenant {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.tenants[name]
	if t == nil {
		t = &tenant{name: name, dbs: map[int]*database{}, digits: map[string]uint16{}}
		t.leases.budget = s.o.ExistsLeaseBytes
		s.tenants[name] = t
	}
	return t
}

// database is a tenant's database of that number, whether it is there or not.
func (s *Server) database(t *tenant, n int) *database {
	t.mu.Lock()
	defer t.mu.Unlock()
	db := t.dbs[n]
	if db == nil {
		db = newDatabase(s, t, n)
		t.dbs[n] = db
	}
	return db
}

// opened is db, or where its namespaces were deleted the empty one that takes its place, after open where that is not made.
func (s *Server) opened(ctx context.Context, db *database, open func(*database, context.Context) error) (*database, error) {
	if db.made.Load() && !there(ctx, s.store, db.heads, db.data) {
		s.forget(db)
		db = s.database(db.tenant, db.number)
	}
	if db.made.Load() {
		return db, nil
	}
	return db, open(db, ctx)
}

// forget lets go of a database, whose namespaces were deleted.
func (s *Server) forget(db *database) {
	db.tenant.mu.Lock()
	defer db.tenant.mu.Unlock()
	if db.tenant.dbs[db.number] == db {
		delete(db.tenant.dbs, db.number)
	}
}

func (s *Server) connections() []*conn {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]*conn, 0, len(s.conns))
	for c := range s.conns {
		out = append(out, c)
	}
	return out
}

// count is how many connections a tenant has.
func (s *Server) count(tenant string) int {
	n := 0
	for _, c := range s.connections() {
		if c.about.get().tenant == tenant {
			n++
		}
	}
	return n
}

var (
	descConns   = prometheus.NewDesc("skep_resp_connections", "RESP connections open.", nil, nil)
	descAccept  = prometheus.NewDesc("skep_resp_connections_total", "RESP connections, by what became of them.", []string{"result"}, nil)
	descShed    = prometheus.NewDesc("skep_resp_shed_total", "RESP calls refused for want of memory.", nil, nil)
	descDenied  = prometheus.NewDesc("skep_resp_denied_total", "AUTH and HELLO with a wrong credential.", nil, nil)
	descCut     = prometheus.NewDesc("skep_resp_values_cut_total", "Connections closed because the rest of a value was damaged or lost.", nil, nil)
	descStuck   = prometheus.NewDesc("skep_resp_readers_cut_total", "Connections closed because their reader took nothing while others waited for memory.", nil, nil)
	descStep    = prometheus.NewDesc("skep_resp_lockstep_total", "What lockstep connections got in place of an error or a miss: OK for a SET that was declined, a nil of the length expected, or their end.", []string{"result"}, nil)
	descKeys    = prometheus.NewDesc("skep_resp_keys_total", "Keys asked for by GET and MGET, by tenant and result.", []string{"tenant", "result"}, nil)
	descLeaseNo = prometheus.NewDesc("skep_resp_exists_leases_denied_total", "EXISTS answered without a promise: the tenant's budget was spent, or the store granted no lease.", []string{"tenant"}, nil)
)

// Describe implements prometheus.Collector; labels come with the tenants.
func (s *Server) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (s *Server) Collect(out chan<- prometheus.Metric) {
	count := func(d *prometheus.Desc, n int64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(n), labels...)
	}
	s.mu.Lock()
	open := len(s.conns)
	tenants := make([]*tenant, 0, len(s.tenants))
	for _, t := range s.tenants {
		tenants = append(tenants, t)
	}
	s.mu.Unlock()
	out <- prometheus.MustNewConstMetric(descConns, prometheus.GaugeValue, float64(open))
	count(descAccept, s.stats.accepted.Load(), "accepted")
	count(descAccept, s.stats.refused.Load(), "refused")
	count(descShed, s.stats.shed.Load())
	count(descDenied, s.stats.denied.Load())
	count(descCut, s.stats.cut.Load())
	count(descStuck, s.stats.stuck.Load())
	count(descStep, s.stats.declined.Load(), "declined")
	count(descStep, s.stats.padded.Load(), "nil")
	count(descStep, s.stats.hungUp.Load(), "hangup")
	for _, t := range tenants {
		count(descKeys, t.stats.hits.Load(), t.name, "hit")
		count(descKeys, t.stats.misses.Load(), t.name, "miss")
		count(descLeaseNo, t.leases.refused(), t.name)
	}
}
