package replication

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/replication/clustermap"
	"github.com/skepkv/skep/replication/seeds"
	"github.com/skepkv/skep/store/memstore"
	"github.com/skepkv/skep/store/storetest"
	"github.com/skepkv/skep/wire"
	"github.com/skepkv/skep/wire/server"
)

// hosts has addresses "node:0", "node:1" and so on reach the fleet's sockets of these numbers, and the map have them.
func (f *fleet) hosts(m *clustermap.Map) func(ctx context.Context, network, addr string) (net.Conn, error) {
	for i := range m.Nodes {
		m.Nodes[i].Addr = host(i)
	}
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		if i, ok := strings.CutPrefix(addr, "node:742"); ok {
			network, addr = "unix", filepath.Join(f.dir, i)
		}
		return new(net.Dialer).DialContext(ctx, network, addr)
	}
}

// host is the address of node i.
func host(i int) string { return fmt.Sprintf("node:742%d", i) }

func hosts(n int) string {
	var all []string
	for i := range n {
		all = append(all, host(i))
	}
	return strings.Join(all, ",")
}

// halves is a map of three nodes at hosts, which have each block twice, and options that name all of them.
func (f *fleet) halves() (*clustermap.Map, wire.Options) {
	m := f.mapOf(1, 3)
	m.Replicas = 2
	o := patient(hosts(3))
	o.DialContext = f.hosts(m)
	return m, o
}

// opened opens the namespace as soon as there is a server that does.
func (r *rig) opened() {
	r.Helper()
	spec := skep.NamespaceSpec{Tenant: "t", Name: "n", Shape: shape, Chained: true}
	storetest.Eventually(r.T, "the namespace is opened", func() (ok bool) {
		var err error
		r.ns, err = r.OpenNamespace(r.Context(), spec)
		return err == nil
	})
}

// The node that is named first is away when the client starts. The others tell it the map, and when that node comes
// back it has its share.
func TestTheFirstAddressIsAway(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	m, o := f.halves()
	stop := f.start(m)
	f.start(m)
	f.start(m)
	stop()
	r := f.connect(o)
	r.openNamespace(skep.Cache)
	keys := chainOf(1, 60)
	for i, x := range r.put(keys, 0, 60) {
		require.Equal(t, skep.Committed, x.Outcome, "block %d", i)
	}
	r.whole(keys)
	tenant, _, err := r.Identity(t.Context())
	require.NoError(t, err)
	require.Equal(t, "*", tenant)

	_, _ = f.serveAt(0, f.stores[0], server.Options{ClusterMap: f.encode(m), Epoch: 1, Node: "a"})
	storetest.Eventually(t, "the first node has blocks, too", func() bool {
		r.put(keys, 0, 60)
		return f.blocks()[0] > 0
	})
	r.whole(keys)
	fresh, err := Dial(t.Context(), o)
	require.NoError(t, err)
	require.Len(t, fresh.Map().Nodes, 3)
	require.NoError(t, fresh.Close())
}

// Nobody is there at first: calls fail, or miss where options forgive, and the client works as soon as one is there.
func TestAllAddressesAreAway(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	m, o := f.halves()
	r := f.connect(o)
	spec := skep.NamespaceSpec{Tenant: "t", Name: "n", Shape: shape, Chained: true}
	for range 3 {
		_, err := r.OpenNamespace(t.Context(), spec)
		require.ErrorIs(t, err, skep.Unavailable)
	}
	_, _, err := r.Identity(t.Context())
	require.ErrorIs(t, err, skep.Unavailable)
	found, err := r.Lookup(t.Context(), &skep.LookupRequest{Scope: skep.Scope{Namespace: 1}, Keys: chainOf(1, 3)})
	require.NoError(t, err)
	require.Zero(t, found.Blocks)
	_, err = Dial(t.Context(), o)
	require.ErrorIs(t, err, skep.Unavailable)

	st := memstore.New(memstore.Options{})
	defer func() { assert.NoError(t, st.Close()) }()
	_, stop := f.serveAt(1, st, server.Options{ClusterMap: f.encode(m), Epoch: 1, Node: "b"})
	defer stop()
	r.opened()
	require.Len(t, r.Map().Nodes, 3)
}

