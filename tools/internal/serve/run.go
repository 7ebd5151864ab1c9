package serve

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"go.opentelemetry.io/otel/trace"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/replication"
	"github.com/skepkv/skep/replication/clustermap"
	"github.com/skepkv/skep/replication/fence"
	"github.com/skepkv/skep/replication/sealed"
	"github.com/skepkv/skep/store"
	"github.com/skepkv/skep/store/memory"
	"github.com/skepkv/skep/tools/internal/kvevents"
	"github.com/skepkv/skep/wire"
	"github.com/skepkv/skep/wire/auth"
	"github.com/skepkv/skep/wire/console"
	"github.com/skepkv/skep/wire/httpapi"
	"github.com/skepkv/skep/wire/near"
	"github.com/skepkv/skep/wire/resp"
	wireserver "github.com/skepkv/skep/wire/server"
	"github.com/skepkv/skep/wire/watch"
)

// Options of Run that are not configuration.
type Options struct {
	Version string
	Log     io.Writer // where the log goes
	// Reload gives the configuration as it is now, for who is asked to read it again; nil:
	// it does not change.
	Reload func() (*Config, error)
	// Again asks for that; SIGHUP, say.
	Again <-chan os.Signal
	// Ready, when set, is called once everything listens.
	Ready func(httpapi.ServerInfo)
	// Clock is the store's and RESP's; time.Now when nil. For tests, which move it.
	Clock func() time.Time
	// Wall is the machine's clock, which may be set: what credentials' ends and the times that clients give are
	// compared with; time.Now when nil. For tests.
	Wall func() time.Time
	// Store, when set, is served in place of the one the configuration names, which is not
	// opened; for tests.
	Store skep.Store
}

// server is one run.
type server struct {
	c    *Config
	o    Options
	log  *slog.Logger
	st   skep.Store
	dir  *auth.Directory
	cert certificates
	seen string // fingerprint of the files, from before they were read
	reg  *prometheus.Registry

	watch  *watch.Recorder
	tracer trace.Tracer
	gates  *gates
	conns  *httpapi.Conns
	wire   *wireserver.Server
	resp   *resp.Server
	jobs   *jobs
	info   httpapi.ServerInfo

	cluster *clustermap.Map // of a file; nil: it is a node of none, or agrees on its map; follow's, once the server runs
	peers   peerTLS
	member  *membership                      // nil: it does not agree on a map
	node    string                           // of the cluster; "": it is of none
	whole   *replication.Store               // of the cluster; nil: this node does not speak to the others
	others  *others                          // with whole
	shown   atomic.Pointer[wire.Credentials] // to the other nodes
	events  *kvevents.Publisher              // nil: no KV events are published
	use     use                              // by clients
	repair  *repairer                        // nil: it sends no copies
	fence   *fence.Fence                     // nil: the node does not agree on the map
	gate    *sealed.Gate                     // nil: as fence, or the store is a test's
	opened  atomic.Pointer[fence.Fence]      // the same, for who runs beside

	files    int   // descriptors of the process
	capacity int64 // of the store when it was opened, in bytes
	shares   atomic.Pointer[map[string]int64]
	draining atomic.Bool
}

// Run serves until ctx ends, then drains. What it opened is closed when it returns.
func Run(ctx context.Context, c *Config, o Options) error { return newServer(c, o).run(ctx) }

func newServer(c *Config, o Options) *server {
	return &server{c: c, o: o, reg: prometheus.NewRegistry(), log: c.logger(o.Log), seen: fingerprint(c)}
}

func (s *server) run(ctx context.Context) (err error) {
	c, o := s.c, s.o
	creds, wrong := c.credentials(os.LookupEnv)
	if len(wrong) > 0 {
		return errors.Join(wrong...)
	}
	if s.dir, err = auth.New(creds, c.limits(), o.Wall); err != nil {
		return err
	}
	s.tellDenied()
	s.peers.log = s.log.With("part", "cluster")
	if c.TLS.Cert != "" {
		if err := s.cert.load(&c.TLS, s.log); err != nil {
			return err
		}
	}
	if err := s.peers.load(&c.Peers); err != nil {
		return err
	}
	if err := s.become(ctx); err != nil {
		return err
	}
	s.files = raiseLimit() - c.peerFiles() - c.gatewayFiles()
	if _, err := forConnections(s.files, c.devices()); err != nil {
		return err
	}
	listeners, err := s.listen()
	if err != nil {
		return err
	}
	defer func() {
		for _, l := range listeners {
			l.Close()
		}
	}()
	stopTracing, err := s.startTracing(ctx)
	if err != nil {
		return err
	}
	defer stopTracing()
	opened := s.tellLonger()
	err = s.openStore(ctx)
	opened()
	if err != nil {
		return err
	}
	defer func() {
		defer s.tellLonger()()
		if o.Store == nil {
			err = errors.Join(err, s.st.Close())
		}
	}()
	if listeners, err = s.listenSocket(listeners); err != nil {
		return err
	}
	return s.serve(ctx, listeners)
}

