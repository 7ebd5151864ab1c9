package replication

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/replication/clustermap"
	"github.com/skepkv/skep/replication/placement"
	"github.com/skepkv/skep/replication/underway"
	"github.com/skepkv/skep/store/storetest"
	"github.com/skepkv/skep/tools/drawn"
)

// rig is a cluster over memstores that can be taken away, and one namespace of it.
type rig struct {
	*testing.T
	*Store
	nodes []*fallible
	table *placement.Table
	group int
	ns    skep.NamespaceInfo
}

var shape = skep.Shape{Kind: skep.Opaque, BlockTokens: 4}

func cluster(t *testing.T, n, g int) *rig {
	t.Helper()
	return clusterOf(t, three(n, g), skep.Cache)
}

func clusterOf(t *testing.T, m *clustermap.Map, class skep.Class) *rig {
	t.Helper()
	r := &rig{T: t, group: m.Group, table: placement.New(m)}
	var stores []skep.Store
	for _, st := range memstores(len(m.Nodes), storetest.Config{}) {
		r.nodes = append(r.nodes, &fallible{Store: st})
		stores = append(stores, r.nodes[len(r.nodes)-1])
	}
	var err error
	r.Store, err = New(Options{Map: m, Stores: stores})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, r.Close()) })
	r.ns, err = r.OpenNamespace(t.Context(), skep.NamespaceSpec{Tenant: "t", Name: "n", Shape: shape, Chained: true, Class: class})
	require.NoError(t, err)
	return r
}

func (r *rig) scope() skep.Scope { return skep.Scope{Namespace: r.ns.ID} }

// chainOf is a chain of n keys that no other number has.
func chainOf(number, n int) (keys []skep.Key) {
	var parent *skep.Key
	for i := range n {
		k := skep.ChainKey(parent, []uint32{uint32(number), uint32(i)})
		keys = append(keys, k)
		parent = &k
	}
	return keys
}

// node is where block i of a chain belongs, computed from the map alone.
func (r *rig) node(keys []skep.Key, i int) int {
	return r.table.Node(r.table.Slot(r.table.Space("t", "n"), keys[placement.Anchor(i, r.group)]))
}

func payload(k skep.Key) []byte { return storetest.Payload(k, skep.PartKV, 300) }

func (r *rig) request(keys []skep.Key, from, to int) *skep.PutRequest {
	q := &skep.PutRequest{Scope: r.scope()}
	if from > 0 {
		q.Parent, q.Depth = &keys[from-1], from
	}
	for _, k := range keys[from:to] {
		q.Blocks = append(q.Blocks, skep.Block{Key: k, Parts: []skep.Part{{Bytes: payload(k)}}})
	}
	return q
}

func (r *rig) put(keys []skep.Key, from, to int) []skep.PutResult {
	r.Helper()
	out, err := r.Put(r.Context(), r.request(keys, from, to))
	require.NoError(r, err)
	require.Len(r, out, to-from)
	return out
}

func (r *rig) find(keys []skep.Key, lease time.Duration) skep.LookupResult {
	r.Helper()
	out, err := r.Lookup(r.Context(), &skep.LookupRequest{Scope: r.scope(), Keys: keys, Lease: lease})
	require.NoError(r, err)
	return out
}

// restore loads a chain and gives, by block, nil or the reason it was missed; bytes are compared.
func (r *rig) restore(keys []skep.Key, lease skep.LeaseID) map[int]error {
	r.Helper()
	out := map[int]error{}
	err := skep.Load(r.Context(), r.Store, &skep.RestoreRequest{Chains: []skep.Chain{{Scope: r.scope(), Keys: keys, Lease: lease}}}, func(c *skep.Chunk) error {
		if out[c.Block] = c.Err; c.Err == nil {
			require.Equal(r, payload(keys[c.Block]), c.AppendTo(nil), "block %d", c.Block)
		}
		return nil
	})
	require.NoError(r, err)
	require.Len(r, out, len(keys))
	return out
}

