package hostile

import (
	"context"
	"errors"
	"net"
	"net/http"
	"path/filepath"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/wire/auth"
	"github.com/skepkv/skep/wire/gate"
	"github.com/skepkv/skep/wire/httpapi"
	"github.com/skepkv/skep/wire/resp"
	"github.com/skepkv/skep/wire/server"
)

// Protocols of a Server.
const (
	Wire = "wire"
	Resp = "resp"
	HTTP = "http"
)

// Tenants of a Server, and what proves to be one of them.
const (
	HonestTenant  = "honest"
	HostileTenant = "hostile"

	TokenHonest  = "honest-token-0123456789abcdef"
	TokenHostile = "hostile-token-0123456789abcdef" // may do all that is no operator's
	TokenReader  = "reader-token-0123456789abcdef"  // the hostile tenant's, may read only
	TokenWrong   = "nobody-token-0123456789abcdef"
)

// Caps of a Server: small, so that who passes them shows soon.
const (
	maxConns     = 256 // of each protocol
	wireMemory   = 32 << 20
	sharedMemory = 64 << 20
	sendBytes    = resp.MinSendBytes
	receiveBytes = 8 << 20
)

// Server is a real server of all protocols in this process, in front of a store.
type Server struct {
	Store skep.Store
	Wire  *server.Server
	Resp  *resp.Server
	Gates map[string]*gate.Gate // by protocol
	Addrs map[string][]net.Addr // by protocol: TCP, then Unix

	web  *http.Server
	stop context.CancelFunc
	wg   sync.WaitGroup
	mu   sync.Mutex
	errs []error
}

// Serve starts a server whose Unix sockets lie in dir. It does not close st.
func Serve(st skep.Store, dir string) (*Server, error) {
	s := &Server{Store: st, Gates: map[string]*gate.Gate{}, Addrs: map[string][]net.Addr{}}
	d, err := directory()
	if err != nil {
		return nil, err
	}
	for _, p := range []string{Wire, Resp, HTTP} {
		s.Gates[p] = gate.New(maxConns, nil)
	}
	if s.Resp, err = resp.New(st, resp.Options{Auth: d, Gate: s.Gates[Resp], SendBytes: sendBytes, ReceiveBytes: receiveBytes, ExistsLease: time.Second,
		IOTimeout: 2 * time.Second, IdleTimeout: 30 * time.Second}); err != nil {
		return nil, err
	}
	if s.Wire, err = server.New(st, server.Options{Auth: d, Gate: s.Gates[Wire], Drain: time.Second, Limits: server.Limits{
		Memory: wireMemory, SharedMemory: sharedMemory, Hello: 2 * time.Second, Stall: 5 * time.Second}}); err != nil {
		return nil, err
	}
	reg := prometheus.NewRegistry()
	if err := reg.Register(s.Resp); err != nil {
		return nil, err
	}
	conns := httpapi.NewConns(maxConns)
	handler, err := httpapi.New(httpapi.Options{Store: st, Auth: d, Gatherer: reg, Conns: conns})
	if err != nil {
		return nil, err
	}
	s.web = &http.Server{Handler: handler, ReadHeaderTimeout: 2 * time.Second, ReadTimeout: 3 * time.Second, WriteTimeout: 5 * time.Second, IdleTimeout: 2 * time.Second,
		MaxHeaderBytes: 32 << 10, ErrorLog: quiet}
	conns.Watch(s.web)
	var ctx context.Context
	ctx, s.stop = context.WithCancel(context.Background())
	for _, p := range []string{Wire, Resp, HTTP} {
		for _, network := range []string{"tcp", "unix"} {
			at := "127.0.0.1:0"
			if network == "unix" {
				at = filepath.Join(dir, p)
			}
			l, err := net.Listen(network, at)
			if err != nil {
				return nil, errors.Join(err, s.Close())
			}
			s.Addrs[p] = append(s.Addrs[p], l.Addr())
			s.wg.Go(func() { s.note(s.serve(ctx, p, l)) })
		}
	}
	return s, nil
}

func (s *Server) serve(ctx context.Context, protocol string, l net.Listener) error {
	switch protocol {
	case Wire:
		return s.Wire.Serve(ctx, l)
	case Resp:
		return s.Resp.Serve(l)
	}
	if err := s.web.Serve(s.Gates[HTTP].Listener(l)); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

func (s *Server) note(err error) {
	if err != nil {
		s.mu.Lock()
		s.errs = append(s.errs, err)
		s.mu.Unlock()
	}
}

// Close ends the server and says what it ended with.
func (s *Server) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	s.stop()
	s.note(s.Resp.Shutdown(ctx))
	s.note(s.web.Shutdown(ctx))
	s.wg.Wait()
	return errors.Join(s.errs...)
}

// directory knows the tenants.
func directory() (*auth.Directory, error) {
	var creds []auth.Credential
	for _, c := range []struct {
		tenant, token string
		rights        auth.Rights
	}{{HonestTenant, TokenHonest, auth.All}, {HostileTenant, TokenHostile, auth.All}, {HostileTenant, TokenReader, auth.Read}} {
		h, err := auth.TokenHash(c.token)
		if err != nil {
			return nil, err
		}
		creds = append(creds, auth.Credential{Name: c.tenant, Tenant: c.tenant, Rights: c.rights, TokenSHA256: h})
	}
	return auth.New(creds, nil, nil)
}
