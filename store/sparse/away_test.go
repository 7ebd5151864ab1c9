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
	"github.com/skepkv/skep/store/storetest"
)

// While a drive is away a context is not found to be gone, or shorter than it is: opening it says
// that the drive cannot be read, or all that was acknowledged is there. When the drive is back
// everything is as it was.
func TestNothingIsForgottenWhileADriveIsAway(t *testing.T) {
	t.Parallel()
	const (
		drives   = 3
		tokens   = 64
		appended = 12
	)
	shape := skep.Shape{Kind: skep.Latent, Layers: 1, HeadDim: 2048, Element: skep.F32, BlockTokens: 16} // too large for the catalog
	entry := func(e int) []byte {
		b := make([]byte, 4*shape.HeadDim)
		copy(b, fmt.Sprintf("entry %d", e))
		return b
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	dir, elsewhere := t.TempDir(), t.TempDir()
	open := func() (*store.Store, *sparse.Sparse) {
		st, err := store.Open(ctx, store.Options{Dir: dir, DeviceCount: drives, CapacityBytes: 96 << 20, BlockBytes: 128 << 10, Degraded: store.DegradedAlways})
		require.NoError(t, err)
		sp, err := sparse.New(st, options())
		require.NoError(t, err)
		return st, sp
	}
	done := func(st *store.Store, sp *sparse.Sparse) {
		require.NoError(t, sp.Close(ctx))
		require.NoError(t, st.Close())
	}

	st, sp := open()
	ns, err := st.OpenNamespace(ctx, skep.NamespaceSpec{Tenant: "t", Name: "n", Shape: shape, Chained: true, Class: skep.Durable, Copies: 1})
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
	require.NoError(t, st.Flush(ctx))
	cluster := &skep.ClusterRequest{Scope: scope, Keys: keys, QueryHeads: 2}
	c, err := sp.Cluster(ctx, cluster)
	require.NoError(t, err)
	for e := range appended {
		_, err := c.Append(ctx, [][]byte{entry(tokens + e)})
		require.NoError(t, err)
	}
	done(st, sp)

	files, err := filepath.Glob(filepath.Join(dir, "device-*"))
	require.NoError(t, err)
	away, failed := 0, 0
	for _, file := range files {
		away++
		hidden := filepath.Join(elsewhere, filepath.Base(file))
		require.NoError(t, os.Rename(file, hidden))
		st, sp := open()
		for _, again := range []func() (skep.SparseContext, error){
			func() (skep.SparseContext, error) { return sp.OpenContext(ctx, scope, keys[len(keys)-1]) },
			func() (skep.SparseContext, error) { return sp.Cluster(ctx, cluster) },
		} {
			c, err := again()
			if err == nil {
				require.Equal(t, appended, c.Info().Appended, file)
				continue
			}
			require.ErrorIs(t, err, skep.DeviceFailed, file)
			require.NotErrorIs(t, err, skep.NotFound)
			failed++
		}
		done(st, sp)
		require.NoError(t, os.Rename(hidden, file))
	}
	require.Equal(t, drives, away)
	require.Positive(t, failed, "a drive was not missed")

	st, sp = open()
	defer done(st, sp)
	read := func(what string, f func() error) { // a drive that took too long is dead for a while
		t.Helper()
		storetest.Eventually(t, what, func() bool {
			err := f()
			if err != nil {
				require.ErrorIs(t, err, skep.DeviceFailed)
			}
			return err == nil
		})
	}
	read("open", func() error { c, err = sp.OpenContext(ctx, scope, keys[len(keys)-1]); return err })
	require.Equal(t, appended, c.Info().Appended)
	for e := range tokens + appended {
		dst := [][]byte{make([]byte, len(entry(0)))}
		var r skep.FetchResult
		read("fetch", func() error { r, err = c.Fetch(ctx, 0, []uint32{uint32(e)}, dst); return err })
		require.Empty(t, r.Missing)
		require.Equal(t, entry(e), dst[0], "entry %d", e)
	}
}