// A node that is down: its blocks are misses, puts to it are declined, the rest goes on, and what it has is there
// when it is back.
func TestANodeThatIsDown(t *testing.T) {
	t.Parallel()
	r := cluster(t, 3, 4)
	const n = 80
	keys := chainOf(1, n)
	r.put(keys, 0, n)
	found := r.find(keys, time.Minute)
	require.Equal(t, n, found.Blocks)
	down := r.node(keys, 40)
	first := 0 // block of the node
	for r.node(keys, first) != down {
		first++
	}
	r.nodes[down].down.Store(true)

	require.Equal(t, first, r.find(keys, skep.NoLease).Blocks, "the prefix ends where the node's blocks begin")
	for i, err := range r.restore(keys, found.Lease.ID) {
		if r.node(keys, i) == down {
			require.ErrorIs(t, err, skep.Unavailable, "block %d", i)
			require.ErrorContains(t, err, r.now.Load().nodes[down].Name)
		} else {
			require.NoError(t, err, "block %d is promised, and its node is there", i)
		}
	}
	for i, err := range r.restore(keys, 0) {
		require.Equal(t, i < first, err == nil, "block %d: %v", i, err)
	}
	other := chainOf(2, n)
	wants, err := r.Want(t.Context(), &skep.WantRequest{Scope: r.scope(), Keys: other, Bytes: n * 300})
	require.NoError(t, err)
	for i, x := range r.put(other, 0, n) {
		if r.node(other, i) == down {
			require.Equal(t, skep.PutResult{Outcome: skep.Declined, Reason: skep.Unavailable}, x)
			require.Equal(t, skep.Want{Outcome: skep.Declined, Reason: skep.Unavailable}, wants[i])
		} else {
			require.Equal(t, skep.PutResult{Outcome: skep.Committed}, x)
			require.True(t, wants[i].Wanted)
		}
	}
	for what, err := range map[string]error{
		"flush": r.Flush(t.Context()),
		"purge": r.Purge(t.Context(), skep.Purge{Tenant: "nobody"}),
		"renew": func() error { _, err := r.Renew(t.Context(), found.Lease.ID, time.Minute); return err }(),
	} {
		require.ErrorIs(t, err, skep.Unavailable, what)
	}
	st, err := r.Stats(t.Context())
	require.NoError(t, err)
	require.Contains(t, st.State, r.now.Load().nodes[down].Name)

	r.nodes[down].down.Store(false)
	require.Equal(t, n, r.find(keys, skep.NoLease).Blocks, "what it has is there again")
	for i, x := range r.put(other, 0, n) {
		if r.node(other, i) == down {
			require.Equal(t, skep.Committed, x.Outcome)
		} else {
			require.Equal(t, skep.Exists, x.Outcome)
		}
	}
	for i, err := range r.restore(other, 0) {
		require.NoError(t, err, "block %d", i)
	}
}

// A namespace that is made while a node is away is made there with the node's first block; one that is deleted then is
// there until it is deleted again.
func TestNamespacesWhileANodeIsDown(t *testing.T) {
	t.Parallel()
	r := cluster(t, 3, 1)
	r.nodes[1].down.Store(true)
	spec := skep.NamespaceSpec{Tenant: "t", Name: "late", Shape: shape, Chained: true}
	ns, err := r.OpenNamespace(t.Context(), spec)
	require.NoError(t, err)
	r.nodes[1].down.Store(false)
	r.ns = ns
	keys := chainOf(1, 40)
	require.Zero(t, r.find(keys, skep.NoLease).Blocks)
	list, err := r.nodes[1].Namespaces(t.Context())
	require.NoError(t, err)
	require.Len(t, list, 1, "a lookup makes none")
	r.put(keys, 0, 40)
	require.Equal(t, 40, r.find(keys, skep.NoLease).Blocks)
	list, err = r.nodes[1].Namespaces(t.Context())
	require.NoError(t, err)
	require.Len(t, list, 2)

	r.nodes[2].down.Store(true)
	require.ErrorIs(t, r.DeleteNamespace(t.Context(), ns.ID), skep.Unavailable)
	r.nodes[2].down.Store(false)
	require.NoError(t, r.DeleteNamespace(t.Context(), ns.ID))
	for i, n := range r.nodes {
		list, err := n.Namespaces(t.Context())
		require.NoError(t, err)
		require.Len(t, list, 1, "node %d", i)
	}
	for _, n := range r.nodes {
		n.down.Store(true)
	}
	_, err = r.OpenNamespace(t.Context(), spec)
	require.ErrorIs(t, err, skep.Unavailable, "nobody answers")
	_, err = r.Namespaces(t.Context())
	require.ErrorIs(t, err, skep.Unavailable)
}