// Servers of no cluster are several Stores, not one: nothing is stored at either.
func TestSeveralServersOfNoCluster(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	o := patient(hosts(2))
	o.DialContext = f.hosts(f.mapOf(1, 2))
	for range 2 {
		st := memstore.New(memstore.Options{})
		t.Cleanup(func() { assert.NoError(t, st.Close()) })
		f.serve(st, server.Options{})
	}
	refused := func(err error) {
		t.Helper()
		require.ErrorIs(t, err, skep.Unsupported)
		require.ErrorContains(t, err, "node:742")
		require.ErrorContains(t, err, "the address of one server alone")
	}
	r := f.connect(o)
	_, err := r.OpenNamespace(t.Context(), skep.NamespaceSpec{Tenant: "t", Name: "n", Shape: shape})
	refused(err)
	_, err = r.Lookup(t.Context(), &skep.LookupRequest{Scope: skep.Scope{Namespace: 1}, Keys: chainOf(1, 3)})
	refused(err)
	_, _, err = r.Identity(t.Context())
	refused(err)
	_, err = Dial(t.Context(), o)
	refused(err)

	v := r.now.Load() // one that came after it was looked for
	_, err = r.to(v).OpenNamespace(v.mark(t.Context()), skep.NamespaceSpec{Tenant: "t", Name: "n", Shape: shape})
	require.ErrorIs(t, err, skep.StaleMap)
	for _, st := range f.stores {
		list, err := st.Namespaces(t.Context())
		require.NoError(t, err)
		require.Empty(t, list)
	}
	o.Addr = host(0)
	alone := f.connect(o)
	alone.openNamespace(skep.Cache)
	alone.put(chainOf(1, 3), 0, 3)
	alone.whole(chainOf(1, 3))
}

// A token that a server refuses is told of, although other servers are away.
func TestOneAddressRefuses(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	m, o := f.halves()
	f.start(m)
	f.start(m)()
	o.Token = "not one of the server's tokens"
	o.Addr = host(1) + "," + host(0)
	r := f.connect(o)
	_, err := r.OpenNamespace(t.Context(), skep.NamespaceSpec{Tenant: "t", Name: "n", Shape: shape})
	require.ErrorIs(t, err, skep.Denied)
}

// All nodes of a cluster have got new addresses: the addresses of the client are asked for the map again.
func TestAllNodesHaveNewAddresses(t *testing.T) {
	t.Parallel()
	for _, addrs := range []string{"skep.test:7420", "skep.test:7420,other.test:7420"} {
		f := newFleet(t)
		m := f.mapOf(1, 2)
		net1 := f.hosts(m)
		o := patient(addrs)
		o.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
			if addr == "skep.test:7420" { // a name of the second node, wherever that is
				if c, err := net1(ctx, network, host(3)); err == nil {
					return c, nil
				}
				addr = host(1)
			}
			return net1(ctx, network, addr)
		}
		stops := []func(){f.start(m), f.start(m)}
		r := f.connect(o)
		r.openNamespace(skep.Cache)
		keys := chainOf(1, 40)
		r.put(keys, 0, 40)
		r.whole(keys)
		next := f.mapOf(2, 2)
		for i, stop := range stops {
			stop()
			next.Nodes[i].Addr = host(i + 2)
		}
		for i, name := range []string{"a", "b"} {
			f.serveAt(i+2, f.stores[i], server.Options{ClusterMap: f.encode(next), Epoch: 2, Node: name})
		}
		storetest.Eventually(t, "all is found at the new addresses", func() bool {
			found, err := r.Lookup(t.Context(), &skep.LookupRequest{Scope: r.scope(), Keys: keys})
			return err == nil && found.Blocks == len(keys)
		})
		r.whole(keys)
	}
}

// The first node's socket is among the addresses, and memory is shared with that node, though it comes last.
func TestTheNearSocketComesLater(t *testing.T) {
	t.Parallel()
	for _, late := range []bool{false, true} {
		f := newFleet(t)
		m, o := f.halves()
		o.Addr = host(1) + "," + f.nearby() + "," + host(2)
		o.SharedMemory = 8 << 20
		stop := f.start(m)
		f.start(m)
		f.start(m)
		if late {
			stop()
		}
		r := f.connect(o)
		mem, err := r.Alloc(t.Context(), 60*4096)
		require.NoError(t, err)
		defer mem.Release()
		require.True(t, r.Client().Shares(mem.Bytes()))
		r.openNamespace(skep.Cache)
		keys := chainOf(1, 60)
		r.put(keys, 0, 60)
		r.whole(keys)
		srv := f.servers[0]
		if late {
			require.Nil(t, r.now.Load().seedNode(r.Store))
			srv, _ = f.serveAt(0, f.stores[0], server.Options{ClusterMap: f.encode(m), Epoch: 1, Node: "a"})
		}
		storetest.Eventually(t, "calls for the first node go by its socket", func() bool {
			return r.now.Load().seedNode(r.Store) != nil
		})
		require.Equal(t, "a", r.now.Load().seedNode(r.Store).Name)
		r.put(keys, 0, 60)
		r.whole(keys)
		require.Positive(t, f.blocks()[0])
		require.Equal(t, 1, srv.Stats().Regions)
		require.Len(t, r.now.Load().owner, 3)
	}
}

