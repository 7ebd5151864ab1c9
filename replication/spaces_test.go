package replication

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/replication/lives"
	"github.com/skepkv/skep/store/storetest"
)

// end has somebody else delete a namespace, by name.
func (r *rig) end(name string) {
	r.Helper()
	for _, n := range r.nodes {
		list, err := n.Store.Namespaces(r.Context())
		require.NoError(r, err)
		for _, info := range list {
			if info.Name == name {
				require.NoError(r, n.Store.DeleteNamespace(r.Context(), info.ID))
			}
		}
	}
}

// count is how many namespaces the Store remembers.
func (p *spaces) count() int {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return len(p.byID)
}

// What somebody else has deleted is forgotten when a list lacks it that all nodes gave; what was made meanwhile is not.
func TestWhatAListLacksIsForgotten(t *testing.T) {
	t.Parallel()
	r := cluster(t, 2, 1)
	spec := skep.NamespaceSpec{Tenant: "t", Name: "other", Shape: shape, Chained: true}
	other, err := r.OpenNamespace(t.Context(), spec)
	require.NoError(t, err)
	r.end("other")
	r.nodes[1].down.Store(true)
	_, err = r.Namespaces(t.Context())
	require.NoError(t, err)
	require.Equal(t, 2, r.spaces.count(), "node b may have it")
	r.nodes[1].down.Store(false)
	turn := r.spaces.begin()
	list, err := r.Namespaces(t.Context())
	require.NoError(t, err)
	require.Equal(t, []skep.NamespaceInfo{r.ns}, list)
	require.Equal(t, 1, r.spaces.count())
	_, err = r.FindNamespace(t.Context(), other.ID)
	require.ErrorIs(t, err, skep.NotFound)
	again, err := r.OpenNamespace(t.Context(), spec)
	require.NoError(t, err)
	require.NotEqual(t, other.ID, again.ID)
	r.spaces.only(turn)
	require.Equal(t, 2, r.spaces.count(), "a list that was begun before it was made lacks it")
}

// Who hears of ever more namespaces, which somebody else deletes, remembers few.
func TestNamespacesOfOthersAreForgotten(t *testing.T) {
	t.Parallel()
	r := cluster(t, 2, 1)
	for i := range 3 * fewSpaces {
		name := fmt.Sprint("n", i)
		_, err := r.OpenNamespace(t.Context(), skep.NamespaceSpec{Tenant: "t", Name: name, Shape: shape, Chained: true})
		require.NoError(t, err)
		r.end(name)
	}
	storetest.Eventually(t, "they are forgotten", func() bool { return r.spaces.count() <= fewSpaces })
	_, err := r.FindNamespace(t.Context(), r.ns.ID)
	require.NoError(t, err)
}

// Who writes on in a namespace that somebody else has deleted, and asks a node anew what it calls it, does not make it
// again. Where another node has it, the node is given it.
func TestADeletedNamespaceIsNotMadeAnew(t *testing.T) {
	t.Parallel()
	r := cluster(t, 2, 1)
	keys := chainOf(1, 40)
	trip := func() {
		for _, n := range r.nodes {
			n.down.Store(true)
		}
		r.put(keys, 0, 40)
		for _, n := range r.nodes {
			n.down.Store(false)
		}
	}
	trip()
	require.NoError(t, r.nodes[1].Store.DeleteNamespace(t.Context(), 1))
	for _, x := range r.put(keys, 0, 40) {
		require.Equal(t, skep.Committed, x.Outcome)
	}
	trip()
	r.end("n")
	_, err := r.Put(t.Context(), r.request(keys, 0, 40))
	require.ErrorIs(t, err, skep.NotFound)
	for _, n := range r.nodes {
		list, err := n.Namespaces(t.Context())
		require.NoError(t, err)
		require.Empty(t, list)
	}
}

// A node that lacks a namespace is given it by a put, where another one has it whose number of it is not known yet, as
// after both have begun anew at other addresses.
func TestANodeWhoseNumberIsNotKnownIsAsked(t *testing.T) {
	t.Parallel()
	r := cluster(t, 2, 1)
	list, err := r.nodes[1].Store.Namespaces(t.Context())
	require.NoError(t, err)
	require.NoError(t, r.nodes[1].Store.DeleteNamespace(t.Context(), list[0].ID))
	sp, err := r.spaces.get("test", r.ns.ID)
	require.NoError(t, err)
	sp.ids = lives.Numbers{}
	keys := chainOf(1, 30)
	r.put(keys, 0, 30)
	require.Equal(t, 30, r.find(keys, skep.NoLease).Blocks)
}

// hung is a node that says after a while that it does not answer.
type hung struct{ skep.Store }

func (hung) FindNamespace(ctx context.Context, _ skep.NamespaceID) (skep.NamespaceInfo, error) {
	select {
	case <-time.After(10 * time.Second):
	case <-ctx.Done():
	}
	return skep.NamespaceInfo{}, &skep.Error{Op: "dial", Kind: skep.Unavailable}
}

// Who has a namespace in place of a node that lost it is asked of all others at once: those that hang keep nobody
// waiting for the one that has it, and where none does they cost the time of one.
func TestNodesThatHangAreAskedBesideOthers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const n = 6
		r := cluster(t, n, 1)
		v := r.now.Load()
		sp, err := r.spaces.get("test", r.ns.ID)
		require.NoError(t, err)
		for _, x := range r.nodes[1 : n-1] {
			x.Store = hung{x.Store}
		}
		elsewhere := func() (time.Duration, error) {
			began := time.Now()
			err := many{r.Store, v}.elsewhere(t.Context(), "test", v.nodes[0], sp)
			return time.Since(began), err
		}
		took, err := elsewhere()
		require.NoError(t, err)
		require.Zero(t, took)
		find := func() (time.Duration, error) {
			began := time.Now()
			_, err := r.FindNamespace(t.Context(), r.ns.ID)
			return time.Since(began), err
		}
		took, err = find()
		require.NoError(t, err)
		require.Zero(t, took)
		require.NoError(t, r.nodes[0].Store.DeleteNamespace(t.Context(), 1))
		took, err = find()
		require.NoError(t, err)
		require.Zero(t, took, "the others are asked beside one another")
		require.NoError(t, r.nodes[n-1].Store.DeleteNamespace(t.Context(), 1))
		took, err = find()
		require.ErrorIs(t, err, skep.Unavailable)
		require.Equal(t, 10*time.Second, took)
		took, err = elsewhere()
		require.ErrorIs(t, err, skep.Unavailable)
		require.Equal(t, 10*time.Second, took)
	})
}
