package wire

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/memstore"
	"github.com/skepkv/skep/store/storetest"
	"github.com/skepkv/skep/tools/leaks"
	"github.com/skepkv/skep/wire/auth"
	"github.com/skepkv/skep/wire/frames"
	"github.com/skepkv/skep/wire/near"
	"github.com/skepkv/skep/wire/server"
)

func TestMain(m *testing.M) { leaks.Main(m) }

// everybody is an authenticator that knows one token, which reaches every tenant.
func everybody(t testing.TB) *auth.Directory {
	t.Helper()
	h, err := auth.TokenHash(operator)
	require.NoError(t, err)
	d, err := auth.New([]auth.Credential{{Name: "operator", Tenant: auth.AnyTenant, Rights: auth.All, TokenSHA256: h}}, nil, nil)
	require.NoError(t, err)
	return d
}

const operator = "the operator's token"

// rig is a server in front of a memstore, and how to reach it.
type rig struct {
	*server.Server
	st   skep.Store
	addr string
	tls  *tls.Config // of clients
	stop func()      // ends the server and waits
}

// serve starts a server. Where says how it listens: tcp, tls or unix.
func serve(t testing.TB, where string, st skep.Store, o server.Options) *rig {
	t.Helper()
	if o.Auth == nil {
		o.Auth = everybody(t)
	}
	o.Drain = cmp.Or(o.Drain, 2*time.Second)
	s, err := server.New(st, o)
	require.NoError(t, err)
	r := &rig{Server: s, st: st}
	var l net.Listener
	if where == "unix" {
		dir, err := os.MkdirTemp("", "skep")
		require.NoError(t, err)
		t.Cleanup(func() { os.RemoveAll(dir) })
		path := filepath.Join(dir, "s")
		l, err = net.Listen("unix", path)
		require.NoError(t, err)
		r.addr = "unix:" + path
	} else {
		l, err = net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		r.addr = l.Addr().String()
	}
	if where == "tls" {
		var conf *tls.Config
		conf, r.tls = certificates(t)
		l = tls.NewListener(near.Listener{Listener: l}, conf)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx, l) }()
	stopped := false
	r.stop = func() {
		if !stopped {
			stopped = true
			cancel()
			require.NoError(t, <-done)
		}
	}
	t.Cleanup(r.stop)
	return r
}

// options are of a client that gives nothing up, however busy the machine.
func (r *rig) options() Options {
	return Options{Addr: r.addr, TLS: r.tls, Token: operator, Name: "test", Timeout: time.Minute, Patience: time.Minute, Silence: time.Minute}
}

func (r *rig) dial(t testing.TB, o Options) *Client {
	t.Helper()
	c, err := Dial(context.Background(), o)
	require.NoError(t, err)
	t.Cleanup(func() {
		if err := c.Close(); !errors.Is(err, skep.NotReleased) { // of a session that a test leaves open
			require.NoError(t, err)
		}
	})
	return c
}

// far is a client that closes the store behind its server too, as the contract test
// expects of what it closes.
type far struct {
	*Client
	r *rig
}

func (f *far) Close() error {
	err := f.Client.Close()
	f.r.stop()
	return errors.Join(err, f.r.st.Close())
}

func newMemstore(c storetest.Config) skep.Store {
	return memstore.New(memstore.Options{CapacityBytes: c.CapacityBytes, TenantLeaseBytes: c.TenantLeaseBytes,
		TenantPinBytes: c.TenantPinBytes, TenantNamespaces: c.TenantNamespaces, PoisonReleased: true})
}

func contract(where string, change func(*Options)) func(t *testing.T, c storetest.Config) skep.Store {
	return func(t *testing.T, c storetest.Config) skep.Store {
		r := serve(t, where, newMemstore(c), server.Options{})
		o := r.options()
		if change != nil {
			change(&o)
		}
		client, err := Dial(t.Context(), o)
		require.NoError(t, err)
		return &far{client, r}
	}
}

func TestContractTCP(t *testing.T) {
	t.Parallel()
	storetest.Test(t, contract("tcp", nil))
}
func TestContractTLS(t *testing.T) {
	t.Parallel()
	storetest.Test(t, contract("tls", nil))
}
func TestContractUnix(t *testing.T) {
	t.Parallel()
	storetest.Test(t, contract("unix", nil))
}

// One connection, a small window and checksums of another kind: the same Store.
func TestContractNarrow(t *testing.T) {
	t.Parallel()
	storetest.Test(t, contract("tcp", func(o *Options) { o.Conns, o.Window, o.CRC, o.Strict = 1, frames.LeastWindow, true, true }))
}

func TestRandomOperationsAreTheEmbeddedStores(t *testing.T) {
	t.Parallel()
	storetest.Random(t, contract("unix", nil), storetest.RandomOptions{Ops: 1500})
}

// What the Store behind a server can do its client can do, or says by name that it cannot.
func TestWrapper(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		change func(*Options)
	}{{"tcp", nil}, {"unix", func(o *Options) { o.SharedMemory = 4 << 20 }}} {
		t.Run(tt.name, func(t *testing.T) {
			storetest.Wrapper(t, newMemstore(storetest.Config{}), func(t *testing.T, behind skep.Store) skep.Store {
				r := serve(t, tt.name, behind, server.Options{})
				o := r.options()
				if tt.change != nil {
					tt.change(&o)
				}
				client, err := Dial(t.Context(), o)
				require.NoError(t, err)
				return &far{client, r}
			},
				"Store.Alloc",         // memory of its own, or what it shares
				"Store.FindNamespace", // of what it has opened
				"Store.NamespacesOf",  // of the server's Namespaces
				"Session.Direction",   // chunks that came show it
				"Session.Next")        // the server has read ahead
		})
	}
}

func TestContractSharedMemory(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("no memfd on this system")
	}
	storetest.Test(t, contract("unix", func(o *Options) { o.SharedMemory = 32 << 20 }))
}
