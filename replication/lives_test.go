package replication

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/replication/clustermap"
	"github.com/skepkv/skep/replication/placement"
	"github.com/skepkv/skep/store/memstore"
	"github.com/skepkv/skep/store/storetest"
	"github.com/skepkv/skep/wire/server"
)

// A node comes back with another store while no call is under way, and there the number of a namespace is another
// tenant's. Nobody reads that tenant's blocks or writes to it: the namespace is made anew, and found again.
func TestANodeThatComesBackWithAnotherStore(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	m := f.mapOf(1, 2)
	f.start(m)
	stop := f.start(m)
	r := f.dial()
	keys := chainOf(1, 200)
	r.put(keys, 0, 200)
	r.whole(keys)
	events, err := r.Events(t.Context(), skep.Cursor{}, false)
	require.NoError(t, err)
	defer events.Close()

	stop()
	other := memstore.New(memstore.Options{})
	defer func() { assert.NoError(t, other.Close()) }()
	spec := skep.NamespaceSpec{Tenant: "other", Name: "n", Shape: shape, Chained: true}
	ns, err := other.OpenNamespace(t.Context(), spec)
	require.NoError(t, err)
	require.Equal(t, skep.NamespaceID(1), ns.ID, "as the first namespace of every store")
	put := func(i int) { // the other tenant has blocks of the same keys
		_, err := other.Put(t.Context(), &skep.PutRequest{Scope: skep.Scope{Namespace: ns.ID},
			Blocks: []skep.Block{{Key: keys[i], Parts: []skep.Part{{Bytes: []byte("of the other tenant")}}}}})
		require.NoError(t, err)
	}
	theirs := int64(0)
	table := placement.New(m)
	for i := 0; i < 200; i += 4 {
		if table.Node(table.Slot(table.Space("t", "n"), keys[i])) == 1 {
			put(i)
			theirs++
		}
	}
	_, stop = f.serveAt(1, other, server.Options{ClusterMap: f.encode(m), Epoch: 1, Node: "b"})
	defer stop()

	r.restore(keys, 0) // which compares bytes
	for _, x := range r.put(keys, 0, 200) {
		require.NotEqual(t, skep.Declined, x.Outcome)
	}
	r.whole(keys)
	n, err := other.CountBlocks(t.Context(), ns.ID)
	require.NoError(t, err)
	require.Equal(t, theirs, n, "nothing was put there")
	var into [256]skep.Event
	for gap := false; !gap; { // what the other store told of since is no event of this namespace
		n, err := events.Next(t.Context(), into[:])
		require.NoError(t, err)
		for _, e := range into[:n] {
			gap = gap || e.Kind == skep.EventGap
		}
	}
	require.NoError(t, r.DeleteNamespace(t.Context(), r.ns.ID))
	list, err := other.Namespaces(t.Context())
	require.NoError(t, err)
	require.Equal(t, []skep.NamespaceInfo{ns}, list)
}

// A node that was taken out of the map and stopped is asked for nothing.
func TestANodeThatIsGoneIsAskedForNothing(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	f.start(f.mapOf(1, 3))
	f.start(f.mapOf(1, 3))
	stop := f.start(f.mapOf(1, 3))
	r := f.dial()
	keys := chainOf(1, 40)
	r.put(keys, 0, 40)
	f.tell(f.mapOf(2, 2), 0, 1) // without c
	r.find(keys, skep.NoLease)  // it learns
	require.EqualValues(t, 2, r.Map().Epoch)
	stop()
	_, err := r.Delete(t.Context(), r.scope(), keys)
	require.NoError(t, err)
	require.NoError(t, r.Flush(t.Context()))
	require.NoError(t, r.Purge(t.Context(), skep.Purge{Namespace: r.ns.ID}))
	st, err := r.Stats(t.Context())
	require.NoError(t, err)
	require.Equal(t, "ok", st.State)
	_, err = r.OpenNamespace(t.Context(), r.ns.NamespaceSpec)
	require.NoError(t, err)
	require.NoError(t, r.DeleteNamespace(t.Context(), r.ns.ID))
}

// Of two nodes one is left. Its chains are in groups, and stay so: a client that was there before, and one that comes
// then, find what each of them put.
func TestAClusterOfOneThatHadTwo(t *testing.T) {
	t.Parallel()
	m := twice(2, 4)
	m.Epoch = 1
	c := crewOf(t, m, skep.Durable, storetest.Config{})
	keys, more := chainOf(1, 40), chainOf(2, 40)
	for _, x := range c.put(keys, 0, 40) {
		require.Equal(t, skep.Committed, x.Outcome)
	}
	next := *m
	next.Epoch, next.Nodes = 2, m.Nodes[:1]
	require.ErrorContains(t, c.Follow(t.Context(), &next), "grouped is false, must be true")
	next.Grouped = true
	require.NoError(t, c.Follow(t.Context(), &next))
	late := &rig{T: t, Store: c.client(&next), group: 4}
	late.openNamespace(skep.Durable)
	late.put(more, 0, 40)
	for _, r := range []*rig{c.rig, late} {
		require.Equal(t, 40, r.find(keys, skep.NoLease).Blocks)
		require.Equal(t, 40, r.find(more, skep.NoLease).Blocks)
	}
}