// A node that comes back as another, with a store that is empty or has other namespaces under the same numbers, is
// asked for its numbers again: nobody gets another namespace's blocks.
func TestANodeThatComesBackAsAnother(t *testing.T) {
	t.Parallel()
	r := cluster(t, 2, 1)
	keys := chainOf(1, 30)
	r.put(keys, 0, 30)
	found := r.find(keys, time.Minute)
	require.Equal(t, 30, found.Blocks)
	first := 0
	for r.node(keys, first) != 1 {
		first++
	}
	other := memstores(1, storetest.Config{})[0]
	ns, err := skep.OpenNamespace(t.Context(), other, skep.NamespaceSpec{Tenant: "another", Name: "n", Shape: shape, Chained: true})
	require.NoError(t, err)
	require.Equal(t, skep.NamespaceID(1), ns.ID)
	for _, k := range keys {
		_, err := ns.Put(t.Context(), []skep.Key{k}, 0, []byte("of another tenant"))
		require.NoError(t, err)
	}
	r.nodes[1].down.Store(true)
	require.Equal(t, first, r.find(keys, skep.NoLease).Blocks)
	require.NoError(t, r.nodes[1].Store.Close())
	r.nodes[1].Store = other
	r.nodes[1].down.Store(false)
	require.Equal(t, first, r.find(keys, skep.NoLease).Blocks)
	for i, err := range r.restore(keys, found.Lease.ID) { // which compares bytes
		require.Equal(t, r.node(keys, i) == 0, err == nil, "block %d: %v", i, err)
	}
	r.put(keys, 0, 30)
	require.Equal(t, 30, r.find(keys, skep.NoLease).Blocks)
	for i, err := range r.restore(keys, 0) {
		require.NoError(t, err, "block %d", i)
	}
}

// Events of a node that was away go on where they were; what nobody can know of is a gap.
func TestEventsOfANodeThatWasDown(t *testing.T) {
	t.Parallel()
	r := cluster(t, 2, 1)
	r.nodes[0].down.Store(true)
	events, err := r.Events(t.Context(), skep.Cursor{}, false)
	require.NoError(t, err)
	defer events.Close()
	r.nodes[0].down.Store(false)
	var into [1]skep.Event
	_, err = events.Next(t.Context(), into[:])
	require.NoError(t, err)
	require.Equal(t, skep.EventGap, into[0].Kind, "nobody knows what happened before")
	keys := chainOf(1, 30)
	r.put(keys, 0, 30)
	seen := map[skep.Key]bool{}
	for len(seen) < 30 {
		_, err := events.Next(t.Context(), into[:])
		require.NoError(t, err)
		require.Equal(t, skep.EventCommitted, into[0].Kind)
		seen[into[0].Key] = true
	}
}

