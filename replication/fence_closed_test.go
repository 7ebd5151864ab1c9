package replication

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/replication/clustermap"
)

// A node that was removed serves no more over its old drives, though a new one has its name.
func TestANodeThatWasRemovedStaysClosed(t *testing.T) {
	t.Parallel()
	m := three(3, 4)
	m.LastNode = 3
	x := fencedCrew(t, m, skep.Cache)
	x.kill(1)
	old := x.council.Map().Nodes[1]
	x.start(1)
	x.nodes[1].down.Store(false)
	next := old
	next.ID, next.State, next.Missed, next.Peer = 0, clustermap.Up, nil, "127.0.0.1:1"
	next.Addr = "127.0.0.1:2"
	remove, add := clustermap.RemoveNode, clustermap.AddNode
	for _, c := range []clustermap.Command{{Do: remove, Name: old.Name}, {Do: add, Node: &next}} {
		_, err := x.council.Propose(t.Context(), &c)
		require.NoError(t, err)
	}
	require.ErrorIs(t, x.fences[1].Return(t.Context(), x.council), skep.NotFound)
	require.False(t, x.fences[1].Open())
	require.False(t, x.fences[1].Heard(x.council.Map()), "it is not the one that the map has")
	_, err := x.fences[1].Namespaces(t.Context())
	require.ErrorIs(t, err, skep.Behind)
}

// A deletion by a map in which a node is down passes the node by. Where the node has returned when the deletion comes
// to another one, whatever it deletes, that is refused, and nothing is lost before it is made again by the newer map.
func TestADeletionByAMapInWhichANodeIsDownYet(t *testing.T) {
	t.Parallel()
	for name, remove := range map[string]func(ctx context.Context, s *Store, sc skep.Scope, keys []skep.Key) error{
		"keys": deleteKeys,
		"a namespace": func(ctx context.Context, s *Store, sc skep.Scope, _ []skep.Key) error {
			return s.DeleteNamespace(ctx, sc.Namespace)
		},
		"a salt": func(ctx context.Context, s *Store, sc skep.Scope, _ []skep.Key) error {
			return s.Purge(ctx, skep.Purge{Salt: &skep.Scope{Namespace: sc.Namespace, Salt: "s"}})
		},
		"a tenant": func(ctx context.Context, s *Store, _ skep.Scope, _ []skep.Key) error {
			return s.Purge(ctx, skep.Purge{Tenant: "t"})
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			x := fencedCrew(t, three(3, 4), skep.Cache)
			keys := chainOf(1, 80)
			x.put(keys, 0, 80)
			x.kill(1)
			x.start(1)
			x.nodes[1].down.Store(false)
			require.NoError(t, x.fences[1].Return(t.Context(), x.council))
			require.ErrorIs(t, remove(t.Context(), x.Store, x.scope(), keys), skep.StaleMap)
			require.Equal(t, 80, x.findLive(keys))
			x.follow()
			require.NoError(t, remove(t.Context(), x.Store, x.scope(), keys))
			if name != "a salt" {
				require.Zero(t, x.findLive(keys))
			}
		})
	}
}

// A node that was down, and ran on, has lost a namespace and has it by another number since. Who knew it by the earlier
// one, and had no call of the node fail, deletes it there all the same.
func TestANodeThatReturnsHasNamespacesByOtherNumbers(t *testing.T) {
	t.Parallel()
	x := fencedCrew(t, three(3, 4), skep.Cache)
	keys := chainOf(1, 80)
	x.put(keys, 0, 80)
	require.NotEmpty(t, x.keysOf(1))
	x.kill(1)
	require.True(t, x.fences[1].Heard(x.council.Map()))
	require.NoError(t, deleteKeys(t.Context(), x.Store, x.scope(), keys))
	x.nodes[1].down.Store(false)
	require.NoError(t, x.fences[1].Return(t.Context(), x.council))
	require.Empty(t, x.keysOf(1))
	other := x.client()
	ns, err := other.OpenNamespace(t.Context(), x.ns.NamespaceSpec)
	require.NoError(t, err)
	again := x.request(keys, 0, 80)
	again.Namespace = ns.ID
	_, err = other.Put(t.Context(), again)
	require.NoError(t, err)
	require.NotEmpty(t, x.keysOf(1))
	x.follow()
	require.NoError(t, x.DeleteNamespace(t.Context(), x.ns.ID))
	require.Empty(t, x.keysOf(1))
}

