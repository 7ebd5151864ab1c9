package replication

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/replication/clustermap"
	"github.com/skepkv/skep/store/memstore"
	"github.com/skepkv/skep/wire/auth"
	"github.com/skepkv/skep/wire/server"
)

// fleet is servers, nodes of a cluster whose map changes.
type fleet struct {
	*testing.T
	dir     string
	servers []*server.Server
	stores  []*memstore.Store
	silent  bool // servers do not say which node they are
}

func newFleet(t *testing.T) *fleet {
	dir, err := os.MkdirTemp("", "skep")
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	return &fleet{T: t, dir: dir}
}

// mapOf is the map of the first n nodes.
func (f *fleet) mapOf(epoch uint32, n int) *clustermap.Map {
	m := three(n, 4)
	m.Epoch = epoch
	for i := range m.Nodes {
		m.Nodes[i].Addr = "unix:" + filepath.Join(f.dir, fmt.Sprint(i))
	}
	return m
}

func (f *fleet) encode(m *clustermap.Map) []byte {
	b, err := m.Encode()
	require.NoError(f, err)
	return b
}

// start starts the next node, which has the map, and gives what stops it.
func (f *fleet) start(m *clustermap.Map) (stop func()) {
	f.Helper()
	st := memstore.New(memstore.Options{})
	f.Cleanup(func() { assert.NoError(f, st.Close()) })
	return f.serve(st, f.as(m, len(f.servers)))
}

// as are options of a server that is node i of a map.
func (f *fleet) as(m *clustermap.Map, i int) server.Options {
	o := server.Options{ClusterMap: f.encode(m), Epoch: m.Epoch}
	if !f.silent {
		o.Node, o.Cluster, o.NodeID = m.Nodes[i].Name, m.Seed.String(), m.Nodes[i].ID
	}
	return o
}

// serve starts the next server, of a Store.
func (f *fleet) serve(st *memstore.Store, o server.Options) (stop func()) {
	f.Helper()
	srv, stop := f.serveAt(len(f.servers), st, o)
	f.servers, f.stores = append(f.servers, srv), append(f.stores, st)
	return stop
}

// serveAt starts a server at an address that there was one at before, or the next.
func (f *fleet) serveAt(i int, st *memstore.Store, o server.Options) (srv *server.Server, stop func()) {
	f.Helper()
	h, err := auth.TokenHash(operator)
	require.NoError(f, err)
	o.Auth, err = auth.New([]auth.Credential{{Name: "operator", Tenant: auth.AnyTenant, Rights: auth.All, TokenSHA256: h}}, nil, nil)
	require.NoError(f, err)
	o.Drain = time.Second
	srv, err = server.New(st, o)
	require.NoError(f, err)
	l, err := net.Listen("unix", filepath.Join(f.dir, fmt.Sprint(i)))
	require.NoError(f, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- srv.Serve(ctx, l) }()
	stop = sync.OnceFunc(func() {
		cancel()
		assert.NoError(f, <-done)
	})
	f.Cleanup(stop)
	return srv, stop
}

// tell gives nodes a newer map.
func (f *fleet) tell(m *clustermap.Map, nodes ...int) {
	f.Helper()
	for _, i := range nodes {
		require.NoError(f, f.servers[i].SetCluster(f.encode(m), m.Epoch, 0))
	}
}

func (f *fleet) dial() *rig {
	f.Helper()
	s, err := Dial(f.Context(), patient("unix:"+filepath.Join(f.dir, "0")))
	require.NoError(f, err)
	f.Cleanup(func() { assert.NoError(f, s.Close()) })
	r := &rig{T: f.T, Store: s}
	r.openNamespace(skep.Cache)
	return r
}

// whole requires that all of a chain is found, and comes with its bytes.
func (r *rig) whole(keys []skep.Key) {
	r.Helper()
	require.Equal(r, len(keys), r.find(keys, skep.NoLease).Blocks)
	for i, err := range r.restore(keys, 0) {
		require.NoError(r, err, "block %d", i)
	}
}

// A node is added while a client is there: the client learns the map by its next call, finds some of what it had put,
// puts the rest again, and what it deletes is deleted on the new node, too. It keeps its namespaces' numbers.
func TestAClientLearnsOfANode(t *testing.T) {
	t.Parallel()
	for _, before := range []int{1, 2} {
		f := newFleet(t)
		for range before {
			f.start(f.mapOf(1, before))
		}
		r := f.dial()
		const chains, n = 12, 40
		for c := range chains {
			r.put(chainOf(c, n), 0, n)
			r.whole(chainOf(c, n))
		}
		lease := r.find(chainOf(0, n), time.Minute).Lease
		require.NotZero(t, lease.ID)
		next := f.mapOf(2, before+1)
		f.start(next)
		for i := range before {
			f.tell(next, i)
		}
		moved := 0
		for c := range chains {
			keys := chainOf(c, n)
			found := r.find(keys, skep.NoLease).Blocks
			for i, err := range r.restore(keys, 0) { // bytes are compared
				if i < found { // others may be found where they were
					require.NoError(t, err, "block %d", i)
				}
			}
			moved += n - found
		}
		for i, err := range r.restore(chainOf(0, n), lease.ID) {
			if before > 1 {
				require.NoError(t, err, "block %d is leased where it was", i)
			}
		}
		if before == 1 { // what was a chain on the only node is hidden behind its first group
			require.NoError(t, r.Purge(t.Context(), skep.Purge{Namespace: r.ns.ID}))
		}
		for c := range chains {
			keys := chainOf(c, n)
			if found := r.find(keys, skep.NoLease).Blocks; found < n {
				r.put(keys, found, n)
			}
			r.whole(keys)
		}
		require.Positive(t, moved, "the new node has a share")
		require.EqualValues(t, 2, r.now.Load().of.Epoch)
		st, err := f.stores[before].Stats(t.Context())
		require.NoError(t, err)
		require.Positive(t, st.Blocks)
		fresh := f.dial()
		for c := range chains {
			fresh.whole(chainOf(c, n))
		}
		got, err := r.Delete(t.Context(), r.scope(), chainOf(0, n))
		require.NoError(t, err)
		require.Equal(t, n, got)
		require.Zero(t, fresh.find(chainOf(0, n), skep.NoLease).Blocks)
	}
}

