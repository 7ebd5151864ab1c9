package sparse_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/sparse"
)

// A layer laid out by keys is laid out by what was observed without anybody asking.
func TestTheBackgroundReclusters(t *testing.T) {
	w := newWorld(t)
	sp, err := sparse.New(w.inner, sparse.Options{Devices: 3, Window: 4, Cost: told, Background: time.Millisecond})
	require.NoError(t, err)
	c, err := sp.Cluster(w.ctx, &skep.ClusterRequest{Scope: w.scope, Keys: w.keys, QueryHeads: 2})
	require.NoError(t, err)
	require.NoError(t, observe(w, c, 400, true))
	for c.Info().PerLayer[0].Generation == 1 {
		require.NoError(t, w.ctx.Err(), "it never happened")
		require.NoError(t, observe(w, c, 64, true))
		time.Sleep(time.Millisecond)
	}
	w.whole(c, worldTokens)
	require.NoError(t, sp.Close(w.ctx))
	_, err = sparse.New(w.inner, sparse.Options{Background: -1})
	require.ErrorIs(t, err, skep.Invalid)
}
