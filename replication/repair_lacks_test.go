package replication

import (
	"cmp"
	"context"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/replication/clustermap"
	"github.com/skepkv/skep/store/memstore"
	"github.com/skepkv/skep/store/storetest"
)

// A node that has not heard of the map yet is asked again: it is about to.
func TestANodeThatIsBehindIsAskedAgain(t *testing.T) {
	t.Parallel()
	c := crewOf(t, twice(2, 4), skep.Cache, storetest.Config{})
	c.putWithoutB(chainOf(1, 8), 8)
	c.nodes[1].behind.Store(2)
	require.Equal(t, Repaired{Blocks: 16, Copied: 8, Bytes: 8 * 300}, c.repair(), "of both nodes")
	require.Zero(t, c.nodes[1].behind.Load())
}

// A block that a node cannot read is counted, and what follows it is sent.
func TestWhatFollowsADamagedBlockIsSent(t *testing.T) {
	t.Parallel()
	c := crewOf(t, twice(2, 8), skep.Durable, storetest.Config{})
	keys := chainOf(1, 8)
	c.putWithoutB(keys, 8)
	for damaged := range keys {
		require.NoError(t, c.nodes[1].Store.Purge(t.Context(), skep.Purge{Namespace: 1}))
		c.nodes[0].damaged.Store(&keys[damaged])
		sum := c.repair()
		require.EqualValues(t, 7, sum.Copied)
		require.EqualValues(t, 1, sum.Unread)
		has := c.keysOf(1)
		require.Len(t, has, 7)
		require.False(t, has[keys[damaged]])
	}
	c.nodes[0].damaged.Store(nil)
	require.EqualValues(t, 1, c.repair().Copied)
	c.whole(keys)
}

// What a node cannot read it does not send.
func TestADamagedBlockIsNotSent(t *testing.T) {
	t.Parallel()
	c := crewOf(t, twice(2, 4), skep.Cache, storetest.Config{})
	c.putWithoutB(chainOf(1, 8), 8)
	c.nodes[0].spoilt.Store(true)
	require.Equal(t, Repaired{Blocks: 8, Unread: 8}, c.repair())
	require.Empty(t, c.keysOf(1))
	c.nodes[0].spoilt.Store(false)
	require.EqualValues(t, 8, c.repair().Copied)
}

// Who sent copies to a node that is in no map any more does not wait for it with deletions.
func TestANodeInNoMapIsToldOfNoDeletion(t *testing.T) {
	t.Parallel()
	m := twice(3, 4)
	c := crewOf(t, m, skep.Cache, storetest.Config{})
	keys := chainOf(1, 8)
	c.nodes[1].down.Store(true)
	c.put(keys, 0, 8)
	c.nodes[1].down.Store(false)
	require.Positive(t, c.repair().Copied)
	c.nodes[1].down.Store(true)
	deletes := func() (first error) {
		for _, k := range []int{0, 2} {
			_, err := c.keepers[k].Delete(t.Context(), skep.Scope{Namespace: 1}, keys)
			first = cmp.Or(first, err)
		}
		return first
	}
	require.ErrorIs(t, deletes(), skep.Unavailable)
	next := *m
	next.Epoch, next.Nodes = 2, []clustermap.Node{m.Nodes[0], m.Nodes[2]}
	for _, k := range []int{0, 2} {
		require.NoError(t, c.of[k].Follow(t.Context(), &next))
	}
	require.NoError(t, deletes())
}

// unlisted is a Store that cannot say what one of its namespaces has.
type unlisted struct {
	*memstore.Store
	space skep.NamespaceID
}

func (u unlisted) ListBlocks(ctx context.Context, space skep.NamespaceID, group int, from uint64, n int) (
	[]skep.StoredBlock, uint64, error) {
	if space == u.space {
		return nil, 0, &skep.Error{Op: "list blocks", Kind: skep.Damaged}
	}
	return u.Store.ListBlocks(ctx, space, group, from, n)
}