// A node that is away when a reader asks what is stored is a gap when it is back, also where its stream of events goes on
// as if nothing had been: the reader asks again, and is told of all.
func TestWhatASnapshotMissesIsAGap(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	r := cluster(t, 2, 1)
	keys := chainOf(1, 30)
	r.put(keys, 0, 30)
	stored := func() (skep.EventStream, int) {
		st, err := r.Events(ctx, skep.Cursor{}, true)
		require.NoError(t, err)
		told, err := st.Told()
		require.NoError(t, err)
		n := 0
		for {
			within, cancel := context.WithCancel(ctx)
			go func() {
				<-told
				cancel()
			}()
			var into [16]skep.Event
			k, err := st.Next(within, into[:])
			n += k
			if err != nil {
				require.NoError(t, ctx.Err())
				return st, n
			}
		}
	}
	st, n := stored() // from here on the nodes are followed
	require.Equal(t, 30, n)
	require.NoError(t, st.Close())
	r.nodes[0].down.Store(true)
	st, n = stored()
	defer st.Close()
	require.Less(t, n, 30)
	r.nodes[0].down.Store(false)
	var into [1]skep.Event
	_, err := st.Next(ctx, into[:])
	require.NoError(t, err)
	require.Equal(t, skep.EventGap, into[0].Kind)
	again, n := stored()
	require.NoError(t, again.Close())
	require.Equal(t, 30, n)
}

// Every block's commit is told of, with its key, parent and depth in the chain, whichever node has it.
func TestCommitsAreToldOfEveryBlock(t *testing.T) {
	t.Parallel()
	r := cluster(t, 3, 4)
	events, err := r.Events(t.Context(), skep.Cursor{}, false)
	require.NoError(t, err)
	defer events.Close()
	keys := chainOf(1, 50)
	r.put(keys, 0, 50)
	at := map[skep.Key]int{}
	for i, k := range keys {
		at[k] = i
	}
	last := skep.Cursor{}
	for len(at) > 0 {
		var into [7]skep.Event
		n, err := events.Next(t.Context(), into[:])
		require.NoError(t, err)
		for _, e := range into[:n] {
			i, ok := at[e.Key]
			require.True(t, ok, "told of once")
			delete(at, e.Key)
			require.Equal(t, i, e.Depth)
			require.Equal(t, r.ns.ID, e.Namespace)
			if i > 0 {
				require.Equal(t, keys[i-1], *e.Parent)
			}
			if last != (skep.Cursor{}) {
				require.Equal(t, skep.Cursor{Epoch: last.Epoch, Seq: last.Seq + 1}, e.Cursor)
			}
			last = e.Cursor
		}
	}
}

