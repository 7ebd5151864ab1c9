package sparse_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store"
	"github.com/skepkv/skep/store/sparse"
)

// What is appended to a context of a namespace of two copies is stored twice, as its chain is: any one drive may be
// lost, and the store opens without it.
func TestWhatIsAppendedHasAsManyCopiesAsItsChain(t *testing.T) {
	t.Parallel()
	const drives, tokens, appended = 3, 64, 9
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	shape := skep.Shape{Kind: skep.Latent, Layers: 1, HeadDim: 2048, Element: skep.F32, BlockTokens: 16}
	entry := func(e int) []byte {
		b := make([]byte, 4*shape.HeadDim) // too large for the catalog
		copy(b, fmt.Sprintf("entry %d", e))
		return b
	}
	dir, elsewhere := t.TempDir(), t.TempDir()
	open := func() (*store.Store, *sparse.Sparse) {
		st, err := store.Open(ctx, store.Options{Dir: dir, DeviceCount: drives, CapacityBytes: 96 << 20,
			BlockBytes: 128 << 10})
		require.NoError(t, err)
		sp, err := sparse.New(st, options())
		require.NoError(t, err)
		return st, sp
	}
	st, sp := open()
	ns, err := st.OpenNamespace(ctx, skep.NamespaceSpec{Tenant: "t", Name: "n", Shape: shape, Chained: true,
		Class: skep.Durable, Copies: 2})
	require.NoError(t, err)
	scope := skep.Scope{Namespace: ns.ID}
	var keys []skep.Key
	var parent *skep.Key
	var blocks []skep.Block
	for i := range tokens / shape.BlockTokens {
		k := skep.ChainKey(parent, []uint32{uint32(i)})
		parent, keys = &k, append(keys, k)
		var b []byte
		for e := range shape.BlockTokens {
			b = append(b, entry(i*shape.BlockTokens+e)...)
		}
		blocks = append(blocks, skep.Block{Key: k, Parts: []skep.Part{{Bytes: b}}})
	}
	_, err = st.Put(ctx, &skep.PutRequest{Scope: scope, Blocks: blocks})
	require.NoError(t, err)
	c, err := sp.Cluster(ctx, &skep.ClusterRequest{Scope: scope, Keys: keys, QueryHeads: 2})
	require.NoError(t, err)
	for e := range appended {
		_, err := c.Append(ctx, [][]byte{entry(tokens + e)})
		require.NoError(t, err)
	}
	require.NoError(t, sp.Close(ctx))
	require.NoError(t, st.Close())

	files, err := filepath.Glob(filepath.Join(dir, "device-*"))
	require.NoError(t, err)
	require.Len(t, files, drives)
	for _, file := range files {
		hidden := filepath.Join(elsewhere, filepath.Base(file))
		require.NoError(t, os.Rename(file, hidden))
		st, sp := open()
		c, err := sp.OpenContext(ctx, scope, keys[len(keys)-1])
		require.NoError(t, err, file)
		require.Equal(t, appended, c.Info().Appended, file)
		require.NoError(t, sp.Close(ctx))
		require.NoError(t, st.Close())
		require.NoError(t, os.Rename(hidden, file))
	}
}
