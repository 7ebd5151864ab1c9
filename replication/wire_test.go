package replication

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/memstore"
	"github.com/skepkv/skep/store/storetest"
	"github.com/skepkv/skep/wire"
	"github.com/skepkv/skep/wire/auth"
	"github.com/skepkv/skep/wire/server"
)

const operator = "the operator's token"

// served is a node: a server in front of a memstore.
type served struct {
	path string
	st   skep.Store
	stop func()
}

// serve puts a Store behind a server on a Unix socket.
func serve(t testing.TB, path string, st skep.Store) *served {
	t.Helper()
	h, err := auth.TokenHash(operator)
	require.NoError(t, err)
	d, err := auth.New([]auth.Credential{{Name: "operator", Tenant: auth.AnyTenant, Rights: auth.All, TokenSHA256: h}}, nil, nil)
	require.NoError(t, err)
	srv, err := server.New(st, server.Options{Auth: d, Drain: time.Second})
	require.NoError(t, err)
	l, err := net.Listen("unix", path)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- srv.Serve(ctx, l) }()
	n := &served{path: path, st: st}
	stopped := false
	n.stop = func() {
		if !stopped {
			stopped = true
			cancel()
			require.NoError(t, <-done)
		}
	}
	t.Cleanup(n.stop)
	return n
}

// far is a cluster over servers, which closes what is behind them, too.
type far struct {
	*Store
	nodes []*served
}

func (f *far) Close() error {
	err := f.Store.Close()
	for _, n := range f.nodes {
		n.stop()
		if e := n.st.Close(); err == nil {
			err = e
		}
	}
	return err
}

// overWire is a cluster of three servers in front of memstores.
func overWire(t testing.TB, g int, stores []skep.Store) *far {
	dir, err := os.MkdirTemp("", "skep")
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	f := &far{}
	var clients []skep.Store
	for i, st := range stores {
		n := serve(t, filepath.Join(dir, fmt.Sprint(i)), st)
		f.nodes = append(f.nodes, n)
		c, err := wire.Dial(t.Context(), wire.Options{Addr: "unix:" + n.path, Token: operator, Timeout: time.Minute, Patience: time.Minute, Silence: time.Minute, Strict: true})
		require.NoError(t, err)
		clients = append(clients, c)
	}
	f.Store, err = New(Options{Map: three(len(stores), g), Stores: clients})
	require.NoError(t, err)
	return f
}

func TestContractOverWire(t *testing.T) {
	t.Parallel()
	for _, g := range []int{2, 16} {
		t.Run(fmt.Sprintf("groups of %d", g), func(t *testing.T) {
			storetest.Test(t, func(t *testing.T, c storetest.Config) skep.Store {
				lacks(t, c)
				return overWire(t, g, memstores(3, c))
			})
		})
	}
}

func TestRandomOverWire(t *testing.T) {
	t.Parallel()
	storetest.Random(t, func(t *testing.T, c storetest.Config) skep.Store { return overWire(t, 2, memstores(3, c)) }, storetest.RandomOptions{Ops: 500})
}

// Who has a node in its own process asks that one first.
func TestTheNodeInThisProcessIsTheNearest(t *testing.T) {
	t.Parallel()
	m := three(3, 16)
	var stores []skep.Store
	for i := range 3 {
		if i == 1 {
			stores = append(stores, shared{memstore.New(memstore.Options{})})
			continue
		}
		c, err := wire.NewClient(wire.Options{Addr: "unix:" + filepath.Join(t.TempDir(), "nobody")})
		require.NoError(t, err)
		stores = append(stores, c)
	}
	s, err := New(Options{Map: m, Stores: stores})
	require.NoError(t, err)
	defer s.Close()
	var names []string
	for _, n := range s.now.Load().near {
		names = append(names, n.Name)
	}
	require.Equal(t, []string{"b", "a", "c"}, names)
}
