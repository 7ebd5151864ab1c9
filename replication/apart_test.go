package replication

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/replication/clustermap"
)

// oneOfTwo is twice, where one of the two nodes is enough.
func oneOfTwo(n, g int) *clustermap.Map {
	m := twice(n, g)
	m.Acks = 1
	return m
}

// pair is the two nodes of a chain's first group.
func (r *rig) pair(keys []skep.Key) (a, b int) {
	a = r.node(keys, 0)
	for b = 0; b == a || !r.has(b, keys, 0); b++ {
	}
	return a, b
}

// on says whether a node has a block, found or not.
func (r *rig) on(node int, k skep.Key) bool {
	r.Helper()
	list, err := r.nodes[node].Store.Want(r.Context(),
		&skep.WantRequest{Scope: skep.Scope{Namespace: 1}, Keys: []skep.Key{k}})
	require.NoError(r, err)
	return list[0].Outcome == skep.Exists
}

// orphaned has node b have blocks 2 and 3 of a chain, and not those before them, which node a has.
func (r *rig) orphaned(keys []skep.Key) (a, b int) {
	r.Helper()
	a, b = r.pair(keys)
	r.nodes[b].down.Store(true)
	for _, x := range r.put(keys, 0, 2) {
		require.Equal(r, skep.Committed, x.Outcome)
	}
	r.nodes[b].down.Store(false)
	for _, x := range r.put(keys, 2, 4) {
		require.Equal(r, skep.Committed, x.Outcome)
	}
	require.True(r, r.on(b, keys[3]))
	require.False(r, r.on(b, keys[1]))
	return a, b
}

// A node that has what a durable block goes on with, and lacks something before that, is not enough: the block would be
// acknowledged, and not found. So it is where the other node is said to be down, and where it does not answer; for who
// put the chain, and for who names it.
func TestADurableBlockGoesOnWithAWholeChain(t *testing.T) {
	t.Parallel()
	for way, put := range ways {
		for _, fresh := range []bool{false, true} {
			t.Run(fmt.Sprint(way, fresh), func(t *testing.T) {
				t.Parallel()
				x := fencedCrew(t, oneOfTwo(3, 8), skep.Durable)
				keys := chainOf(0, 6)
				a, b := x.orphaned(keys)
				x.kill(a)
				if fresh {
					x.Store = x.client()
					x.open("n", skep.Durable, true)
				}
				require.Equal(t, skep.Unavailable, put(x, keys, 4, 6))
				require.False(t, x.on(b, keys[4]))
				x.comeBack(a)
				require.Zero(t, put(x, keys, 4, 6))
				require.Equal(t, 6, x.find(keys, skep.NoLease).Blocks)
			})
		}
	}
	r := clusterOf(t, oneOfTwo(3, 8), skep.Durable)
	keys := chainOf(1, 6)
	a, b := r.orphaned(keys)
	r.nodes[a].down.Store(true)
	require.Equal(t, []skep.PutResult{{Reason: skep.Unavailable}}, r.put(keys, 4, 5))
	out, err := r.begins(keys, 5).Commit(t.Context(), skep.AckCommitted)
	require.NoError(t, err)
	require.Equal(t, skep.PutResult{Reason: skep.Unavailable}, out)
	_, err = r.nodes[b].Store.Delete(t.Context(), skep.Scope{Namespace: 1}, keys[4:])
	require.NoError(t, err)
	r.nodes[a].down.Store(false)
	for _, x := range r.put(keys, 4, 6) {
		require.NotEqual(t, skep.Declined, x.Outcome)
	}
	require.Equal(t, 6, r.find(keys, skep.NoLease).Blocks)
}

// beginning begins block i of a chain.
func (r *rig) beginning(keys []skep.Key, i int) *skep.BeginRequest {
	q := &skep.BeginRequest{Scope: r.scope(), Depth: i, Key: keys[i],
		Manifest: skep.Manifest{{Name: skep.PartKV, Size: 300}}}
	if i > 0 {
		q.Parent, q.Ancestors = &keys[i-1], keys[:i-1]
	}
	return q
}

// begins begins block i of a chain, and writes it.
func (r *rig) begins(keys []skep.Key, i int) skep.BlockWriter {
	r.Helper()
	w, err := r.Begin(r.Context(), r.beginning(keys, i))
	require.NoError(r, err, i)
	require.NoError(r, w.Write(r.Context(), skep.PartKV, 0, payload(keys[i])))
	return w
}

