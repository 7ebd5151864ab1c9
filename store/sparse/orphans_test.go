package sparse

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
)

// failingPut is a Store of which one put fails, the n-th from now.
type failingPut struct {
	skep.Store
	n    int
	then func() // is called as it fails
}

var errPut = errors.New("no room")

func (f *failingPut) Put(ctx context.Context, r *skep.PutRequest) ([]skep.PutResult, error) {
	if f.n--; f.n == 0 {
		f.then()
		return nil, errPut
	}
	return f.Store.Put(ctx, r)
}

// nothingStored requires that no block of a context is stored, nor of any other.
func (b *bed) nothingStored(msg string) {
	b.Helper()
	all, err := b.st.Namespaces(b.ctx)
	require.NoError(b, err)
	for _, ns := range all {
		if ns.ID == b.scope.Namespace {
			continue
		}
		n, err := b.st.CountBlocks(b.ctx, ns.ID)
		require.NoError(b, err)
		require.Zero(b, n, "%s: of namespace %s", msg, ns.Name)
	}
}

func threeLayers() skep.Shape {
	shape := bedShape
	shape.Layers = 3
	return shape
}

// A Cluster that fails, or is given up, leaves nothing that nobody could name: without a
// description no drop would find it.
func TestAFailedClusterLeavesNothing(t *testing.T) {
	t.Parallel()
	b := newBedOf(t, threeLayers())
	f := &failingPut{Store: b.st.Store}
	b.st.Store = f
	for n := 1; ; n++ {
		ctx, cancel := context.WithCancel(b.ctx)
		f.n, f.then = n, cancel
		_, err := b.sp.Cluster(ctx, &skep.ClusterRequest{Scope: b.scope, Keys: b.keys, QueryHeads: 2})
		cancel()
		if err == nil {
			require.Equal(t, 3*2+1+1, n) // of each layer the records and the arrangement; the description
			return
		}
		require.ErrorIs(t, err, errPut)
		b.nothingStored(fmt.Sprintf("put %d failed", n))
	}
}

// A context of which some layer's arrangement is gone leaves nothing of the layers after it, nor
// of the tokens.
func TestADropWithoutSomeArrangementDeletesTheOtherLayers(t *testing.T) {
	t.Parallel()
	b := newBedOf(t, threeLayers())
	k := b.clustered()
	_, err := k.Append(b.ctx, [][]byte{bedEntry(bedTokens), bedEntry(bedTokens), bedEntry(bedTokens)})
	require.NoError(t, err)
	gone := k.layers[1].arranged().recordKeys(k, 1)
	require.NoError(t, k.Close(b.ctx))
	_, err = b.st.Delete(b.ctx, k.meta, []skep.Key{k.key("arrangement", 1)})
	require.NoError(t, err)
	_, err = b.st.Delete(b.ctx, k.records, gone) // what they are nobody says any more
	require.NoError(t, err)
	_, err = b.sp.OpenContext(b.ctx, b.scope, b.last())
	require.ErrorIs(t, err, skep.NotFound)
	b.nothingStored("layer 1 is gone")
}
