package storetest

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
)

func testLookup(t *testing.T, open Open) {
	e := start(t, open, Config{})
	e.run("nothing found is a result", func(e *env) {
		c := e.chain(e.space(hnd), 3)
		got := e.lookup(&skep.LookupRequest{Scope: c.scope, Keys: c.keys, Tiers: true})
		require.Zero(e, got.Blocks)
		require.Zero(e, got.Tokens)
		require.Zero(e, got.Bytes)
		require.Zero(e, got.Lease)
		require.False(e, got.LeaseDenied)
		require.Empty(e, got.Tiers)
	})
	e.run("no keys find nothing", func(e *env) {
		c := e.chain(e.space(hnd), 0)
		require.Zero(e, c.found())
	})
	e.run("blocks, tokens and bytes", func(e *env) {
		c := e.chain(e.space(hnd), 5).put(0, 4)
		got := c.lookup()
		require.Equal(e, 4, got.Blocks)
		require.Equal(e, 4*hnd.BlockTokens, got.Tokens)
		require.EqualValues(e, 4*c.size(), got.Bytes)
		require.Zero(e, got.Lease, "none was asked for")
		require.True(e, got.Pays, "without a cost")
	})
	e.run("the tier of each block, when asked for", func(e *env) {
		c := e.chain(e.space(hnd), 5).put(0, 4)
		require.Empty(e, c.lookup().Tiers)
		got := e.lookup(&skep.LookupRequest{Scope: c.scope, Keys: c.keys, Lease: skep.NoLease, Tiers: true})
		require.Len(e, got.Tiers, 4)
		for _, tier := range got.Tiers {
			require.NotEqual(e, skep.TierNone, tier)
		}
	})
	e.run("whether loading pays, when the cost of recomputing is known", func(e *env) {
		c := e.chain(e.space(hnd), 2).put(0, 2)
		cost := func(rc skep.RecomputeCost) skep.LookupResult {
			return e.lookup(&skep.LookupRequest{Scope: c.scope, Keys: c.keys, Lease: skep.NoLease, Cost: &rc})
		}
		dear, nothing := cost(skep.RecomputeCost{PerToken: time.Hour}), cost(skep.RecomputeCost{})
		require.True(e, dear.Pays)
		require.False(e, nothing.Pays)
		require.Equal(e, 2, nothing.Blocks, "found all the same")
		require.GreaterOrEqual(e, dear.Estimate, time.Duration(0))
	})
	e.run("the request is not changed", func(e *env) {
		c := e.chain(e.space(hnd), 3).put(0, 2)
		keys := append([]skep.Key(nil), c.keys...)
		e.lookup(&skep.LookupRequest{Scope: c.scope, Keys: keys})
		require.Equal(e, c.keys, keys)
	})
}

