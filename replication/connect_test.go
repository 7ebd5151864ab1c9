package replication

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/replication/clustermap"
	"github.com/skepkv/skep/store/memstore"
	"github.com/skepkv/skep/store/storetest"
	"github.com/skepkv/skep/wire"
	"github.com/skepkv/skep/wire/server"
)

// patient are options whose timeouts no test runs into.
func patient(addr string) wire.Options {
	return wire.Options{Addr: addr, Token: operator, Timeout: time.Minute, Patience: time.Minute, Silence: time.Minute}
}

// connect makes a Store by an address, and a namespace there.
func (f *fleet) connect(o wire.Options) *rig {
	f.Helper()
	s, err := Connect(o)
	require.NoError(f, err)
	f.Cleanup(func() { assert.NoError(f, s.Close()) })
	return &rig{T: f.T, Store: s}
}

func (r *rig) openNamespace(class skep.Class) {
	r.Helper()
	var err error
	r.ns, err = r.OpenNamespace(r.Context(), skep.NamespaceSpec{Tenant: "t", Name: "n", Shape: shape, Chained: true, Class: class})
	require.NoError(r, err)
}

// nearby is another path of the first node's socket: an address that the map does not have.
func (f *fleet) nearby() string {
	f.Helper()
	path := filepath.Join(f.dir, "near")
	require.NoError(f, os.Symlink(filepath.Join(f.dir, "0"), path))
	return "unix:" + path
}

// blocks is how many blocks each node has.
func (f *fleet) blocks() (out []int64) {
	f.Helper()
	for _, st := range f.stores {
		s, err := st.Stats(f.Context())
		require.NoError(f, err)
		out = append(out, s.Blocks)
	}
	return out
}

// One address is enough: the first call finds the whole cluster. The server at the address is the node that it says it
// is, whatever address the map has for it, and memory is shared with it.
func TestOneAddressReachesTheCluster(t *testing.T) {
	t.Parallel()
	for _, silent := range []bool{false, true} { // true: servers of the version before
		t.Run(fmt.Sprintf("silent=%v", silent), func(t *testing.T) {
			t.Parallel()
			f := newFleet(t)
			f.silent = silent
			for range 3 {
				f.start(f.mapOf(1, 3))
			}
			o := patient(f.nearby())
			o.SharedMemory = 8 << 20
			r := f.connect(o)
			r.openNamespace(skep.Cache)
			const n = 60
			keys := chainOf(1, n)
			r.put(keys, 0, n)
			r.whole(keys)
			sum := int64(0)
			for i, b := range f.blocks() {
				require.Positive(t, b, "node %d", i)
				sum += b
			}
			require.EqualValues(t, n, sum)
			require.Equal(t, 1, f.servers[0].Stats().Regions)
			require.Equal(t, !silent, r.now.Load().seedNode(r.Store) != nil)

			mem, err := r.Alloc(t.Context(), n*4096)
			require.NoError(t, err)
			defer mem.Release()
			require.True(t, r.Client().Shares(mem.Bytes()))
			sent := f.servers[0].Stats().SentBytes
			err = skep.Load(t.Context(), r.Store, &skep.RestoreRequest{Chains: []skep.Chain{{Scope: r.scope(), Keys: keys,
				Dest: skep.Destination{Memory: mem.Bytes(), Stride: 4096}}}}, func(c *skep.Chunk) error { return c.Err })
			require.NoError(t, err)
			for i, k := range keys {
				require.Equal(t, payload(k), mem.Bytes()[4096*i:][:300])
			}
			require.Equal(t, silent, f.servers[0].Stats().SentBytes > sent, "the first node's blocks pass the socket")

			got, err := r.Delete(t.Context(), r.scope(), keys)
			require.NoError(t, err)
			require.Equal(t, n, got)
			require.Equal(t, []int64{0, 0, 0}, f.blocks())
		})
	}
}