func (c *Config) logger(w io.Writer) *slog.Logger {
	var level slog.Level
	_ = level.UnmarshalText([]byte(c.Log.Level)) // was checked
	opt := &slog.HandlerOptions{Level: level}
	if c.Log.Format == "json" {
		return slog.New(slog.NewJSONHandler(w, opt))
	}
	return slog.New(slog.NewTextHandler(w, opt))
}

// openStore opens the store the configuration names.
func (s *server) openStore(ctx context.Context) error {
	s.setShares(s.c)
	s.reg.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	if s.o.Store != nil {
		s.st = s.o.Store
		return nil
	}
	if limit := memory.Limit(); limit > 0 {
		s.log.Info("a control group limits this process's memory", "limit", Size(limit), "dram_bytes", s.c.Store.DRAMBytes, "io_bytes", s.c.Store.IOBytes)
	}
	so := s.c.storeOptions()
	keys, wrong := s.c.encryptionKeys(os.LookupEnv)
	if len(wrong) > 0 {
		return errors.Join(wrong...)
	}
	so.EncryptionKeys = keys
	s.tellEncrypted(keys)
	so.Logger, so.Registerer = s.log.With("part", "store"), s.reg
	so.Clock, so.Wall = s.o.Clock, s.o.Wall
	st, err := store.Open(ctx, so)
	if err != nil {
		return err
	}
	s.st = st
	s.dir.Lasting(st.Lasting)
	if err = s.bindStore(ctx); err == nil {
		err = s.sayBlocks(ctx, st)
	}
	if err == nil {
		err = s.sayCapacity(ctx)
	}
	if err == nil {
		err = s.openGate(keys)
	}
	if err == nil {
		err = s.openBucket()
	}
	if err != nil {
		return errors.Join(err, st.Close())
	}
	return nil
}

// sayCapacity tells that a cap below what an existing store's devices have does not make them smaller.
func (s *server) sayCapacity(ctx context.Context) error {
	st, err := s.st.Stats(ctx)
	if err != nil {
		return err
	}
	if c := st.CapacityBytes; c > 0 && st.DeviceBytes > c {
		s.log.Warn("store.capacity_bytes is below what the devices have: they keep their size, and grow no more",
			"capacity_bytes", c, "have", st.DeviceBytes)
	}
	return nil
}

func (c *Config) shares() map[string]int64 {
	out := map[string]int64{}
	for name, t := range c.Tenants {
		if n := max(t.Share, t.Bytes); n > 0 {
			out[name] = int64(n)
		}
	}
	return out
}

// setShares has the tenants keep to the shares of c, and shows them. A store that is opened after it was told.
func (s *server) setShares(c *Config) {
	q := c.shares()
	for _, name := range slices.Sorted(maps.Keys(c.Tenants)) {
		if c.Tenants[name].Bytes > 0 {
			s.log.Warn("bytes of a tenant is called share: beyond it the tenant's blocks go first, and nothing is refused", "tenant", name)
		}
	}
	if st, ok := skep.As[*store.Store](s.st); ok {
		if err := st.SetTenantBytes(q); err != nil {
			s.log.Error("shares not reloaded", "error", err)
			return
		}
	}
	s.shares.Store(&q)
}

// listener is one place to be served.
type listener struct {
	net.Listener
	protocol string // wire, resp, lockstep, http, zmq, zmq_replay
	secure   bool
}