func testLeases(t *testing.T, open Open) {
	e := start(t, open, Config{})
	e.run("a lookup leases what it found", func(e *env) {
		c := e.chain(e.space(hnd), 3).put(0, 2)
		l := c.lease(0)
		require.False(e, l.Until.IsZero())
		require.NotEqual(e, l.ID, c.lease(0).ID, "each lookup has a lease of its own")
	})
	e.run("leases are counted until they are released", func(e *env) {
		before := e.stats()
		c := e.chain(e.space(hnd), 3).put(0, 3)
		l := c.lease(skep.MaxLease)
		st := e.stats()
		require.Equal(e, before.Leases+1, st.Leases)
		require.EqualValues(e, 3*c.size(), st.LeasedBytes-before.LeasedBytes)
		short := e.lookup(&skep.LookupRequest{Scope: c.scope, Keys: c.keys[:2], Lease: skep.MaxLease}).Lease.ID
		require.Equal(e, st.LeasedBytes, e.stats().LeasedBytes, "a block counts once, however many leases it has")
		require.NoError(e, e.st.Release(e.ctx, short))
		require.NoError(e, e.st.Release(e.ctx, l.ID))
		st = e.stats()
		require.Equal(e, before.Leases, st.Leases)
		require.Equal(e, before.LeasedBytes, st.LeasedBytes)
	})
	e.run("a lease is renewed from now", func(e *env) {
		l := e.chain(e.space(hnd), 1).put(0, 1).lease(time.Minute)
		got, err := e.st.Renew(e.ctx, l.ID, skep.MaxLease)
		require.NoError(e, err)
		require.Equal(e, l.ID, got.ID)
		require.True(e, got.Until.After(l.Until))
	})
	e.run("renewed for no time it lasts as one of a lookup that names none", func(e *env) {
		l := e.chain(e.space(hnd), 1).put(0, 1).lease(skep.MaxLease)
		got, err := e.st.Renew(e.ctx, l.ID, 0)
		require.NoError(e, err)
		require.Equal(e, l.ID, got.ID)
		require.True(e, got.Until.Before(l.Until), "sooner than it would have")
	})
	e.run("a lease that was released is over", func(e *env) {
		l := e.chain(e.space(hnd), 1).put(0, 1).lease(time.Minute)
		require.NoError(e, e.st.Release(e.ctx, l.ID))
		_, err := e.st.Renew(e.ctx, l.ID, time.Minute)
		requireKind(e, skep.LeaseExpired, err)
		require.NoError(e, e.st.Release(e.ctx, l.ID), "releasing it again is not an error")
	})
	e.run("a lease runs out", func(e *env) {
		c := e.chain(e.space(hnd), 1).put(0, 1)
		// A Store behind a connection names a moment before the promise ends, by as long as the answer may have been under way.
		for wait := time.Millisecond; ; wait *= 2 {
			l := c.lease(20 * time.Millisecond)
			<-time.After(time.Until(l.Until) + wait)
			_, err := e.st.Renew(e.ctx, l.ID, time.Minute)
			require.NoError(e, e.st.Release(e.ctx, l.ID))
			if err != nil || wait > time.Minute {
				requireKind(e, skep.LeaseExpired, err)
				break
			}
		}
		require.Equal(e, 1, c.found(), "the blocks stay, without the promise")
	})
	e.run("a lease nobody gave is unknown", func(e *env) {
		_, err := e.st.Renew(e.ctx, 0, time.Minute)
		requireKind(e, skep.LeaseExpired, err)
		require.NoError(e, e.st.Release(e.ctx, 0))
	})
	e.run("a restore under a lease, and under one that is over", func(e *env) {
		c := e.chain(e.space(hnd), 3).put(0, 3)
		l := c.lease(time.Minute)
		for range 2 {
			for _, p := range e.restore(skep.Chain{Scope: c.scope, Keys: c.keys, Lease: l.ID}) {
				require.NoError(e, p.Err)
			}
			require.NoError(e, e.st.Release(e.ctx, l.ID))
		}
	})
	e.run("deleting removes leased blocks too", func(e *env) {
		c := e.chain(e.space(hnd), 2).put(0, 2)
		l := c.lease(time.Minute)
		n, err := e.st.Delete(e.ctx, c.scope, c.keys)
		require.NoError(e, err)
		require.Equal(e, 2, n)
		require.Zero(e, c.found())
		c.miss(0)
		require.NoError(e, e.st.Release(e.ctx, l.ID))
	})
	t.Run("a tenant's leased bytes are capped", func(t *testing.T) {
		size := sizeOf(pages4K, 0)
		e := start(t, open, Config{TenantLeaseBytes: int64(4 * size)})
		n := e.space(pages4K)
		a, b := e.chain(n, 3).put(0, 3), e.chain(n, 3).put(0, 3)
		l := a.lease(time.Minute)
		got := e.lookup(&skep.LookupRequest{Scope: b.scope, Keys: b.keys})
		require.True(e, got.LeaseDenied)
		require.Zero(e, got.Lease)
		require.Equal(e, 3, got.Blocks, "found all the same")
		other := e.chain(e.space(pages4K), 3).put(0, 3)
		other.lease(time.Minute) // another tenant's
		require.NoError(e, e.st.Release(e.ctx, l.ID))
		b.lease(time.Minute)
	})
	t.Run("who looks the same prefix up again has its bytes leased once", func(t *testing.T) {
		e := start(t, open, Config{TenantLeaseBytes: int64(4 * sizeOf(pages4K, 0))})
		n := e.space(pages4K)
		a, b := e.chain(n, 3).put(0, 3), e.chain(n, 3).put(0, 3)
		ids := []skep.LeaseID{a.lease(time.Minute).ID, a.lease(time.Minute).ID, a.lease(time.Minute).ID}
		for _, id := range ids { // until the last of them is released
			require.True(t, e.lookup(&skep.LookupRequest{Scope: b.scope, Keys: b.keys}).LeaseDenied)
			require.NoError(e, e.st.Release(e.ctx, id))
		}
		b.lease(time.Minute)
	})
	t.Run("a lease of single keys that is denied takes nothing", func(t *testing.T) {
		size := sizeOf(pages4K, 0)
		e := start(t, open, Config{TenantLeaseBytes: int64(4 * size)})
		spec := specOf(pages4K)
		spec.Chained = false
		c := e.chain(e.open(spec), 6).put(0, 6)
		got := e.lookup(&skep.LookupRequest{Scope: c.scope, Keys: c.keys})
		require.True(e, got.LeaseDenied)
		require.Zero(e, got.Lease)
		require.Equal(e, 6, got.Blocks, "found all the same")
		c.keys = c.keys[2:]
		c.lease(time.Minute)
	})
}

func testWant(t *testing.T, open Open) {
	e := start(t, open, Config{})
	want := func(e *env, c *chain) []skep.Want {
		w, err := e.st.Want(e.ctx, &skep.WantRequest{Scope: c.scope, Keys: c.keys, Bytes: int64(len(c.keys) * c.size())})
		require.NoError(e, err)
		require.Len(e, w, len(c.keys))
		return w
	}
	e.run("what is stored is not wanted", func(e *env) {
		c := e.chain(e.space(hnd), 4).put(0, 2)
		for i, w := range want(e, c) {
			require.Equal(e, i >= 2, w.Wanted)
			if !w.Wanted {
				require.Equal(e, skep.Exists, w.Outcome)
			}
		}
		for _, w := range want(e, c.salted("s")) {
			require.True(e, w.Wanted, "under another salt")
		}
	})
	e.run("orphans are stored", func(e *env) {
		c := e.chain(e.space(hnd), 3).put(2, 3)
		w := want(e, c)
		require.Equal(e, []bool{true, true, false}, []bool{w[0].Wanted, w[1].Wanted, w[2].Wanted})
	})
	e.run("where the last writer wins, everything is wanted", func(e *env) {
		spec := specOf(free)
		spec.Chained = false
		for _, w := range want(e, e.chain(e.open(spec), 2).put(0, 2)) {
			require.True(e, w.Wanted)
		}
	})
	e.run("asking stores nothing", func(e *env) {
		c := e.chain(e.space(hnd), 2)
		before := e.stats()
		want(e, c)
		require.Equal(e, before.Blocks, e.stats().Blocks)
		require.Zero(e, c.found())
	})
}
