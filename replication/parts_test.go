package replication

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
)

// A listing tells of every key, one node's after another's, and says which node does not answer.
func TestAListingOfAllNodes(t *testing.T) {
	t.Parallel()
	r := cluster(t, 3, 4)
	keys := chainOf(1, 100)
	r.put(keys, 0, 100)
	for _, n := range []int{1, 7, 1000} {
		seen := map[skep.Key]int{}
		steps := 0
		for at, more := uint64(0), true; more; more = at != 0 {
			require.LessOrEqual(t, steps, 110)
			steps++
			var some []skep.Key
			var err error
			some, at, err = r.ListKeys(t.Context(), r.ns.ID, at, n)
			require.NoError(t, err)
			for _, k := range some {
				seen[k]++
			}
		}
		require.Len(t, seen, 100)
		for _, k := range keys {
			require.Equal(t, 1, seen[k])
		}
	}
	_, end, err := r.ListKeys(t.Context(), r.ns.ID, 7<<skep.ListPlaceBits, 1)
	require.NoError(t, err)
	require.Zero(t, end, "a place of no node")

	r.nodes[1].down.Store(true)
	_, err = r.CountBlocks(t.Context(), r.ns.ID)
	require.ErrorIs(t, err, skep.Unavailable)
	_, _, err = r.ListKeys(t.Context(), r.ns.ID, 1<<skep.ListPlaceBits, 10)
	require.ErrorIs(t, err, skep.Unavailable)
	require.ErrorContains(t, err, "node is b")
}

// Who loads a part of a chain to a place of its own names that part alone, wherever in a group it begins: by a Store that
// has seen the chain, and by one that has not. What follows a block that is not there is hidden.
func TestPartsOfAChainAreLoaded(t *testing.T) {
	t.Parallel()
	for _, replicas := range []int{1, 2} {
		m := three(3, 4)
		m.Replicas = replicas
		r := clusterOf(t, m, skep.Cache)
		const n = 40
		keys := chainOf(1, n)
		r.put(keys, 0, n)
		var stores []skep.Store
		for _, x := range r.nodes {
			stores = append(stores, &fallible{Store: x, open: true})
		}
		s, err := New(Options{Map: m, Stores: stores})
		require.NoError(t, err)
		defer s.Close()
		fresh := &rig{T: t, Store: s}
		fresh.openNamespace(skep.Cache)
		for _, by := range []*rig{r, fresh} {
			for from := range n {
				for to := from + 1; to <= min(n, from+9); to++ {
					for i, err := range by.restore(keys[from:to], 0) {
						require.NoError(t, err, "block %d of [%d, %d)", i, from, to)
					}
				}
			}
			q := &skep.RestoreRequest{}
			for from := 0; from < n; from += 3 {
				q.Chains = append(q.Chains, skep.Chain{Scope: by.scope(), Keys: keys[from:min(n, from+3)]})
			}
			seen := 0
			require.NoError(t, skep.Load(t.Context(), by.Store, q, func(c *skep.Chunk) error {
				require.NoError(t, c.Err)
				require.Equal(t, payload(keys[3*c.Chain+c.Block]), c.AppendTo(nil))
				seen++
				return nil
			}))
			require.Equal(t, n, seen)
		}
		if replicas > 1 { // the node that was asked first dies in the middle
			for _, x := range r.nodes {
				x.dies.Store(1)
				for i, err := range fresh.restore(keys[5:38], 0) {
					require.NoError(t, err, "block %d", i)
				}
				x.dies.Store(0)
				x.down.Store(false)
			}
		}
		got, err := r.Delete(t.Context(), r.scope(), keys[14:15])
		require.NoError(t, err)
		require.Equal(t, 1, got)
		for i, err := range fresh.restore(keys[13:20], 0) {
			if i == 0 {
				require.NoError(t, err)
			} else {
				require.ErrorIs(t, err, skep.NotFound, "block %d", i)
			}
		}
	}
}
