package inspect_test

import (
	"log/slog"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store"
	"github.com/skepkv/skep/tools/internal/inspect"
)

// Rows of what was purged stay until their group is cleaned.
func TestWhatWasPurgedIsNotShown(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s, err := store.Open(t.Context(), store.Options{Dir: dir, DeviceCount: 1, CapacityBytes: 64 << 20})
	require.NoError(t, err)
	ns, err := s.OpenNamespace(t.Context(), skep.NamespaceSpec{Tenant: "t", Name: "n",
		Shape: skep.Shape{Kind: skep.Opaque, BlockTokens: 1}, Chained: true})
	require.NoError(t, err)
	r := &skep.PutRequest{Scope: skep.Scope{Namespace: ns.ID}}
	var keys []skep.Key
	for i := range 3 {
		var parent *skep.Key
		if i > 0 {
			parent = &keys[i-1]
		}
		keys = append(keys, skep.ChainKey(parent, []uint32{uint32(i)}))
		r.Blocks = append(r.Blocks, skep.Block{Key: keys[i], Parts: []skep.Part{{Bytes: make([]byte, 4096)}}})
	}
	_, err = s.Put(t.Context(), r)
	require.NoError(t, err)
	require.NoError(t, s.Purge(t.Context(), skep.Purge{Namespace: ns.ID}))
	found, err := s.Lookup(t.Context(), &skep.LookupRequest{Scope: r.Scope, Keys: keys, Lease: skep.NoLease})
	require.NoError(t, err)
	require.Zero(t, found.Blocks)
	require.NoError(t, s.Close())

	v, err := inspect.Open(dir, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	defer v.Close()
	chain, err := v.Chain(t.Context(), keys)
	if err == nil {
		assert.Zero(t, chain.Restorable, "blocks that can be restored, of a chain that was purged")
	}
	block, err := v.Block(t.Context(), keys[0].String())
	if err == nil {
		assert.Empty(t, block.Blocks, "a block that was purged")
	}
}
