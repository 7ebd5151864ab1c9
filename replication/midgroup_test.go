package replication

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
)

// With one replica, what goes on with a group whose node is down is not taken: nobody would find it when the node is
// back. What begins a group is, and is found.
func TestADurableGroupIsNotContinuedElsewhere(t *testing.T) {
	t.Parallel()
	x := fencedCrew(t, three(3, 4), skep.Durable)
	keys := chainOf(0, 40)
	x.put(keys, 0, 2)
	at := 0
	for i := range x.nodes {
		if x.keysOf(i)[keys[0]] {
			at = i
		}
	}
	x.kill(at)
	put := func(from, to int) []skep.PutResult {
		q := &skep.PutRequest{Scope: skep.Scope{Namespace: x.ns.ID}, Parent: &keys[from-1], Ancestors: keys[:from-1],
			Depth: from}
		for _, k := range keys[from:to] {
			q.Blocks = append(q.Blocks, skep.Block{Key: k, Parts: []skep.Part{{Bytes: payload(k)}}})
		}
		out, err := x.Put(t.Context(), q)
		require.NoError(t, err)
		return out
	}
	for _, r := range put(2, 4) {
		require.Equal(t, skep.Declined, r.Outcome)
		require.Equal(t, skep.Unavailable, r.Reason)
	}
	for _, r := range put(4, 8) {
		require.NotEqual(t, skep.Declined, r.Outcome)
	}

	x.start(at)
	x.nodes[at].down.Store(false)
	require.NoError(t, x.fences[at].Return(t.Context(), x.council))
	x.follow()
	for _, r := range put(2, 4) {
		require.NotEqual(t, skep.Declined, r.Outcome)
	}
	for range 3 {
		x.repair()
	}
	r, err := x.Lookup(t.Context(), &skep.LookupRequest{Scope: skep.Scope{Namespace: x.ns.ID}, Keys: keys})
	require.NoError(t, err)
	require.Equal(t, 8, r.Blocks)
}