// bounded is l with TLS, if it is to have that, and with its bound, where its server does not count
// connections by itself.
func (s *server) bounded(l listener) net.Listener {
	out := l.Listener
	switch l.protocol {
	case "http":
		out = s.gates.http.Listener(out)
	case "zmq", "zmq_replay":
		out = s.gates.events.Listener(out)
	}
	if l.secure {
		out = tls.NewListener(near.Listener{Listener: out}, s.cert.config(l.protocol == "http"))
	}
	return out
}

// listen opens every TCP listener, or none.
func (s *server) listen() (out []listener, err error) {
	defer func() {
		if err != nil {
			for _, l := range out {
				l.Close()
			}
		}
	}()
	protocols := map[string]string{"listen": "wire", "resp": "resp", "redis.lockstep": "lockstep", "http": "http"}
	for _, p := range s.c.ports() {
		l, err := net.Listen("tcp", p.addr)
		if err != nil {
			return out, &skep.Error{Op: "settings", Kind: skep.Invalid, Field: p.name, Value: p.addr, Err: err}
		}
		secure := s.c.TLS.Cert != "" && !slices.Contains(s.c.TLS.Plain, p.name)
		if host, _, _ := net.SplitHostPort(p.addr); !secure && !loopback(host) {
			s.log.Warn("no TLS: tokens and values can be read on the way", "port", p.name, "address", p.addr)
		}
		protocol := protocols[p.name]
		out = append(out, listener{l, protocol, secure})
		s.info.Listeners = append(s.info.Listeners, httpapi.Listener{Protocol: protocol, Address: l.Addr().String(), TLS: secure})
	}
	return s.listenEvents(out)
}

// listenSocket opens the Unix socket, if there is to be one. It comes after the store,
// whose directory it may lie in. Where credentials say who may come in, any user of the
// machine may knock: a server under systemd has a user of its own, and its engines have
// others. Without credentials the socket is for the server's own user (and root).
func (s *server) listenSocket(out []listener) ([]listener, error) {
	path := s.c.socket()
	if path == "" {
		return out, nil
	}
	if len(path) > store.MaxSocketPath { // the default's: one that was asked for was refused
		s.log.Warn("the binary protocol has no Unix socket: the path of dir is too long for one; set unix to a shorter path",
			"path", path, "bytes", len(path), "at_most", store.MaxSocketPath)
		return out, nil
	}
	mode := os.FileMode(0o600)
	if len(s.c.Credentials) > 0 {
		mode = 0o666
	}
	l, err := listenUnix(path, mode)
	if err != nil {
		return out, err
	}
	s.info.Listeners = append(s.info.Listeners, httpapi.Listener{Protocol: "wire", Address: "unix:" + path})
	return append(out, listener{l, "wire", false}), nil
}

// serve runs the servers until ctx ends or one fails, then drains all.
func (s *server) serve(ctx context.Context, listeners []listener) error {
	s.info.Version, s.info.Started = s.o.Version, time.Now()
	defer s.closeGateway() // of a start that fails, too
	if err := s.make(ctx); err != nil {
		return err
	}
	if err := s.join(); err != nil {
		return err
	}
	defer s.leave()
	handler, err := s.handler()
	if err != nil {
		return err
	}
	web := &http.Server{
		Handler: handler, ReadHeaderTimeout: 10 * time.Second, ReadTimeout: 30 * time.Second, WriteTimeout: time.Minute, IdleTimeout: 2 * time.Minute,
		MaxHeaderBytes: 32 << 10, ErrorLog: s.webLog(),
	}
	s.conns.Watch(web)
	run, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	wireCtx, stopWire := context.WithCancel(context.WithoutCancel(ctx))
	defer stopWire()
	var wg sync.WaitGroup
	for _, l := range listeners {
		if l.protocol == "zmq_replay" {
			continue // zmq's has it
		}
		wg.Go(func() {
			var err error
			at := s.bounded(l)
			switch l.protocol {
			case "wire":
				err = s.wire.Serve(wireCtx, at)
			case "resp":
				err = s.resp.Serve(at)
			case "lockstep":
				err = s.resp.ServeLockstep(at)
			case "zmq":
				err = s.events.Run(run, at, s.eventsReplay(listeners))
			case "http":
				if err = web.Serve(at); errors.Is(err, http.ErrServerClosed) {
					err = nil
				}
			}
			if err != nil {
				stop(fmt.Errorf("%s on %s: %w", l.protocol, l.Addr(), err))
			}
		})
	}
	watching := make(chan struct{})
	go func() {
		defer close(watching)
		s.follow(run)
	}()
	returned := s.comesBack(run)
	s.say()
	s.tell(daemon.SdNotifyReady)
	repaired := make(chan struct{})
	go func() {
		defer close(repaired)
		if s.repair != nil {
			s.repair.run(run)
		}
	}()
	dog := make(chan struct{})
	go func() {
		defer close(dog)
		s.watchdog(run)
	}()
	if s.o.Ready != nil {
		s.o.Ready(s.info)
	}
	<-run.Done()
	s.draining.Store(true) // first: balancers send no more while what runs beside ends
	s.tell(daemon.SdNotifyStopping)
	defer s.tellLonger()() // calls under way may take as long as limits.drain says
	<-watching
	<-returned
	<-dog
	<-repaired
	s.drain(web, stopWire)
	s.jobs.close()
	wg.Wait()
	return failed(run, ctx)
}