// A node whose map is newer is no node that may have the chain: the put is made by that map. One that takes no changes
// does not say what it has, and another one that has the chain takes what goes on with it.
func TestWhoDoesNotSayWhetherItHasAChain(t *testing.T) {
	t.Parallel()
	keys := chainOf(1, 4)
	synctest.Test(t, func(t *testing.T) { // the newer map is waited for
		r := clusterOf(t, oneOfTwo(3, 4), skep.Durable)
		r.put(keys, 0, 2)
		a, _ := r.pair(keys)
		r.nodes[a].noRoom, r.nodes[a].mute = skep.Full, skep.StaleMap
		_, err := r.Put(t.Context(), r.request(keys, 2, 3))
		require.ErrorContains(t, err, "map of epoch")
	})

	x := fencedCrew(t, oneOfTwo(3, 4), skep.Durable)
	x.put(keys, 0, 2)
	a, b := x.pair(keys)
	x.kill(3 - a - b)
	x.nodes[a].noRoom, x.nodes[a].mute = skep.ReadOnly, skep.ReadOnly
	require.Equal(t, skep.Committed, x.put(keys, 2, 3)[0].Outcome)
	_, err := x.nodes[b].Store.Delete(t.Context(), skep.Scope{Namespace: 1}, keys[:1])
	require.NoError(t, err)
	require.Equal(t, []skep.PutResult{{Reason: skep.ReadOnly}}, x.put(keys, 3, 4))
}

// reopened is a Store of the nodes by another map, which knows nothing yet.
func (r *rig) reopened(m *clustermap.Map) *rig {
	r.Helper()
	x := &rig{T: r.T, group: r.group, table: r.table, nodes: r.nodes}
	var stores []skep.Store
	for i := range m.Nodes {
		stores = append(stores, &fallible{Store: r.nodes[i], open: true})
	}
	var err error
	x.Store, err = New(Options{Map: m, Stores: stores})
	require.NoError(r, err)
	r.Cleanup(func() { assert.NoError(r, x.Close()) })
	x.ns, err = x.OpenNamespace(r.Context(), r.ns.NamespaceSpec)
	require.NoError(r, err)
	return x
}

// Where a group ends with blocks that are placed by their own keys, what one node lacks of the groups behind it is found
// at another one.
func TestWhatIsBehindLooseBlocksIsFoundElsewhere(t *testing.T) {
	t.Parallel()
	const n = 16
	for lacks := range 3 {
		r := clusterOf(t, twice(3, 4), skep.Cache)
		keys := chainOf(1, n)
		r.put(keys, 0, 2)
		r.reopened(twice(3, 4)).put(keys, 2, 4)
		r.put(keys, 4, n)
		require.Equal(t, n, r.find(keys, skep.NoLease).Blocks)
		_, err := r.nodes[lacks].Store.Delete(t.Context(), skep.Scope{Namespace: 1}, keys[4:])
		require.NoError(t, err)
		require.Equal(t, n, r.find(keys, skep.NoLease).Blocks, "node %d lacks some", lacks)
		found := r.find(keys, time.Minute)
		require.Equal(t, n, found.Blocks)
		for i, err := range r.restore(keys, found.Lease.ID) {
			require.NoError(t, err, "block %d", i)
		}
	}
}

// A salted block that is where an earlier map had it is wanted, since no repair brings it to where it is found; chains of
// one block are not, of which a call names several, nor is one that was put by who did not know its group.
func TestSaltedStraysAreWanted(t *testing.T) {
	t.Parallel()
	const n = 64
	r := clusterOf(t, three(3, 4), skep.Cache)
	before, now := three(2, 4), three(3, 4)
	before.Epoch, now.Epoch = 1, 2
	old, fresh := r.reopened(before), r.reopened(now)
	keys, ones := chainOf(1, n), chainOf(2, n)
	put := func(x *rig, keys []skep.Key, from, to int, each bool) {
		q := x.request(keys, from, to)
		q.Salt, q.Each = "s", each
		_, err := x.Put(t.Context(), q)
		require.NoError(t, err)
	}
	wanted := func(x *rig, keys []skep.Key) (out []int) {
		list, err := x.Want(t.Context(),
			&skep.WantRequest{Scope: skep.Scope{Namespace: x.ns.ID, Salt: "s"}, Keys: keys})
		require.NoError(t, err)
		for i, w := range list {
			if w.Wanted {
				out = append(out, i)
			}
		}
		return out
	}
	find := func(x *rig) int {
		out, err := x.Lookup(t.Context(), &skep.LookupRequest{Scope: skep.Scope{Namespace: x.ns.ID, Salt: "s"}, Keys: keys})
		require.NoError(t, err)
		return out.Blocks
	}
	put(old, keys, 0, n, false)
	require.Empty(t, wanted(old, keys))
	require.Less(t, find(fresh), n)
	strays := wanted(fresh, keys)
	require.NotEmpty(t, strays)
	for _, i := range strays {
		require.True(t, slices.Contains(strays, i-i%4), "a group moves as a whole")
		put(fresh, keys, i, i+1, false)
	}
	require.Equal(t, n, find(fresh))
	require.Empty(t, wanted(fresh, keys))

	put(fresh, ones, 0, n, true)
	require.Empty(t, wanted(r.reopened(now), ones))
	loose := chainOf(3, n)
	put(fresh, loose, 0, 2, false)
	put(r.reopened(now), loose, 2, 4, false)
	require.Empty(t, wanted(r.reopened(now), loose[:4]))
}
