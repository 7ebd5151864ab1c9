package storetest

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
)

// The capacity tests fill a Store three times over with blocks of 128 KiB.
const (
	capacity     = 16 << 20
	mostCapacity = 128 << 20
)

var large = skep.Shape{Kind: skep.Opaque, BlockTokens: 16, Bytes: 128 << 10}

// fill puts chains of eight blocks, thrice the capacity in all, and gives them.
func (e *env) fill(n skep.NamespaceInfo, capacity int64) []*chain {
	e.Helper()
	var chains []*chain
	for put := int64(0); put < 3*capacity; put += 8 * large.Bytes {
		c := e.chain(n, 8)
		res, err := e.st.Put(e.ctx, c.request(0, 8))
		require.NoError(e, err)
		for _, r := range res {
			if !isStored(r) {
				require.Equal(e, skep.Declined, r.Outcome)
				require.Contains(e, []skep.Kind{skep.Full, skep.Admission}, r.Reason)
			}
		}
		chains = append(chains, c)
	}
	return chains
}

func testCapacity(t *testing.T, open Open) {
	small := func(t *testing.T) (*env, int64) {
		e := start(t, open, Config{CapacityBytes: capacity})
		limit := e.stats().CapacityBytes
		if limit <= 0 || limit > mostCapacity {
			t.Skipf("this store's capacity is %d bytes: too many to fill in a test", limit)
		}
		return e, limit
	}
	t.Run("a full store stays within its cap, right in what it has, and takes new blocks or says why not", func(t *testing.T) {
		e, limit := small(t)
		chains := e.fill(e.space(large), limit)
		s := e.stats()
		require.LessOrEqual(e, s.BlockBytes, limit)
		require.LessOrEqual(e, s.DeviceBytes, limit)
		require.Positive(e, s.Evicted+sum(s.PutDeclined), "three times the capacity was put")
		for _, c := range chains {
			c.check(0, c.found())
		}
	})
	t.Run("what is leased is kept", func(t *testing.T) {
		e, limit := small(t)
		n := e.space(large)
		c := e.chain(n, 8).put(0, 8)
		l := c.lease(skep.MaxLease)
		e.fill(n, limit)
		require.Equal(e, 8, c.found())
		for at, p := range e.restore(skep.Chain{Scope: c.scope, Keys: c.keys, Lease: l.ID}) {
			require.NoError(e, p.Err)
			require.Equal(e, c.payload(at.block), p.bytes)
		}
		require.Zero(e, e.stats().BrokenPromises)
	})
	t.Run("what is pinned is kept", func(t *testing.T) {
		e, limit := small(t)
		n := e.space(large)
		c := e.chain(n, 8).put(0, 8)
		got, err := e.st.Hint(e.ctx, c.scope, c.keys, skep.Hint{Pin: time.Hour})
		require.NoError(e, err)
		require.Equal(e, 8, got)
		e.fill(n, limit)
		require.Equal(e, 8, c.found())
		c.check(0, 8)
	})
	t.Run("what a session reads is kept", func(t *testing.T) {
		e, limit := small(t)
		n := e.space(large)
		c := e.chain(n, 8).put(0, 8)
		s, err := e.st.Restore(e.ctx, &skep.RestoreRequest{Chains: []skep.Chain{{Scope: c.scope, Keys: c.keys}}})
		require.NoError(e, err)
		defer func() { require.NoError(e, s.Close(e.ctx)) }()
		e.fill(n, limit)
		for at, p := range e.drain(s) {
			require.NoError(e, p.Err)
			require.Equal(e, c.payload(at.block), p.bytes)
		}
	})
	t.Run("when everything is leased, puts are declined and reads go on", func(t *testing.T) {
		e, limit := small(t)
		n := e.space(large)
		leased := map[*chain]int{}
		declined := false
		for put := int64(0); put < 3*limit; put += 8 * large.Bytes {
			c := e.chain(n, 8)
			res, err := e.st.Put(e.ctx, c.request(0, 8))
			require.NoError(e, err)
			for _, r := range res {
				declined = declined || r.Outcome == skep.Declined
			}
			if n := c.found(); n > 0 {
				c.keys = c.keys[:n]
				c.lease(skep.MaxLease)
				leased[c] = n
			}
		}
		require.True(e, declined)
		for c, n := range leased {
			require.Equal(e, n, c.found())
			c.check(0, n)
		}
	})
	t.Run("evictions are told", func(t *testing.T) {
		e, limit := small(t)
		n := e.space(large)
		st, err := e.st.Events(e.ctx, skep.Cursor{}, false)
		require.NoError(e, err)
		defer st.Close()
		e.fill(n, limit)
		s := e.stats()
		if s.Evicted == 0 {
			t.Skip("this store declines and evicts nothing")
		}
		into := make([]skep.Event, 100)
		for {
			got, err := st.Next(e.ctx, into)
			require.NoError(e, err)
			for _, ev := range into[:got] {
				if ev.Kind == skep.EventEvicted || ev.Kind == skep.EventGap {
					return
				}
			}
		}
	})
}