// failed is why run ended by itself; nil: it was ended with ctx, of which it is. ctx may have ended since.
func failed(run, ctx context.Context) error {
	if err := context.Cause(run); err != context.Cause(ctx) {
		return err
	}
	return nil
}

// make makes the servers.
func (s *server) make(ctx context.Context) (err error) {
	c := s.c
	st, err := s.st.Stats(ctx)
	if err != nil {
		return err
	}
	s.capacity = st.CapacityBytes
	s.tellDoubts(c, s.capacity)
	left, err := forConnections(s.files, max(len(st.Devices), c.devices()))
	if err != nil {
		return err
	}
	s.gates = newGates(left, c.Limits.Connections)
	s.conns = httpapi.NewConns(s.gates.http.Limit())
	if n := s.gates.resp.Limit(); n < c.Limits.Connections {
		s.log.Warn("fewer connections than limits.connections: raise the limit of open files", "connections", n, "limits.connections", c.Limits.Connections, "open_files", s.files)
	}
	s.watch = watch.New()
	s.watch.Tell(s.use.told)
	s.jobs = newJobs(s.st, s.log)
	half := int64(c.Limits.MemoryBytes) / 2
	ro := resp.Options{
		Auth: s.dir, Gate: s.gates.resp, SendBytes: half * 3 / 5, ReceiveBytes: half * 2 / 5,
		OpTimeout: time.Duration(c.Limits.Op), IOTimeout: time.Duration(c.Limits.IO), IdleTimeout: time.Duration(c.Limits.Idle),
		ExistsLease: time.Duration(c.Redis.ExistsLease), ExistsLeaseBytes: int64(c.Redis.ExistsLeaseBytes),
		Copies: c.Redis.Copies,
		Log:    s.log.With("part", "resp"), Watch: s.watch, Tracer: s.tracer, Clock: s.o.Clock,
	}
	ro.SendBytes = max(ro.SendBytes, resp.MinSendBytes)
	if ro.ExistsLease == 0 {
		ro.ExistsLease = -1
	}
	if st, ok := skep.As[*store.Store](s.st); ok {
		if ro.Clock, ro.Wall = st.Lasting, s.o.Wall; ro.Wall == nil {
			ro.Wall = time.Now
		}
	}
	var of []byte
	var epoch uint32
	var seed string
	var id uint64
	switch m, n, err := c.clusterMap(); {
	case err != nil:
		return err
	case m != nil:
		if of, err = m.Public().Encode(); err != nil {
			return err
		}
		if epoch = m.Epoch; c.Cluster != "" {
			s.cluster = m
		}
		s.node, seed, id = n.Name, m.Seed.String(), n.ID
		s.log.Info("a node of a cluster", "node", n.Name, "nodes", len(m.Nodes), "epoch", epoch)
		kept := s.keep(n)
		if c.speaks() {
			if err := s.openGateway(m.Public(), n.ID); err != nil {
				return err
			}
		}
		switch yes, why := c.repairs(); {
		case yes:
			s.repair = s.newRepairer(kept)
			s.jobs.offer(s.repair.job(s.jobs))
			s.reg.MustRegister(repairMetrics{s.repair})
		case why != "":
			s.log.Warn("this node sends no copies to nodes that should have them: " + why)
		}
	}
	from := s.st
	if c.gateway() {
		from, ro.Cluster = s.whole, s.others.cluster
	}
	if s.resp, err = resp.New(from, ro); err != nil {
		return err
	}
	s.wire, err = wireserver.New(s.st, wireserver.Options{
		Auth: s.dir, Gate: s.gates.wire, Name: "skep " + s.o.Version, Drain: time.Duration(c.Limits.Drain), Log: s.log.With("part", "wire"),
		Limits: wireserver.Limits{Keys: c.Limits.Keys, Memory: half, Idle: time.Duration(c.Limits.Idle),
			SharedMemory: int64(c.Limits.SharedBytes)},
		Observe: s.observe, Idle: s.idle, Admin: s.admin, Tracer: s.tracer,
		ClusterMap: of, Epoch: epoch, Node: s.node, Cluster: seed, NodeID: id, Copies: c.copies,
	})
	if err != nil {
		return err
	}
	s.reg.MustRegister(s.watch, s.resp, wireMetrics{s.wire}, s.gates, &s.cert, deniedMetrics{s.dir}, nodeMetrics{s},
		keyMetrics{s})
	return s.makeEvents()
}

