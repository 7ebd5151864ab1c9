package storetest

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
)

func (e *env) runs(r *skep.RunsRequest) skep.RunsResult {
	e.Helper()
	got, err := e.st.LookupRuns(e.ctx, r)
	require.NoError(e, err)
	require.Len(e, got.Runs, len(r.Runs))
	return got
}

// found is how many blocks were found of each run.
func foundOf(r skep.RunsResult) (out []int) {
	for _, x := range r.Runs {
		out = append(out, x.Blocks)
	}
	return out
}

// testRuns: a lookup of runs finds of each run what a lookup finds of it alone.
func testRuns(t *testing.T, open Open) {
	e := start(t, open, Config{})
	unchained := func(e *env, n int) *chain {
		spec := specOf(hnd)
		spec.Chained = false
		return e.chain(e.open(spec), n)
	}
	e.run("no runs are none", func(e *env) {
		got := e.runs(&skep.RunsRequest{Scope: e.chain(e.space(hnd), 1).scope})
		require.Zero(e, got.Lease)
		require.False(e, got.LeaseDenied)
	})
	e.run("each is the longest prefix of its own", func(e *env) {
		n := e.space(hnd)
		a, b, c := e.chain(n, 40).put(0, 37), e.chain(n, 3).put(0, 3), e.chain(n, 3).put(1, 3)
		got := e.runs(&skep.RunsRequest{Scope: a.scope, Runs: [][]skep.Key{c.keys, a.keys, a.keys[:1], b.keys, a.keys[:20]}, Lease: skep.NoLease})
		require.Equal(e, []int{0, 37, 1, 3, 20}, foundOf(got), "one that is not there hides none behind it")
		require.Zero(e, got.Lease, "none was asked for")
		require.Empty(e, got.Tiers)
		for i, run := range [][]skep.Key{c.keys, a.keys, a.keys[:1], b.keys, a.keys[:20]} {
			alone := e.lookup(&skep.LookupRequest{Scope: a.scope, Keys: run, Lease: skep.NoLease})
			require.Equal(e, skep.RunFound{Blocks: alone.Blocks, Tokens: alone.Tokens, Bytes: alone.Bytes, Pays: alone.Pays}, got.Runs[i])
		}
	})
	e.run("a partial tail ends its run only", func(e *env) {
		n := e.space(hnd)
		a, b := e.chain(n, 2), e.chain(n, 2).put(0, 2)
		r := a.request(0, 1)
		r.Blocks[0].ValidTokens = 3
		e.put(r)
		got := e.runs(&skep.RunsRequest{Scope: a.scope, Runs: [][]skep.Key{a.keys, b.keys}})
		require.Equal(e, []int{1, 2}, foundOf(got))
		require.Equal(e, []int{3, 2 * hnd.BlockTokens}, []int{got.Runs[0].Tokens, got.Runs[1].Tokens})
	})
	e.run("the salt and the namespace count", func(e *env) {
		c := e.chain(e.space(hnd), 2).put(0, 2)
		require.Equal(e, []int{0}, foundOf(e.runs(&skep.RunsRequest{Scope: c.salted("s").scope, Runs: [][]skep.Key{c.keys}})))
		require.Equal(e, []int{0}, foundOf(e.runs(&skep.RunsRequest{Scope: c.in(e.space(hnd)).scope, Runs: [][]skep.Key{c.keys}})))
	})
	e.run("keys that stand alone, one by one", func(e *env) {
		c := unchained(e, 5).put(1, 3).put(4, 5)
		r := &skep.RunsRequest{Scope: c.scope, Tiers: true}
		for i := range c.keys {
			r.Runs = append(r.Runs, c.keys[i:i+1])
		}
		r.Runs = append(r.Runs, c.keys[1:])
		got := e.runs(r)
		require.Equal(e, []int{0, 1, 1, 0, 1, 2}, foundOf(got))
		require.Len(e, got.Tiers, 5)
		require.NotZero(e, got.Lease.ID)
	})
	e.run("tiers and whether loading pays", func(e *env) {
		n := e.space(hnd)
		a, b := e.chain(n, 3).put(0, 2), e.chain(n, 2).put(0, 2)
		got := e.runs(&skep.RunsRequest{Scope: a.scope, Runs: [][]skep.Key{a.keys, b.keys}, Tiers: true, Cost: &skep.RecomputeCost{PerToken: time.Hour}})
		require.Len(e, got.Tiers, 4)
		for i := range 2 {
			require.True(e, got.Runs[i].Pays)
			require.EqualValues(e, 2*a.size(), got.Runs[i].Bytes)
		}
		nothing := e.runs(&skep.RunsRequest{Scope: a.scope, Runs: [][]skep.Key{a.keys}, Cost: &skep.RecomputeCost{}})
		require.False(e, nothing.Runs[0].Pays)
	})
	e.run("one lease is of all that is found", func(e *env) {
		n := e.space(hnd)
		a, b := e.chain(n, 40).put(0, 40), e.chain(n, 3).put(0, 2)
		before := e.stats()
		got := e.runs(&skep.RunsRequest{Scope: a.scope, Runs: [][]skep.Key{b.keys, a.keys}, Lease: time.Minute})
		require.NotZero(e, got.Lease.ID)
		st := e.stats()
		require.Equal(e, before.Leases+1, st.Leases)
		require.EqualValues(e, 42*a.size(), st.LeasedBytes-before.LeasedBytes)
		longer, err := e.st.Renew(e.ctx, got.Lease.ID, skep.MaxLease)
		require.NoError(e, err)
		require.True(e, longer.Until.After(got.Lease.Until))
		for _, c := range []*chain{a, b} {
			for i, p := range e.restore(skep.Chain{Scope: c.scope, Keys: c.keys[:2], Lease: got.Lease.ID}) {
				require.NoError(e, p.Err, i)
			}
		}
		require.NoError(e, e.st.Release(e.ctx, got.Lease.ID))
		require.Equal(e, before.Leases, e.stats().Leases)
		_, err = e.st.Renew(e.ctx, got.Lease.ID, time.Minute)
		requireKind(e, skep.LeaseExpired, err)
	})
	e.run("nothing found is not leased", func(e *env) {
		c := e.chain(e.space(hnd), 2)
		got := e.runs(&skep.RunsRequest{Scope: c.scope, Runs: [][]skep.Key{c.keys, c.keys}})
		require.Zero(e, got.Lease)
		require.False(e, got.LeaseDenied)
	})
	t.Run("a lease that is denied takes nothing", func(t *testing.T) {
		size := sizeOf(pages4K, 0)
		e := start(t, open, Config{TenantLeaseBytes: int64(4 * size)})
		n := e.space(pages4K)
		a, b := e.chain(n, 3).put(0, 3), e.chain(n, 3).put(0, 3)
		got := e.runs(&skep.RunsRequest{Scope: a.scope, Runs: [][]skep.Key{a.keys, b.keys}})
		require.True(e, got.LeaseDenied)
		require.Zero(e, got.Lease)
		require.Equal(e, []int{3, 3}, foundOf(got), "found all the same")
		a.lease(time.Minute)
	})
}
