package sparse_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/sparse"
	"github.com/skepkv/skep/store/storetest"
)

// Who deletes a chain deletes its clustered form: of an open context, of one that is only
// stored, and of one whose salt the events do not tell, when it is open. Other contexts stay.
func TestTheClusteredFormFollowsItsChain(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		open   bool
		salted bool
	}{
		{name: "open", open: true},
		{name: "stored"},
		{name: "open, salted", open: true, salted: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t)
			if tt.salted {
				w.salt("a user's")
			}
			sp, err := sparse.New(w.inner, sparse.Options{Devices: 3, Cost: told})
			require.NoError(t, err)
			defer func() { require.NoError(t, sp.Close(w.ctx)) }()
			c, err := sp.Cluster(w.ctx, &skep.ClusterRequest{Scope: w.scope, Keys: w.keys, QueryHeads: 2})
			require.NoError(t, err)
			other, err := sp.Cluster(w.ctx, &skep.ClusterRequest{Scope: w.scope, Keys: w.keys[:20], QueryHeads: 2})
			require.NoError(t, err)
			two := w.clusteredBlocks()
			if !tt.open {
				require.NoError(t, c.Close(w.ctx))
			}
			_, err = w.inner.Delete(w.ctx, w.scope, w.keys[30:])
			require.NoError(t, err)
			storetest.Eventually(t, "what was clustered goes", func() bool { return w.clusteredBlocks() != two })
			require.Positive(t, w.clusteredBlocks())
			w.whole(other, 20*16)
			_, err = sp.OpenContext(w.ctx, w.scope, w.keys[len(w.keys)-1])
			require.ErrorIs(t, err, skep.NotFound)
		})
	}
}

// salt puts the chain again under a salt, and goes on with that.
func (w *world) salt(text string) {
	plain := w.scope
	w.scope.Salt = skep.Salt(text)
	var blocks []skep.Block
	for i, k := range w.keys {
		var b []byte
		for t := range 16 {
			b = append(b, latent(i*16+t)...)
		}
		blocks = append(blocks, skep.Block{Key: k, Parts: []skep.Part{{Bytes: b}}})
	}
	_, err := w.inner.Put(w.ctx, &skep.PutRequest{Scope: w.scope, Blocks: blocks})
	require.NoError(w.t, err)
	_, err = w.inner.Delete(w.ctx, plain, w.keys)
	require.NoError(w.t, err)
}

// clusteredBlocks is how many blocks there are beside the chain's.
func (w *world) clusteredBlocks() int64 {
	st, err := w.inner.Stats(w.ctx)
	require.NoError(w.t, err)
	chain, err := w.inner.Lookup(w.ctx, &skep.LookupRequest{Scope: w.scope, Keys: w.keys})
	require.NoError(w.t, err)
	return st.Blocks - int64(chain.Blocks)
}