// A name may be several nodes', as that of a headless Service is: one that is away is passed over, and connections that
// go now to this node, now to that one mix nothing up.
func TestANameOfSeveralNodes(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	m := f.mapOf(1, 3)
	m.Replicas = 2
	var stops []func()
	for range 3 {
		stops = append(stops, f.start(m))
	}
	var turn atomic.Int64
	o := patient("skep.test:7420")
	o.DialContext = func(ctx context.Context, network, addr string) (c net.Conn, err error) {
		var d net.Dialer
		if addr != o.Addr {
			return d.DialContext(ctx, network, addr)
		}
		for range 3 { // as net.Dialer does with the addresses of a name
			i := turn.Add(1) % 3
			if c, err = d.DialContext(ctx, "unix", filepath.Join(f.dir, fmt.Sprint(i))); err == nil {
				break
			}
		}
		return c, err
	}
	r := f.connect(o)
	r.openNamespace(skep.Cache)
	keys := chainOf(1, 60)
	var wait sync.WaitGroup
	for range 8 { // of one name, on several connections
		wait.Go(func() {
			for range 20 {
				_, err := r.Lookup(t.Context(), &skep.LookupRequest{Scope: r.scope(), Keys: keys})
				assert.NoError(t, err)
			}
		})
	}
	wait.Wait()
	for i, x := range r.put(keys, 0, 60) {
		require.Equal(t, skep.PutResult{Outcome: skep.Committed}, x, "block %d", i)
	}
	r.whole(keys)
	for i, n := range r.now.Load().owner {
		require.NotSame(t, r.Client(), n.st, "node %d is spoken to at its own address", i)
		hi, err := n.st.(*wire.Client).Node(t.Context())
		require.NoError(t, err)
		require.Equal(t, m.Nodes[i].Name, hi)
	}
	stops[1]()
	turn.Store(0) // the next is the node that is away
	fresh := f.connect(o)
	fresh.openNamespace(skep.Cache)
	fresh.whole(keys)
}

// A server that is not there yet is a miss; once it is, its cluster is found. So is a node that is lost then: with
// replicas nothing is missed, though the options forgive.
func TestTheClusterIsFoundWhenItIsThere(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	m := f.mapOf(1, 3)
	m.Replicas = 2
	o := wire.Options{Addr: f.nearby(), Token: operator, Patience: time.Minute, Silence: time.Minute}
	r := f.connect(o)
	_, err := r.OpenNamespace(t.Context(), skep.NamespaceSpec{Tenant: "t", Name: "n", Shape: shape, Chained: true})
	require.ErrorIs(t, err, skep.Unavailable)
	found, err := r.Lookup(t.Context(), &skep.LookupRequest{Scope: skep.Scope{Namespace: 1}, Keys: chainOf(1, 3)})
	require.NoError(t, err)
	require.Zero(t, found.Blocks)
	mem, err := r.Alloc(t.Context(), 4096) // memory needs no server
	require.NoError(t, err)
	mem.Release()

	stopFirst := f.start(m)
	f.start(m)
	stop := f.start(m)
	require.Eventually(t, func() bool {
		_, err := r.OpenNamespace(t.Context(), skep.NamespaceSpec{Tenant: "t", Name: "n", Shape: shape, Chained: true})
		return err == nil
	}, time.Minute, 10*time.Millisecond)
	r.openNamespace(skep.Cache)
	keys := chainOf(1, 60)
	for i, x := range r.put(keys, 0, 60) {
		require.Equal(t, skep.PutResult{Outcome: skep.Committed}, x, "block %d", i)
	}
	require.EqualValues(t, 120, f.blocks()[0]+f.blocks()[1]+f.blocks()[2])
	stop()
	r.whole(keys)
	s, err := Connect(o)
	require.NoError(t, err)
	defer s.Close()
	fresh := &rig{T: t, Store: s}
	fresh.openNamespace(skep.Cache)
	fresh.whole(keys)

	stopFirst() // the Store hears that a node is away, and goes to another one
	_, err = r.Client().Lookup(t.Context(), &skep.LookupRequest{Scope: skep.Scope{Namespace: 1}, Keys: keys})
	require.ErrorIs(t, err, skep.Unavailable)
}

