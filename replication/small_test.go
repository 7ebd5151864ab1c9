package replication

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/replication/underway"
	"github.com/skepkv/skep/store/storetest"
)

// Small chains do not wait for each other: as many are loaded from a node at once as have the bytes of two loads, or
// eight. Of one chain there are two loads, so that a claim finds the rest.
func TestSmallChainsAreLoadedTogether(t *testing.T) {
	t.Parallel()
	r := cluster(t, 2, 16)
	for _, c := range []struct {
		name          string
		bytes         int64 // of a block
		chains, each  int   // and blocks of each
		loads, blocks int   // that begin
	}{
		{"one block each", 300, 20, 1, underway.Small, underway.Small},
		{"of some MiB", 1 << 20, 6, 3, 3, 9},
		{"larger than a load", 1 << 20, 2, 12, underway.OfChain, 12},
		{"one in many pieces", 300, 1, 6 * workChunks, underway.OfChain, underway.OfChain * workChunks},
	} {
		ns, err := r.OpenNamespace(t.Context(), skep.NamespaceSpec{Tenant: "t", Name: c.name, Chained: true,
			Shape: skep.Shape{Kind: skep.Opaque, BlockTokens: 4, Bytes: c.bytes}})
		require.NoError(t, err)
		var q skep.RestoreRequest
		block := make([]byte, c.bytes)
		for i := 0; len(q.Chains) < c.chains; i++ {
			p := &skep.PutRequest{Scope: skep.Scope{Namespace: ns.ID}}
			keys := chainOf(i, c.each)
			if r.table.Node(r.table.Slot(r.table.Space("t", c.name), keys[0])) != 0 {
				continue
			}
			for _, k := range keys {
				p.Blocks = append(p.Blocks, skep.Block{Key: k, Parts: []skep.Part{{Bytes: block}}})
			}
			_, err := r.Put(t.Context(), p)
			require.NoError(t, err)
			q.Chains = append(q.Chains, skep.Chain{Scope: p.Scope, Keys: keys,
				Dest: skep.Destination{Memory: make([]byte, int64(c.each)*c.bytes), Stride: c.bytes}})
		}
		gate := make(chan struct{})
		r.nodes[0].gate, r.nodes[1].gate = gate, gate
		ses, err := r.Restore(t.Context(), &q)
		require.NoError(t, err)
		x := ses.(*session)
		x.mu.Lock()
		got := x.active[0]
		x.mu.Unlock()
		close(gate)
		require.Equal(t, underway.Loads{Loads: c.loads, Bytes: int64(c.blocks) * c.bytes}, got, c.name)
		require.NoError(t, skep.Drain(t.Context(), ses, func(ch *skep.Chunk) error { return ch.Err }))
		require.NoError(t, ses.Close(t.Context()))
		require.Zero(t, x.active[0], c.name)
	}
}

// A chain with a plan does not wait until all small ones have begun.
func TestAPlannedChainIsLoadedBesideSmallOnes(t *testing.T) {
	t.Parallel()
	r := cluster(t, 2, 16)
	gate := make(chan struct{})
	var q skep.RestoreRequest
	add := func(number int, c skep.Chain) {
		keys := chainOf(number, 1)
		if r.node(keys, 0) != 0 {
			return
		}
		r.put(keys, 0, 1)
		c.Scope, c.Keys, c.Dest = r.scope(), keys, skep.Destination{Memory: make([]byte, 300), Stride: 300}
		q.Chains = append(q.Chains, c)
	}
	for i := 0; len(q.Chains) < 20; i++ {
		add(i, skep.Chain{})
	}
	for i := 1000; len(q.Chains) < 21; i++ {
		cost := skep.RecomputeCost{PerToken: time.Hour}
		add(i, skep.Chain{Direction: skep.TailFirst, Compute: &skep.Compute{Cost: cost}})
	}
	for _, n := range r.nodes {
		n.gate = gate
	}
	ses, err := r.Restore(t.Context(), &q)
	require.NoError(t, err)
	x := ses.(*session)
	storetest.Eventually(t, "it is begun", func() bool {
		x.mu.Lock()
		defer x.mu.Unlock()
		return x.active[0] == underway.Loads{Planned: 1, Loads: underway.Small, Bytes: underway.Small * 300}
	})
	close(gate)
	require.NoError(t, skep.Drain(t.Context(), ses, func(ch *skep.Chunk) error { return ch.Err }))
	require.NoError(t, ses.Close(t.Context()))
	require.Zero(t, x.active[0])
}

// A node is asked for a window that has room for the load, not for one of many MiB: a server has memory for few. What
// is not known yet is taken to be as large as there is room for it.
func TestSmallLoadsTakeSmallWindows(t *testing.T) {
	t.Parallel()
	r := cluster(t, 2, 16)
	ns, err := r.OpenNamespace(t.Context(), skep.NamespaceSpec{Tenant: "t", Name: "uneven", Chained: true,
		Shape: skep.Shape{Kind: skep.Opaque, BlockTokens: 4}})
	require.NoError(t, err)
	scope := skep.Scope{Namespace: ns.ID}
	small, uneven := chainOf(1, 4), chainOf(2, 4)
	put := func(k skep.Key, parent *skep.Key, depth int, bytes int) {
		q := &skep.PutRequest{Scope: scope, Parent: parent, Depth: depth,
			Blocks: []skep.Block{{Key: k, Parts: []skep.Part{{Bytes: make([]byte, bytes)}}}}}
		_, err := r.Put(t.Context(), q)
		require.NoError(t, err)
	}
	for i, bytes := range []int{1 << 20, 1 << 20, 1 << 20, 300} {
		var a, b *skep.Key
		if i > 0 {
			a, b = &small[i-1], &uneven[i-1]
		}
		put(small[i], a, i, 300)
		put(uneven[i], b, i, bytes)
	}
	var windows atomic.Int64
	for _, n := range r.nodes {
		n.saw = func(q skep.RestoreRequest) { windows.Store(q.Window) }
	}
	for _, c := range []struct {
		keys   []skep.Key
		stride int64 // 0: the nodes lend it
		window int64
	}{
		{small, 300, 1 << 20},
		{small, 4096, 1 << 20},
		{uneven, 1 << 20, 16 << 20},
		{uneven, 0, 0}, // it is the reader's for as long as it likes
	} {
		chain := skep.Chain{Scope: scope, Keys: c.keys}
		if c.stride > 0 {
			chain.Dest = skep.Destination{Memory: make([]byte, 4*c.stride), Stride: c.stride}
		}
		windows.Store(-1)
		ses, err := r.Restore(t.Context(), &skep.RestoreRequest{Chains: []skep.Chain{chain}})
		require.NoError(t, err)
		require.NoError(t, skep.Drain(t.Context(), ses, func(ch *skep.Chunk) error { return ch.Err }))
		require.NoError(t, ses.Close(t.Context()))
		require.Equal(t, c.window, windows.Load(), "stride %d", c.stride)
	}
}
