package sparse_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/sparse"
	"github.com/skepkv/skep/store/storetest"
)

// A layer laid out by keys is laid out by what was observed without anybody asking.
func TestTheBackgroundReclusters(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	sp, err := sparse.New(w.inner, sparse.Options{Devices: 3, Window: 4, Cost: told, Background: time.Millisecond})
	require.NoError(t, err)
	c, err := sp.Cluster(w.ctx, &skep.ClusterRequest{Scope: w.scope, Keys: w.keys, QueryHeads: 2})
	require.NoError(t, err)
	require.NoError(t, observe(w, c, 400, true))
	storetest.Eventually(t, "it is laid out anew", func() bool {
		require.NoError(t, observe(w, c, 64, true))
		return c.Info().PerLayer[0].Generation > 1
	})
	w.whole(c, worldTokens)
	require.NoError(t, sp.Close(w.ctx))
	_, err = sparse.New(w.inner, sparse.Options{Background: -1})
	require.ErrorIs(t, err, skep.Invalid)
}