// What is said of a cluster whose nodes come and go agrees with a model of it: a set of blocks on each node, nodes
// that are there or not, and the places that the map gives.
func TestRandomNodesFailAndReturn(t *testing.T) {
	t.Parallel()
	seed := drawn.Seed(t)
	for _, g := range []int{2, 16} {
		t.Run(fmt.Sprintf("groups of %d", g), func(t *testing.T) {
			rnd := rand.New(rand.NewPCG(seed, uint64(g)))
			r := cluster(t, 3, g)
			const chains, length = 6, 50
			var all [chains][]skep.Key
			var stored, named [chains][length]bool
			for c := range all {
				all[c] = chainOf(c, length)
			}
			up := func(c, i int) bool { return !r.nodes[r.node(all[c], i)].down.Load() }
			prefix := func(c int) (n int) {
				for n < length && stored[c][n] && up(c, n) {
					n++
				}
				return n
			}
			var log []string
			note := func(format string, args ...any) { log = append(log, fmt.Sprintf(format, args...)) }
			defer func() {
				if t.Failed() {
					for i, line := range log {
						t.Logf("%4d %s", i, line)
					}
				}
			}()
			for range 600 {
				c := rnd.IntN(chains)
				switch k := rnd.IntN(20); {
				case k < 7: // from a group's beginning, or behind a block that was named before
					from := rnd.IntN(length)
					if from > 0 && !named[c][from-1] {
						from -= from % g
					}
					to := from + 1 + rnd.IntN(length-from)
					note("put %d [%d, %d)", c, from, to)
					for j, x := range r.put(all[c], from, to) {
						i := from + j
						named[c][i] = true
						switch {
						case !up(c, i):
							require.Equal(t, skep.PutResult{Outcome: skep.Declined, Reason: skep.Unavailable}, x, "block %d", i)
						case stored[c][i]:
							require.Equal(t, skep.PutResult{Outcome: skep.Exists}, x, "block %d", i)
						default:
							require.Equal(t, skep.PutResult{Outcome: skep.Committed}, x, "block %d", i)
							stored[c][i] = true
						}
					}
				case k < 12:
					note("lookup %d", c)
					require.Equal(t, prefix(c), r.find(all[c], skep.NoLease).Blocks, "chain %d", c)
				case k < 15:
					note("restore %d", c)
					for i, err := range r.restore(all[c], 0) {
						require.Equal(t, i < prefix(c), err == nil, "block %d of chain %d: %v", i, c, err)
					}
				case k < 16: // under a promise that was given before a node failed
					found := r.find(all[c], time.Minute)
					victim := rnd.IntN(3)
					was := r.nodes[victim].down.Swap(true)
					note("lease %d of %d, without %d", c, found.Blocks, victim)
					for i, err := range r.restore(all[c][:found.Blocks], found.Lease.ID) {
						require.Equal(t, up(c, i), err == nil, "block %d of chain %d: %v", i, c, err)
						require.True(t, err == nil || errors.Is(err, skep.Unavailable), "%v", err)
					}
					r.nodes[victim].down.Store(was)
					_ = r.Release(t.Context(), found.Lease.ID)
				case k < 18:
					from := rnd.IntN(length)
					to := min(length, from+1+rnd.IntN(5))
					note("delete %d [%d, %d)", c, from, to)
					n, err := r.Delete(t.Context(), r.scope(), all[c][from:to])
					gone, missing := 0, false
					for _, x := range r.nodes {
						missing = missing || x.down.Load()
					}
					for i := from; i < to; i++ {
						if up(c, i) && stored[c][i] {
							stored[c][i] = false
							gone++
						}
					}
					require.Equal(t, gone, n)
					require.Equal(t, missing, errors.Is(err, skep.Unavailable), "%v", err)
				default:
					x := rnd.IntN(3)
					down := rnd.IntN(3) == 0
					note("node %d down %v", x, down)
					r.nodes[x].down.Store(down)
				}
			}
		})
	}
}

// A server that is killed and started again: nothing hangs, its blocks are misses meanwhile, and everything is there
// after.
func TestAServerIsKilledAndComesBack(t *testing.T) {
	t.Parallel()
	stores := memstores(3, storetest.Config{})
	f := overWire(t, 4, stores)
	defer func() { require.NoError(t, f.Close()) }()
	ns, err := f.OpenNamespace(t.Context(), skep.NamespaceSpec{Tenant: "t", Name: "n", Shape: shape, Chained: true})
	require.NoError(t, err)
	r := &rig{T: t, Store: f.Store, table: placement.New(three(3, 4)), group: 4, ns: ns}
	keys := chainOf(1, 60)
	r.put(keys, 0, 60)
	events, err := f.Events(t.Context(), skep.Cursor{}, false)
	require.NoError(t, err)
	defer events.Close()
	down := r.node(keys, 30)
	f.nodes[down].stop()
	found := r.find(keys, skep.NoLease).Blocks
	require.Less(t, found, 60)
	require.Equal(t, down, r.node(keys, found))
	other := chainOf(2, 60)
	for i, x := range r.put(other, 0, 60) {
		require.Equal(t, r.node(other, i) == down, x.Outcome == skep.Declined, "block %d: %v", i, x)
	}
	f.nodes[down] = serve(t, f.nodes[down].path, stores[down])
	storetest.Eventually(t, "the node's blocks are found again", func() bool { return r.find(keys, skep.NoLease).Blocks == 60 })
	for i, err := range r.restore(keys, 0) {
		require.NoError(t, err, "block %d", i)
	}
	r.put(other, 0, 60)
	seen := map[skep.Key]bool{}
	for len(seen) < 60 { // of every block that was put since, the node's own after a while
		var into [8]skep.Event
		n, err := events.Next(t.Context(), into[:])
		require.NoError(t, err)
		for _, e := range into[:n] {
			if e.Kind == skep.EventCommitted {
				seen[e.Key] = true
			}
		}
	}
}