// Where a node cannot say what one namespace has, the others are repaired, and the error is told then.
func TestOneNamespaceDoesNotEndARepair(t *testing.T) {
	t.Parallel()
	c := crewOf(t, twice(2, 4), skep.Cache, storetest.Config{})
	second, err := c.OpenNamespace(t.Context(), skep.NamespaceSpec{Tenant: "t", Name: "second", Shape: shape, Chained: true})
	require.NoError(t, err)
	c.nodes[1].down.Store(true)
	c.put(chainOf(1, 8), 0, 8)
	c.ns = second
	c.put(chainOf(2, 8), 0, 8)
	c.nodes[1].down.Store(false)
	c.nodes[0].Store = unlisted{c.nodes[0].Store.(*memstore.Store), 1}
	sum, err := c.of[0].Repair(t.Context(), RepairOptions{Keeper: c.keepers[0]})
	require.ErrorIs(t, err, skep.Damaged)
	require.EqualValues(t, 8, sum.Copied)
	require.Len(t, c.keysOf(1), 8)
}

// What nobody can place is left out and counted: salted blocks, of which a node knows no salt, and keys that stand
// alone. Who has the salt makes the missing copies by its next put.
func TestWhatIsLeftOutIsCounted(t *testing.T) {
	t.Parallel()
	c := crewOf(t, twice(2, 4), skep.Cache, storetest.Config{})
	c.putWithoutB(chainOf(1, 8), 8)
	salted := c.request(chainOf(2, 6), 0, 6)
	salted.Salt = "s"
	put := func() {
		_, err := c.Put(t.Context(), salted)
		require.NoError(t, err)
	}
	c.nodes[1].down.Store(true)
	put()
	c.nodes[1].down.Store(false)
	alone, err := c.OpenNamespace(t.Context(), skep.NamespaceSpec{Tenant: "t", Name: "alone", Shape: shape})
	require.NoError(t, err)
	q := c.request(chainOf(3, 5), 0, 5)
	q.Namespace = alone.ID
	_, err = c.Put(t.Context(), q)
	require.NoError(t, err)
	require.Equal(t, Repaired{Blocks: 16, Copied: 8, Bytes: 8 * 300, LeftOut: 6 + 5}, c.repair())

	put()
	c.nodes[0].down.Store(true)
	r, err := c.Lookup(t.Context(), &skep.LookupRequest{Scope: salted.Scope, Keys: chainOf(2, 6), Lease: skep.NoLease})
	require.NoError(t, err)
	require.Equal(t, 6, r.Blocks, "node b has them now")
}

// opening is a Store whose namespaces take their time.
type opening struct {
	skep.Store
	arrived *atomic.Int64
	goes    chan struct{}
}

func (o opening) Unwrap() skep.Store { return o.Store }

func (o opening) OpenNamespace(ctx context.Context, spec skep.NamespaceSpec) (skep.NamespaceInfo, error) {
	o.arrived.Add(1)
	<-o.goes
	return o.Store.OpenNamespace(ctx, spec)
}

// A node that takes long to be given a namespace holds up no copies to others.
func TestNodesAreGivenANamespaceBesideEachOther(t *testing.T) {
	t.Parallel()
	m := three(3, 4)
	m.Replicas = 3
	c := crewOf(t, m, skep.Cache, storetest.Config{})
	ns, err := c.nodes[0].Store.OpenNamespace(t.Context(),
		skep.NamespaceSpec{Tenant: "t", Name: "new", Shape: shape, Chained: true})
	require.NoError(t, err)
	q := c.request(chainOf(1, 4), 0, 4)
	q.Namespace = ns.ID
	_, err = c.nodes[0].Store.Put(t.Context(), q)
	require.NoError(t, err)
	var arrived atomic.Int64
	goes := make(chan struct{})
	for _, n := range c.nodes[1:] {
		n.Store = opening{n.Store, &arrived, goes}
	}
	ended := make(chan error, 1)
	go func() {
		_, err := c.of[0].Repair(context.Background(), RepairOptions{Keeper: c.keepers[0]})
		ended <- err
	}()
	storetest.Eventually(t, "both are asked", func() bool { return arrived.Load() == 2 })
	close(goes)
	require.NoError(t, <-ended)
	for node := range c.nodes {
		require.Len(t, c.keysOf(node), 4)
	}
}