// A key that stands alone is deleted at nodes that had it by an earlier map, too: the map may change back. Where such a
// node is away, the key's own one is enough.
func TestADeletedKeyDoesNotComeBackWithTheMap(t *testing.T) {
	t.Parallel()
	m := three(3, 4)
	m.Epoch = 1
	m.Nodes[2].State = clustermap.Out
	c := crewOf(t, m, skep.Cache, storetest.Config{})
	ns, err := skep.OpenNamespace(t.Context(), c.Store, skep.NamespaceSpec{Tenant: "t", Name: "alone", Shape: shape})
	require.NoError(t, err)
	keys := chainOf(1, 60)
	for _, k := range keys {
		_, err := ns.Put(t.Context(), []skep.Key{k}, 0, payload(k))
		require.NoError(t, err)
	}
	has := func() (n int) {
		for _, k := range keys {
			found, err := c.Lookup(t.Context(), &skep.LookupRequest{Scope: ns.Scope(), Keys: []skep.Key{k}})
			require.NoError(t, err)
			n += found.Blocks
		}
		return n
	}
	require.Equal(t, 60, has())
	more := *m
	more.Epoch, more.Nodes = 2, append([]clustermap.Node(nil), m.Nodes...)
	more.Nodes[2].State = clustermap.Up
	require.NoError(t, c.Follow(t.Context(), &more))
	there := has()
	require.Less(t, there, 60)
	n, err := c.Delete(t.Context(), ns.Scope(), keys)
	require.NoError(t, err)
	require.Equal(t, there, n, "what was to be found")
	c.nodes[0].down.Store(true)
	for i, at := range c.now.Load().owner {
		for _, k := range keys {
			if sp, _ := c.spaces.get("", ns.ID); i > 0 && (many{c.Store, c.now.Load()}).nodeOf(sp, "", k) == at {
				_, err := c.Delete(t.Context(), ns.Scope(), []skep.Key{k})
				require.NoError(t, err)
			}
		}
	}
	c.nodes[0].down.Store(false)
	less := *m
	less.Epoch = 3
	require.NoError(t, c.Follow(t.Context(), &less))
	require.Zero(t, has())
}

// A node has lost its store while the one that has the namespace yet is away for a moment: nobody knows that it is
// gone.
func TestANamespaceIsNotForgottenWhileANodeIsAway(t *testing.T) {
	t.Parallel()
	r := cluster(t, 2, 1)
	keys := chainOf(1, 30)
	r.put(keys, 0, 30)
	lost := 0
	for r.node(keys, lost) != 1 {
		lost++
	}
	require.NoError(t, r.nodes[1].Store.Close())
	r.nodes[1].Store = memstore.New(memstore.Options{})
	r.nodes[0].down.Store(true)
	_, err := r.Delete(t.Context(), r.scope(), keys[lost:lost+1])
	require.ErrorIs(t, err, skep.Unavailable)
	r.nodes[0].down.Store(false)
	_, err = r.FindNamespace(t.Context(), r.ns.ID)
	require.NoError(t, err)
}

// What is leased is loaded from where it is leased, whatever a newer map says that nobody has heard of.
func TestALeasedRestoreByANewerMap(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	for range 3 {
		f.start(f.mapOf(1, 3))
	}
	r := f.dial()
	keys := chainOf(1, 40)
	r.put(keys, 0, 40)
	lease := r.find(keys, time.Minute).Lease.ID
	f.tell(f.mapOf(2, 3), 0, 1, 2)
	for i, err := range r.restore(keys, lease) {
		require.NoError(t, err, "block %d", i)
	}
	require.EqualValues(t, 1, r.Map().Epoch)
}

// Who hears of a newer map while somebody else asks for it waits no longer than its own time.
func TestWhoWaitsForAMapCanLeave(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	f.start(f.mapOf(1, 2))
	f.start(f.mapOf(1, 2))
	r := f.dial()
	keys := chainOf(1, 40)
	r.put(keys, 0, 40)
	r.learns <- struct{}{} // somebody else asks, and does not hear
	f.tell(f.mapOf(2, 2), 0, 1)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	_, err := r.Lookup(ctx, &skep.LookupRequest{Scope: r.scope(), Keys: keys})
	require.ErrorIs(t, err, skep.Deadline)
	require.ErrorIs(t, r.Follow(ctx, f.mapOf(2, 2)), skep.Deadline)
	<-r.learns
	require.Equal(t, 40, r.find(keys, skep.NoLease).Blocks)
	require.EqualValues(t, 2, r.Map().Epoch)
}