// What the Store of a cluster's only node can do is not lost in front of it.
func TestWrapper(t *testing.T) {
	t.Parallel()
	storetest.Wrapper(t, memstores(1, storetest.Config{})[0], func(t *testing.T, behind skep.Store) skep.Store {
		s, err := New(Options{Map: three(1, 16), Stores: []skep.Store{behind}})
		require.NoError(t, err)
		return s
	})
}

// What has not been begun is granted to who claims it, and no node is asked for it; a session that is to be given up
// while a node does not answer says that its memory is not released.
func TestClaimsFindMostOfAChainNotBegun(t *testing.T) {
	t.Parallel()
	r := cluster(t, 2, 4)
	ns, err := r.OpenNamespace(t.Context(), skep.NamespaceSpec{Tenant: "t", Name: "large", Chained: true,
		Shape: skep.Shape{Kind: skep.Opaque, BlockTokens: 4, Bytes: 1 << 20}})
	require.NoError(t, err)
	const n = 96
	keys := chainOf(3, n)
	q := &skep.PutRequest{Scope: skep.Scope{Namespace: ns.ID}}
	block := make([]byte, 1<<20)
	for _, k := range keys {
		q.Blocks = append(q.Blocks, skep.Block{Key: k, Parts: []skep.Part{{Bytes: block}}})
	}
	_, err = r.Put(t.Context(), q)
	require.NoError(t, err)
	gate := make(chan struct{})
	for _, x := range r.nodes {
		x.gate = gate
	}
	s, err := r.Restore(t.Context(), &skep.RestoreRequest{Chains: []skep.Chain{{Scope: q.Scope, Keys: keys, Direction: skep.TailFirst}}})
	require.NoError(t, err)
	c, err := s.Claim(t.Context(), 0, skep.All, skep.Idle)
	require.NoError(t, err)
	granted := c.Granted.Len() / 4
	require.Positive(t, granted)
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, s.Stop(gone, 0), skep.NotReleased)
	close(gate)
	loaded, claimed := 0, 0
	require.NoError(t, skep.Drain(t.Context(), s, func(ch *skep.Chunk) error {
		switch {
		case errors.Is(ch.Err, skep.Claimed):
			claimed++
		case ch.Err == nil || errors.Is(ch.Err, skep.Stopped):
			loaded++
		}
		return nil
	}))
	require.NoError(t, s.Close(t.Context()))
	require.Equal(t, granted, claimed)
	require.Equal(t, n-granted, loaded)
	var asked int64
	for _, x := range r.nodes {
		asked += x.asked.Load()
	}
	require.LessOrEqual(t, asked, int64(2*underway.OfChain*workBytes>>20), "two loads of 8 MiB a node were begun")
}

// A session with a window begins no more than that, and goes on as it is given back.
func TestAWindowIsKept(t *testing.T) {
	t.Parallel()
	r := cluster(t, 3, 4)
	keys := chainOf(1, 200)
	r.put(keys, 0, 200)
	s, err := r.Restore(t.Context(), &skep.RestoreRequest{Window: 4000, Chains: []skep.Chain{{Scope: r.scope(), Keys: keys}}})
	require.NoError(t, err)
	var held []skep.Chunk
	for len(held) < 6 { // as many as one load has
		var into [1]skep.Chunk
		_, err := s.Next(t.Context(), into[:])
		require.NoError(t, err)
		require.NoError(t, into[0].Err)
		held = append(held, into[0])
	}
	var asked int64
	for _, x := range r.nodes {
		asked += x.asked.Load()
	}
	require.LessOrEqual(t, asked, int64(4000/300), "blocks that were asked for")
	for i := range held {
		held[i].Release()
	}
	n := len(held)
	require.NoError(t, skep.Drain(t.Context(), s, func(*skep.Chunk) error { n++; return nil }))
	require.Equal(t, 200, n)
	require.NoError(t, s.Close(t.Context()))
}