// Maps that follow each other while a call is made again do not fail it.
func TestMapsFollowEachOtherWithinACall(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	f.start(f.mapOf(1, 1))
	r := f.dial()
	var by []uint32
	err := act(t.Context(), r.Store, func(ctx context.Context, _ skep.Store) error {
		epoch := uint32(len(by) + 1)
		by = append(by, r.now.Load().of.Epoch)
		if epoch == 4 {
			return nil
		}
		f.tell(f.mapOf(epoch+1, 1), 0)
		return &skep.Error{Op: "call", Kind: skep.StaleMap}
	})
	require.NoError(t, err)
	require.Equal(t, []uint32{1, 2, 3, 4}, by)
}

// While some nodes have the newer map and others do not, blocks of those are missed, and found when they have it.
func TestNodesLearnOfAMapOneAfterAnother(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	for range 3 {
		f.start(f.mapOf(1, 3))
	}
	r := f.dial()
	const chains, n = 12, 40
	for c := range chains {
		r.put(chainOf(c, n), 0, n)
	}
	next := f.mapOf(2, 3) // the same places
	f.tell(next, 1)
	less := 0
	for c := range chains {
		keys := chainOf(c, n)
		found := r.find(keys, skep.NoLease).Blocks
		less += n - found
		for i, err := range r.restore(keys, 0) {
			require.Equal(t, i < found, err == nil, "block %d: %v", i, err)
		}
		for i, x := range r.put(keys, 0, n) {
			if x.Outcome == skep.Declined {
				require.Equal(t, skep.Unavailable, x.Reason, "block %d", i)
			}
		}
	}
	require.Positive(t, less)
	require.EqualValues(t, 2, r.now.Load().of.Epoch)
	_, err := r.Delete(t.Context(), r.scope(), chainOf(100, 1))
	require.ErrorIs(t, err, skep.Unavailable)
	f.tell(next, 0, 2)
	for c := range chains {
		r.whole(chainOf(c, n))
	}
}

// What a put has stored on some nodes before another said that its map is newer is told as stored, and the rest is stored
// by the newer map.
func TestAPutThatLearnsOfAMapTellsWhatItStored(t *testing.T) {
	t.Parallel()
	r := cluster(t, 3, 4)
	next := three(3, 4)
	next.Epoch = r.now.Load().of.Epoch + 1
	text, err := next.Encode()
	require.NoError(t, err)
	keys := r.spread(40, 20)
	last := r.nodes[r.node(keys, 0)]
	last.newer, last.stale = text, 1
	for i, x := range r.put(keys, 0, 40) {
		require.Equal(t, skep.PutResult{Outcome: skep.Committed}, x, "block %d", i)
	}
	require.Equal(t, next.Epoch, r.now.Load().of.Epoch)
	r.whole(keys)
}

// Callers go on while nodes come: there are misses, and never a wrong byte nor an error that is not of a node that is
// being told.
func TestCallsWhileNodesCome(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	f.start(f.mapOf(1, 1))
	r := f.dial()
	stop := make(chan struct{})
	var wait sync.WaitGroup
	var wrong sync.Map
	for c := range 4 {
		wait.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				keys := chainOf(100*c+i%5, 30)
				if _, err := r.Put(t.Context(), r.request(keys, 0, 30)); err != nil && skep.KindOf(err) != skep.Unavailable {
					wrong.Store(err.Error(), true)
				}
				err := skep.Load(t.Context(), r.Store, &skep.RestoreRequest{Chains: []skep.Chain{{Scope: r.scope(), Keys: keys}}}, func(ch *skep.Chunk) error {
					if ch.Err == nil && string(ch.AppendTo(nil)) != string(payload(keys[ch.Block])) {
						wrong.Store("other bytes", true)
					}
					return nil
				})
				if err != nil && skep.KindOf(err) != skep.Unavailable {
					wrong.Store(err.Error(), true)
				}
			}
		})
	}
	for n := 2; n <= 4; n++ {
		m := f.mapOf(uint32(n), n)
		f.start(m)
		for i := range n - 1 {
			f.tell(m, i)
		}
		keys := chainOf(1000+n, 40)
		r.put(keys, 0, 40)
		r.whole(keys)
	}
	close(stop)
	wait.Wait()
	wrong.Range(func(what, _ any) bool { t.Error(what); return true })
	require.EqualValues(t, 4, r.now.Load().of.Epoch)
}

// A map of another seed or group, or one that a Store has no way to follow, is not followed: calls say that the nodes are
// not there by the map that there is.
func TestAMapThatCannotBeFollowed(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	f.start(f.mapOf(1, 1))
	r := f.dial()
	keys := chainOf(1, 8)
	r.put(keys, 0, 8)
	other := f.mapOf(2, 1)
	other.Seed[3]++
	f.tell(other, 0)
	_, err := r.Lookup(t.Context(), &skep.LookupRequest{Scope: r.scope(), Keys: keys})
	require.ErrorIs(t, err, skep.Unavailable)
	require.ErrorIs(t, err, skep.StaleMap)
	f.tell(f.mapOf(3, 1), 0)
	r.whole(keys)
}