// A node that does not serve yet tells of no blocks, and writes nothing down for the nodes that are down.
func TestANodeThatDoesNotServeTellsNothing(t *testing.T) {
	t.Parallel()
	x := fencedCrew(t, three(3, 4), skep.Cache)
	x.put(chainOf(1, 80), 0, 80)
	x.kill(1)
	x.start(0)
	x.council.before = func(c *clustermap.Command) {
		assert.NotEqual(t, clustermap.Miss, c.Do, "%+v", c)
	}
	for what, err := range map[string]error{
		"events": func() error { _, err := x.fences[0].Events(t.Context(), skep.Cursor{}, true); return err }(),
		"tenant": x.fences[0].Purge(t.Context(), skep.Purge{Tenant: "t"}),
		"model":  x.fences[0].Purge(t.Context(), skep.Purge{Model: "m"}),
		"keys":   func() error { _, err := x.fences[0].Delete(t.Context(), x.scope(), chainOf(1, 1)); return err }(),
	} {
		require.Error(t, err, what)
	}
	_, err := x.fences[0].Events(t.Context(), skep.Cursor{}, true)
	require.ErrorIs(t, err, skep.Behind)
	require.NoError(t, x.fences[0].Return(t.Context(), x.council))
	events, err := x.fences[0].Events(t.Context(), skep.Cursor{}, true)
	require.NoError(t, err)
	require.NoError(t, events.Close())
}

// What cannot be remembered is refused before the nodes agree on anything.
func TestWhatIsNotRememberedIsNotProposed(t *testing.T) {
	t.Parallel()
	x := fencedCrew(t, three(3, 4), skep.Durable)
	x.kill(1)
	for i := range clustermap.MaxMissedOfTenant {
		x.open(fmt.Sprint("d", i), skep.Durable, true)
		require.NoError(t, x.Purge(t.Context(), skep.Purge{Namespace: x.ns.ID}))
	}
	x.open("one more", skep.Durable, true)
	x.council.before = func(c *clustermap.Command) { t.Errorf("proposed: %+v", c) }
	err := x.Purge(t.Context(), skep.Purge{Namespace: x.ns.ID})
	require.ErrorIs(t, err, skep.Unavailable)
	require.ErrorContains(t, err, "missed deletions")
}

// A node that is said to be down, and runs, sends no copies: others may have deleted what it has.
func TestANodeThatIsDownSendsNoCopies(t *testing.T) {
	t.Parallel()
	x := fencedCrew(t, twice(2, 4), skep.Cache)
	keys := chainOf(1, 8)
	x.put(keys, 0, 8)
	x.kill(1)
	require.NoError(t, deleteKeys(t.Context(), x.Store, x.scope(), keys))
	x.nodes[1].down.Store(false)
	got, err := x.of[1].Repair(t.Context(), RepairOptions{Keeper: x.keepers[1]})
	require.NoError(t, err)
	require.Zero(t, got)
	require.Empty(t, x.keysOf(0))
}

// A durable namespace that only a node has which is down is Unavailable, by the node's name, and is there again with
// it. One that may be lost is made anew, as one that was deleted.
func TestANamespaceThatOnlyANodeHasWhichIsDown(t *testing.T) {
	t.Parallel()
	for _, class := range []skep.Class{skep.Cache, skep.Durable} {
		x := fencedCrew(t, three(3, 4), skep.Cache)
		x.open("only", class, true)
		for _, i := range []int{0, 2} { // they lose their drives
			list, err := x.nodes[i].NamespacesOf(t.Context(), "t")
			require.NoError(t, err)
			for _, info := range list {
				if info.Name == "only" {
					require.NoError(t, x.nodes[i].DeleteNamespace(t.Context(), info.ID))
				}
			}
		}
		x.kill(1)
		_, err := x.FindNamespace(t.Context(), x.ns.ID)
		_, count := x.CountBlocks(t.Context(), x.ns.ID)
		if class == skep.Cache {
			require.ErrorIs(t, err, skep.NotFound)
			continue
		}
		require.Zero(t, x.find(chainOf(1, 1), skep.NoLease).Blocks, "a miss")
		for _, n := range x.now.Load().nodes {
			n.trips.Add(1) // they were away, and are asked for their numbers anew
		}
		_, anew := x.CountBlocks(t.Context(), x.ns.ID)
		for _, err := range []error{err, count, anew} {
			require.ErrorIs(t, err, skep.Unavailable)
			require.ErrorContains(t, err, "node is b")
		}
		x.start(1)
		x.nodes[1].down.Store(false)
		require.NoError(t, x.fences[1].Return(t.Context(), x.council))
		x.follow()
		info, err := x.FindNamespace(t.Context(), x.ns.ID)
		require.NoError(t, err)
		require.Equal(t, x.ns, info)
	}
}
