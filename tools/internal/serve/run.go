package serve

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"go.opentelemetry.io/otel/trace"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store"
	"github.com/skepkv/skep/store/device"
	"github.com/skepkv/skep/wire"
	"github.com/skepkv/skep/wire/auth"
	"github.com/skepkv/skep/wire/console"
	"github.com/skepkv/skep/wire/httpapi"
	"github.com/skepkv/skep/wire/near"
	"github.com/skepkv/skep/wire/resp"
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
	reg  *prometheus.Registry

	watch  *watch.Recorder
	tracer trace.Tracer
	wire   *wire.Server
	resp   *resp.Server
	jobs   *jobs
	info   httpapi.ServerInfo

	quotas   atomic.Pointer[map[string]int64]
	draining atomic.Bool
}

// Run serves until ctx ends, then drains. What it opened is closed when it returns.
func Run(ctx context.Context, c *Config, o Options) (err error) {
	s := &server{c: c, o: o, reg: prometheus.NewRegistry(), log: c.logger(o.Log)}
	creds, wrong := c.credentials(os.LookupEnv)
	if len(wrong) > 0 {
		return errors.Join(wrong...)
	}
	if s.dir, err = auth.New(creds, c.limits(), nil); err != nil {
		return err
	}
	if c.TLS.Cert != "" {
		if err := s.cert.load(&c.TLS); err != nil {
			return err
		}
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
	if err := s.openStore(ctx); err != nil {
		return err
	}
	defer func() {
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
	s.setQuotas(s.c)
	s.reg.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	if s.o.Store != nil {
		s.st = s.o.Store
		return nil
	}
	so := s.c.storeOptions()
	keys, wrong := s.c.encryptionKeys(os.LookupEnv)
	if len(wrong) > 0 {
		return errors.Join(wrong...)
	}
	so.EncryptionKeys = keys
	s.tellEncrypted(keys)
	so.Logger, so.Registerer = s.log.With("part", "store"), s.reg
	st, err := store.Open(ctx, so)
	if err != nil {
		return err
	}
	s.st = st
	return nil
}

func (c *Config) storeOptions() store.Options {
	so := store.Options{
		Dir: c.Dir, Devices: c.devicePaths(), CapacityBytes: int64(c.Store.CapacityBytes), BlockBytes: int64(c.Store.BlockBytes),
		CacheBytes: int64(c.Store.DRAMBytes), IOBytes: int64(c.Store.IOBytes), LeasedBytes: int64(c.Store.LeasedBytes),
		PinnedBytes: int64(c.Store.PinnedBytes), Policy: c.Store.Policy, TenantBytes: c.quotas(),
		Device: device.Options{Backend: c.Store.Backend},
	}
	// skep top and its like look in through it, where its path fits a socket's.
	so.Admin = runtime.GOOS != "windows" && len(c.Dir)+len(store.AdminSocket) < 100
	if so.CacheBytes == 0 {
		so.CacheBytes = -1 // none; 0 would be the default
	}
	if len(so.Devices) == 0 {
		fmt.Sscan(c.Devices, &so.DeviceCount)
	}
	return so
}

func (c *Config) quotas() map[string]int64 {
	out := map[string]int64{}
	for name, t := range c.Tenants {
		if t.Bytes > 0 {
			out[name] = int64(t.Bytes)
		}
	}
	return out
}

func (s *server) setQuotas(c *Config) {
	q := c.quotas()
	s.quotas.Store(&q)
}

// listener is one place to be served.
type listener struct {
	net.Listener
	protocol string // wire, resp, http
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
	protocols := map[string]string{"listen": "wire", "resp": "resp", "http": "http"}
	for _, p := range s.c.ports() {
		l, err := net.Listen("tcp", p.addr)
		if err != nil {
			return out, &skep.Error{Op: "serve", Kind: skep.Invalid, Field: p.name, Value: p.addr, Err: err}
		}
		secure := s.c.TLS.Cert != "" && !slices.Contains(s.c.TLS.Plain, p.name)
		if secure {
			l = tls.NewListener(near.Listener{Listener: l}, s.cert.config(p.name == "http"))
		} else if host, _, _ := net.SplitHostPort(p.addr); !loopback(host) {
			s.log.Warn("no TLS: tokens and values can be read on the way", "port", p.name, "address", p.addr)
		}
		protocol := protocols[p.name]
		out = append(out, listener{l, protocol})
		s.info.Listeners = append(s.info.Listeners, httpapi.Listener{Protocol: protocol, Address: l.Addr().String(), TLS: secure})
	}
	return out, nil
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
	mode := os.FileMode(0o600)
	if len(s.c.Credentials) > 0 {
		mode = 0o666
	}
	l, err := listenUnix(path, mode)
	if err != nil {
		return out, err
	}
	s.info.Listeners = append(s.info.Listeners, httpapi.Listener{Protocol: "wire", Address: "unix:" + path})
	return append(out, listener{l, "wire"}), nil
}

// serve runs the servers until ctx ends or one fails, then drains all.
func (s *server) serve(ctx context.Context, listeners []listener) error {
	s.info.Version, s.info.Started = s.o.Version, time.Now()
	if err := s.make(); err != nil {
		return err
	}
	handler, err := s.handler()
	if err != nil {
		return err
	}
	web := &http.Server{
		Handler: handler, ReadHeaderTimeout: 10 * time.Second, ReadTimeout: 30 * time.Second, WriteTimeout: time.Minute, IdleTimeout: 2 * time.Minute,
		MaxHeaderBytes: 32 << 10, ErrorLog: slog.NewLogLogger(s.log.With("part", "http").Handler(), slog.LevelDebug),
	}
	run, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	wireCtx, stopWire := context.WithCancel(context.WithoutCancel(ctx))
	defer stopWire()
	var wg sync.WaitGroup
	for _, l := range listeners {
		wg.Go(func() {
			var err error
			switch l.protocol {
			case "wire":
				err = s.wire.Serve(wireCtx, l)
			case "resp":
				err = s.resp.Serve(l)
			case "http":
				if err = web.Serve(l); errors.Is(err, http.ErrServerClosed) {
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
	s.say()
	if s.o.Ready != nil {
		s.o.Ready(s.info)
	}
	<-run.Done()
	<-watching
	s.drain(web, stopWire)
	wg.Wait()
	s.jobs.close()
	if err := context.Cause(run); err != nil && ctx.Err() == nil {
		return err
	}
	return nil
}

// make makes the servers.
func (s *server) make() (err error) {
	c := s.c
	s.watch = watch.New(s.reg)
	s.jobs = newJobs(s.st, s.log)
	half := int64(c.Limits.MemoryBytes) / 2
	ro := resp.Options{
		Auth: s.dir, Connections: c.Limits.Connections, SendBytes: half * 3 / 5, ReceiveBytes: half * 2 / 5,
		OpTimeout: time.Duration(c.Limits.Op), IOTimeout: time.Duration(c.Limits.IO), IdleTimeout: time.Duration(c.Limits.Idle),
		ExistsLease: time.Duration(c.Redis.ExistsLease), ExistsLeaseBytes: int64(c.Redis.ExistsLeaseBytes),
		CloseOnMiss: c.Redis.CloseOnMiss, Copies: c.Redis.Copies,
		Log: s.log.With("part", "resp"), Watch: s.watch, Tracer: s.tracer,
	}
	ro.SendBytes = max(ro.SendBytes, resp.MinSendBytes)
	if ro.ExistsLease == 0 {
		ro.ExistsLease = -1
	}
	if s.resp, err = resp.New(s.st, ro); err != nil {
		return err
	}
	s.wire, err = wire.NewServer(s.st, wire.ServerOptions{
		Auth: s.dir, Name: "skep " + s.o.Version, Drain: time.Duration(c.Limits.Drain), Log: s.log.With("part", "wire"),
		Limits:  wire.Limits{Connections: c.Limits.Connections, Keys: c.Limits.Keys, Memory: half, Idle: time.Duration(c.Limits.Idle)},
		Observe: s.observe, Admin: s.admin, Tracer: s.tracer,
	})
	if err != nil {
		return err
	}
	s.reg.MustRegister(s.resp, wireMetrics{s.wire})
	return nil
}

// observe records a call of the binary protocol.
func (s *server) observe(c wire.Call) {
	outcome := watch.OK
	if c.Err != nil {
		outcome = watch.Error
		if skep.KindOf(c.Err) == skep.Overloaded {
			outcome = watch.Shed
		}
	}
	s.watch.Record(watch.Call{Protocol: "wire", Name: c.Type.String(), Tenant: c.Tenant, Outcome: outcome, Start: c.Began, Duration: c.Took, Bytes: c.Bytes})
}

// admin carries out administrative calls of the binary protocol: the same jobs as over
// HTTP, as {"job": …, "action": …}.
func (s *server) admin(ctx context.Context, _ auth.Identity, name string, in json.RawMessage) (json.RawMessage, error) {
	switch name {
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
		return nil, &skep.Error{Op: "admin", Kind: skep.Unsupported, Field: "name", Value: name, Limit: "jobs or steer"}
	}
	list, err := s.jobs.List(ctx)
	if err != nil {
		return nil, err
	}
	return json.Marshal(list)
}

func (s *server) handler() (http.Handler, error) {
	return httpapi.New(httpapi.Options{
		Store: s.st, Auth: s.dir, Watch: s.watch, Gatherer: s.reg, Ready: s.ready, Server: s.info, Jobs: s.jobs,
		Segments: segmentsOf(s.st), Quotas: func() map[string]int64 { return *s.quotas.Load() }, Console: console.Handler(),
		Timeout: time.Duration(s.c.Limits.Op), Log: s.log.With("part", "http"),
	})
}

// ready says why this server should get no traffic.
func (s *server) ready() error {
	if s.draining.Load() {
		return errors.New("draining")
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	st, err := s.st.Stats(ctx)
	if err != nil {
		return err
	}
	if st.State != "ok" {
		return errors.New(st.State)
	}
	return nil
}

// say tells what is served to whom.
func (s *server) say() {
	for _, l := range s.info.Listeners {
		s.log.Info("listening", "protocol", l.Protocol, "address", l.Address, "tls", l.TLS)
	}
	if s.dir.Open() {
		s.log.Warn("no credentials are configured: whoever reaches the loopback ports or the socket is the tenant default, with all rights")
	}
}

// drain ends service in order.
func (s *server) drain(web *http.Server, stopWire func()) {
	s.draining.Store(true)
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
