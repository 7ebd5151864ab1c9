package replication

import (
	"slices"
	"sync"
	"testing/synctest"
	"time"

	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
)

// Restores at once are spread over the nodes of their groups by what each node is yet to give, whichever comes first in
// the map. What has ended owes nothing, however it ended.
func TestTheNodeThatOwesLeastIsAsked(t *testing.T) {
	t.Parallel()
	const chains, group = 300, 4
	r := clusterOf(t, twice(3, group), skep.Cache)
	for i := range chains {
		r.put(chainOf(i, group), 0, group)
	}
	owed := func() (most, least, sum int64) {
		least = 1 << 60
		for _, n := range r.now.Load().nodes {
			bytes := n.owed.Load()
			most, least, sum = max(most, bytes), min(least, bytes), sum+bytes
		}
		return most, least, sum
	}
	nothing := func(why string) {
		most, least, _ := owed()
		require.Equal(t, []int64{0, 0}, []int64{most, least}, why)
	}
	restore := func(ctx context.Context, i int) (skep.Session, error) {
		return r.Restore(ctx, &skep.RestoreRequest{Chains: []skep.Chain{{Scope: r.scope(), Keys: chainOf(i, group)}}})
	}
	nothing("before")

	gate := make(chan struct{})
	for _, n := range r.nodes {
		n.gate = gate
	}
	var under []skep.Session
	for i := range chains {
		ses, err := restore(t.Context(), i)
		require.NoError(t, err)
		under = append(under, ses)
	}
	most, least, sum := owed()
	each := r.find(chainOf(0, group), skep.NoLease).Bytes
	require.Equal(t, chains*each, sum, "nothing has come yet")
	require.LessOrEqual(t, most-least, 2*each, "a chain of one group more or less")
	close(gate)

	for i, ses := range under {
		switch i % 3 {
		case 0:
			require.NoError(t, ses.Stop(t.Context(), -1))
		case 1:
			require.NoError(t, skep.Drain(t.Context(), ses, func(c *skep.Chunk) error { return c.Err }))
		}
		require.NoError(t, ses.Close(t.Context()))
	}
	nothing("all have ended")
	narrow := &skep.RestoreRequest{Window: 1, Chains: []skep.Chain{{Scope: r.scope(), Keys: chainOf(0, group)}}}
	ses, err := r.Restore(t.Context(), narrow)
	require.NoError(t, err)
	require.NoError(t, ses.Close(t.Context()))
	nothing("what was never begun")

	r.nodes[1].down.Store(true)
	for i := range chains {
		ses, err := restore(t.Context(), i)
		require.NoError(t, err)
		require.NoError(t, skep.Drain(t.Context(), ses, func(c *skep.Chunk) error { return c.Err }))
		nothing("read to its end")
		require.NoError(t, ses.Close(t.Context()))
	}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = restore(over, 2)
	require.Error(t, err)
	nothing("what did not begin")
}

// What an engine computes of a chain nobody owes any more, nor what no node has to give.
func TestWhatIsComputedIsNotOwed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		x := plannedCluster(t, twice(3, 4), 40, ms, ms, ms)
		x.begin(false, skep.Chain{})
		sum := func() (out int64) {
			for _, n := range x.now.Load().nodes {
				out += n.owed.Load()
			}
			return out
		}
		all := sum()
		require.Positive(t, all)
		c, err := x.ses.Claim(t.Context(), 0, skep.Only(0, 8*shape.BlockTokens), skep.Busy)
		require.NoError(t, err)
		claimed := int64(c.Granted.Len() / shape.BlockTokens)
		require.Positive(t, claimed)
		require.LessOrEqual(t, sum(), all-claimed*all/40)
		require.NoError(t, x.ses.Close(t.Context()))
		require.Zero(t, sum())
	})
}

// A node whose link is full of what it gives this client answers lookups late. It is asked again as soon as it owes no
// more than others.
func TestAFullLinkMakesNoNodeSlow(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const chains, group = 100, 4
		r := clusterOf(t, twice(2, group), skep.Cache)
		r.judged()
		for i := range chains {
			r.put(chainOf(i, group), 0, group)
		}
		lookup := func() (asked [2]int64) {
			for i, n := range r.nodes {
				asked[i] = -n.runs.Load()
			}
			for i := range chains {
				require.Equal(t, group, r.find(chainOf(i, group), skep.NoLease).Blocks)
			}
			for i, n := range r.nodes {
				asked[i] += n.runs.Load()
			}
			return asked
		}
		for _, n := range r.nodes {
			n.lag.Store(int64(ms))
		}
		_ = lookup()
		nodes := r.now.Load().nodes
		r.nodes[0].lag.Store(int64(300 * ms))
		nodes[0].owed.Store(1 << 20)
		nodes[1].owed.Store(1 << 20)
		_ = lookup()
		r.nodes[0].lag.Store(int64(ms))
		nodes[0].owed.Store(0)
		nodes[1].owed.Store(0)
		asked := lookup()
		require.Positive(t, asked[0])
		require.Positive(t, asked[1])
	})
}

// Lookups at once see what the others have asked for, which is what restores are about to load.
func TestLookupsAtOnceAreSpread(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const chains, group = 300, 4
		r := clusterOf(t, twice(3, group), skep.Cache)
		for i := range chains {
			r.put(chainOf(i, group), 0, group)
		}
		for _, n := range r.nodes {
			n.runs.Store(0)
			n.lag.Store(int64(time.Millisecond))
		}
		var wait sync.WaitGroup
		for i := range chains {
			wait.Go(func() {
				q := &skep.LookupRequest{Scope: r.scope(), Keys: chainOf(i, group), Lease: time.Minute}
				found, err := r.Lookup(t.Context(), q)
				assert.NoError(t, err)
				assert.Equal(t, group, found.Blocks)
			})
		}
		wait.Wait()
		var asked []int64
		for _, n := range r.nodes {
			asked = append(asked, n.runs.Load())
		}
		require.LessOrEqual(t, slices.Max(asked)-slices.Min(asked), int64(2), "%v", asked)
		for _, n := range r.now.Load().nodes {
			require.Zero(t, n.owed.Load())
		}
	})
}

// What is asked of another node, because one is late, counts as asked of that one, too, until the lookup is done.
func TestWhatIsAskedInPlaceOfALateNodeCounts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r, keys := slowly(t, 40)
		asked := func() (sum int64) {
			synctest.Wait()
			for _, n := range r.now.Load().nodes {
				sum += n.asked.Load()
			}
			return sum
		}
		require.Zero(t, asked())
		for _, n := range r.nodes {
			n.lag.Store(int64(time.Second))
		}
		done := make(chan skep.LookupResult, 1)
		go func() {
			found, err := r.Lookup(t.Context(), &skep.LookupRequest{Scope: r.scope(), Keys: keys, Lease: skep.NoLease})
			assert.NoError(t, err)
			done <- found
		}()
		began := asked()
		require.Positive(t, began)
		time.Sleep(time.Second / 2)
		again := asked()
		require.Positive(t, r.hedged().Lookups)
		require.Greater(t, again, began)
		require.Equal(t, 40, (<-done).Blocks)
		require.Zero(t, asked())
	})
}