// A server of no cluster is all there is, and what it has every caller of its Store has: numbers of namespaces, listing
// of keys, rows beside blocks.
func TestAServerOfNoCluster(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	st := memstore.New(memstore.Options{})
	t.Cleanup(func() { assert.NoError(t, st.Close()) })
	f.serve(st, server.Options{})
	r := f.connect(patient(f.nearby()))
	r.openNamespace(skep.Cache)
	keys := chainOf(1, 40)
	r.put(keys, 0, 40)
	r.whole(keys)
	n, err := r.CountBlocks(t.Context(), r.ns.ID)
	require.NoError(t, err)
	require.EqualValues(t, 40, n)
	_, err = Dial(t.Context(), patient("unix:"+filepath.Join(f.dir, "0")))
	require.ErrorIs(t, err, skep.Unsupported)
}

// A server that is made a node of a cluster while a client is there: the client goes on with the cluster, and with the
// numbers of namespaces that it has.
func TestAServerBecomesANode(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	st := memstore.New(memstore.Options{})
	t.Cleanup(func() { assert.NoError(t, st.Close()) })
	for i := range 3 { // the numbers are not those that the Store would give itself
		_, err := st.OpenNamespace(t.Context(), skep.NamespaceSpec{Tenant: "t", Name: fmt.Sprint(i), Shape: shape})
		require.NoError(t, err)
	}
	stop := f.serve(st, server.Options{})
	r := f.connect(patient(f.nearby()))
	r.openNamespace(skep.Cache)
	number := r.ns.ID
	keys := chainOf(1, 4)
	r.put(keys, 0, 4)

	stop()
	f.servers, f.stores = nil, nil
	m := f.mapOf(1, 2)
	f.serve(st, server.Options{ClusterMap: f.encode(m), Epoch: 1, Node: m.Nodes[0].Name})
	f.start(m)
	for c := range 8 {
		q := r.request(chainOf(10+c, 40), 0, 40)
		storetest.Eventually(t, "a client that has not noticed yet that its connections are gone puts again", func() bool {
			out, err := r.Put(t.Context(), q)
			return err == nil && !slices.ContainsFunc(out, func(p skep.PutResult) bool { return p.Outcome == skep.Declined })
		})
		r.whole(chainOf(10+c, 40))
	}
	require.Positive(t, f.blocks()[1])
	r.openNamespace(skep.Cache)
	require.Equal(t, number, r.ns.ID)
}

// overAddress is a cluster, or with one Store a server of none, that is connected to by one address, which closes
// what is behind it, too.
func overAddress(t *testing.T, m *clustermap.Map, stores []skep.Store) *far {
	f := newFleet(t)
	out := &far{}
	for i, st := range stores {
		var o server.Options
		if m != nil {
			for i := range m.Nodes {
				m.Nodes[i].Addr = "unix:" + filepath.Join(f.dir, fmt.Sprint(i))
			}
			o = server.Options{ClusterMap: f.encode(m), Epoch: 1, Node: m.Nodes[i].Name}
		}
		out.nodes = append(out.nodes, &served{st: st, stop: f.serve(st.(*memstore.Store), o)})
	}
	o := patient(f.nearby())
	o.Strict, o.SharedMemory = true, 8<<20
	var err error
	out.Store, err = Connect(o)
	require.NoError(t, err)
	return out
}

func TestContractOfAConnectedCluster(t *testing.T) {
	t.Parallel()
	storetest.Test(t, func(t *testing.T, c storetest.Config) skep.Store {
		lacks(t, c)
		return overAddress(t, three(3, 4), memstores(3, c))
	})
}

func TestContractOfAConnectedServer(t *testing.T) {
	t.Parallel()
	storetest.Test(t, func(t *testing.T, c storetest.Config) skep.Store { return overAddress(t, nil, memstores(1, c)) })
}