// An address may be a load balancer's, before several nodes: what it reaches is not the node that answered first.
func TestAnAddressOfALoadBalancer(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	m, o := f.halves()
	for range 3 {
		f.start(m)
	}
	o.Addr = "192.0.2.1:7420"
	of, turn := o.DialContext, make(chan int, 1)
	turn <- 0
	o.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
		if addr == o.Addr {
			i := <-turn
			turn <- i + 1
			addr = host(i % 3)
		}
		return of(ctx, network, addr)
	}
	r := f.connect(o)
	r.openNamespace(skep.Cache)
	keys := chainOf(1, 60)
	r.put(keys, 0, 60)
	r.whole(keys)
	require.Nil(t, r.now.Load().seedNode(r.Store))
	for i, n := range r.now.Load().owner {
		name, err := n.st.(*wire.Client).Node(t.Context())
		require.NoError(t, err)
		require.Equal(t, m.Nodes[i].Name, name)
	}
}

func TestListsOfAddresses(t *testing.T) {
	t.Parallel()
	many := make([]string, seeds.Max+1)
	for i := range many {
		many[i] = fmt.Sprintf("h:%d", i+1)
	}
	for list, says := range map[string]string{
		"":                        "addr is empty",
		",":                       `addr is ",", must be an address before and after each comma`,
		"a:1,":                    "before and after each comma",
		"a:1,,b:1":                "before and after each comma",
		"a:1, ,b:1":               "before and after each comma",
		"a:1,b:1, a:1":            `addr is "a:1" twice, must be each address once`,
		"a:1,b":                   `addr is "b", must be host:port, or unix:path`,
		"a:1,unix:":               `addr is "unix:", must be host:port, or unix:path`,
		"unix:/run/a,b/s":         "must be host:port, or unix:path without a comma: one ends an address",
		"a:1,b:0":                 `addr is "b:0"`,
		"a:1,:7":                  `addr is ":7"`,
		strings.Join(many, ","):   "addr is 65 addresses, must be at most 64",
		"unix:/nonesuch/s,,10.0:": "before and after each comma",
	} {
		_, err := Connect(wire.Options{Addr: list})
		require.ErrorIs(t, err, skep.Invalid, list)
		require.ErrorContains(t, err, says, list)
		_, err = Dial(t.Context(), wire.Options{Addr: list})
		require.ErrorIs(t, err, skep.Invalid, list)
	}
	for list, first := range map[string]string{
		strings.Join(many[1:], ","):    "h:2",
		" a:1 , b:1":                   "a:1",
		"a:1,unix:/nonesuch/s,[::1]:7": "unix:/nonesuch/s",
		"unix:/nonesuch/s":             "unix:/nonesuch/s",
	} {
		s, err := Connect(wire.Options{Addr: list})
		require.NoError(t, err, list)
		require.Equal(t, first, s.now.Load().owner[0].Addr)
		require.NoError(t, s.Close())
	}
	_, err := Connect(wire.Options{Addr: "a:1,b:1", SharedMemory: 1 << 20})
	require.ErrorIs(t, err, skep.Invalid)
	require.ErrorContains(t, err, "shared memory")
	_, err = wire.NewClient(wire.Options{Addr: "a:1,b:1"})
	require.ErrorIs(t, err, skep.Invalid)
}

// What Connect was given is let go of with the Store, whatever it waits for.
func TestClosingWhileNobodyIsThere(t *testing.T) {
	t.Parallel()
	o := patient(hosts(3))
	dialled := make(chan struct{}, 64)
	o.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
		dialled <- struct{}{}
		<-ctx.Done() // nobody says yes or no
		return nil, ctx.Err()
	}
	s, err := Connect(o)
	require.NoError(t, err)
	failed := make(chan error, 1)
	go func() {
		_, err := s.Namespaces(context.Background())
		failed <- err
	}()
	for range 3 {
		<-dialled
	}
	require.NoError(t, s.Close())
	require.ErrorIs(t, <-failed, skep.Closed)

	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	s, err = Connect(o)
	require.NoError(t, err)
	_, err = s.Namespaces(ctx)
	require.ErrorIs(t, err, skep.Deadline)
	require.NoError(t, s.Close())
}
