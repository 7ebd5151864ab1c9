package cli_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store"
)

// encryptionKey is a key of n.
func encryptionKey(t *testing.T, n byte) store.EncryptionKey {
	t.Helper()
	b := make([]byte, 32)
	b[0] = n
	k, err := store.NewEncryptionKey(b)
	require.NoError(t, err)
	return k
}

// An operator is told by nothing but the directory which keys may be thrown away, also while the store is open: of each
// tenant those that no block needs any more, whether they were rotated out or what needed them is gone.
func TestInspectKeysSaysWhichKeysAreNeeded(t *testing.T) {
	t.Parallel()
	first, second, others := encryptionKey(t, 1), encryptionKey(t, 2), encryptionKey(t, 3)
	o := store.Options{Dir: t.TempDir(), DeviceCount: 1, CapacityBytes: 8 << 20, SegmentBytes: 128 << 10,
		BlockBytes: 8 << 10, CacheBytes: -1, IOBytes: 16 << 20,
		EncryptionKeys: map[string][]store.EncryptionKey{"a": {first}}}
	st, err := store.Open(t.Context(), o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, st.Close()) })
	space := func(tenant, name string) skep.Scope {
		info, err := st.OpenNamespace(t.Context(), skep.NamespaceSpec{Tenant: tenant, Name: name, Class: skep.Durable,
			Shape: skep.Shape{Kind: skep.Opaque, BlockTokens: 1}})
		require.NoError(t, err)
		return skep.Scope{Namespace: info.ID}
	}
	put := func(sc skep.Scope, n, size int) {
		for i := range n { // small ones lie in the catalog
			key := skep.KeyOf([]byte{byte(n), byte(size), byte(i)})
			r, err := st.Put(t.Context(), &skep.PutRequest{Scope: sc,
				Blocks: []skep.Block{{Key: key, Parts: []skep.Part{{Bytes: make([]byte, size)}}}}})
			require.NoError(t, err)
			require.Equal(t, skep.Committed, r[0].Outcome)
		}
	}
	row := func(tenant, id string, blocks, size int) any {
		return map[string]any{"tenant": tenant, "key_id": id, "blocks": float64(blocks),
			"block_bytes": float64(blocks * size), "durable": float64(blocks)}
	}
	needed := func() any { return skepRun(t, "inspect", "keys", "--dir", o.Dir, "--json").OK(t)["keys"] }

	assert.Empty(t, needed(), "a store without blocks")
	old, plain := space("a", "old"), space("b", "plain")
	put(old, 3, 100)
	put(plain, 2, 9000)
	require.NoError(t, st.SetEncryptionKeys(map[string][]store.EncryptionKey{"a": {second, first}, "": {others}}))
	put(space("a", "new"), 4, 9000)
	put(space("c", "new"), 1, 9000)
	all := []any{row("a", first.ID(), 3, 100), row("a", second.ID(), 4, 9000), row("b", "", 2, 9000),
		row("c", others.ID(), 1, 9000)}
	assert.ElementsMatch(t, all, needed())

	require.NoError(t, st.Purge(t.Context(), skep.Purge{Namespace: old.Namespace}))
	assert.ElementsMatch(t, all[1:], needed(), "the first key is needed by nothing any more")
	said := skepRun(t, "inspect", "keys", "--dir", o.Dir)
	assert.Zero(t, said.Code, said.Stderr)
	assert.NotContains(t, said.Stdout, first.ID())
	assert.Contains(t, said.Stdout, second.ID())
	assert.Contains(t, said.Stdout, "not encrypted")
}