// admin carries out administrative calls of the binary protocol: the same jobs as over
// HTTP, as {"job": …, "action": …}.
func (s *server) admin(ctx context.Context, _ auth.Identity, name string, in json.RawMessage) (json.RawMessage, error) {
	switch name {
	case "cluster", "cluster add", "cluster join", "cluster set", "cluster remove", "cluster rejoin":
		return s.adminCluster(ctx, name, in)
	case "cluster repair":
		return s.adminRepair(in)
	case "jobs":
	case "steer":
		var what struct{ Job, Action string }
		if err := json.Unmarshal(in, &what); err != nil {
			return nil, &skep.Error{Op: "admin", Kind: skep.Invalid, Field: "steer", Err: err}
		}
		if err := s.jobs.Do(ctx, what.Job, what.Action); err != nil {
			return nil, err
		}
	default:
		return nil, &skep.Error{Op: "admin", Kind: skep.Unsupported, Field: "name", Value: name,
			Limit: "jobs, steer, cluster, cluster add, cluster join, cluster set, cluster remove, cluster rejoin or " +
				"cluster repair"}
	}
	list, err := s.jobs.List(ctx)
	if err != nil {
		return nil, err
	}
	return json.Marshal(list)
}

func (s *server) handler() (http.Handler, error) {
	return httpapi.New(httpapi.Options{
		Conns: s.conns,
		Store: s.st, Auth: s.dir, Watch: s.watch, Gatherer: s.reg, Ready: s.ready, Unwell: s.unwell, Server: s.info, Jobs: s.jobs,
		Segments: segmentsOf(s.st), Shares: func() map[string]int64 { return *s.shares.Load() }, Console: console.Handler(),
		Route: s.router(), Cluster: s.clusterView(),
		Timeout: time.Duration(s.c.Limits.Op), Log: s.log.With("part", "http"),
	})
}

// say tells what is served to whom.
func (s *server) say() {
	for _, l := range s.info.Listeners {
		s.log.Info("listening", "protocol", l.Protocol, "address", l.Address, "tls", l.TLS)
	}
	s.tellOpenFiles(s.c)
	if s.c.counted {
		s.log.Warn("a number of devices is called file_devices now; the next release takes only that")
	}
	if !s.dir.Open() && !s.dir.HasOperator() {
		s.log.Warn("no credential is an operator's: nobody may see metrics and the store's figures or steer background work; give one tenant '*' and the right admin")
	}
	if s.dir.Open() {
		s.log.Warn("no credentials are configured: whoever reaches the loopback ports or the socket is the tenant " +
			"default, with all rights")
	}
}

// drain ends service in order.
func (s *server) drain(web *http.Server, stopWire func()) {
	s.log.Info("draining", "at_most", s.c.Limits.Drain)
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(s.c.Limits.Drain))
	defer cancel()
	var wg sync.WaitGroup
	stopWire() // its Serve returns when its calls have ended, or at Drain
	wg.Go(func() {
		if err := s.resp.Shutdown(ctx); err != nil {
			s.log.Warn("RESP connections were cut", "error", err)
		}
	})
	wg.Go(func() {
		if err := web.Shutdown(ctx); err != nil {
			web.Close()
		}
	})
	wg.Wait()
}
