package replication

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
)

// What was sent to a node just before it went down is deleted without asking it: it is remembered for it.
func TestADeletionOfWhatWasSentToANodeThatIsDown(t *testing.T) {
	t.Parallel()
	x := fencedCrew(t, twice(2, 4), skep.Cache)
	keys := chainOf(1, 8)
	x.putWithoutB(keys, 8)
	require.EqualValues(t, 8, x.repair().Copied)
	x.kill(1)
	require.NoError(t, deleteKeys(t.Context(), x.Store, x.scope(), keys))
	x.start(1)
	x.nodes[1].down.Store(false)
	require.NoError(t, x.fences[1].Return(t.Context(), x.council))
	require.Empty(t, x.keysOf(1))
}

// deleting is a Store that does something before it deletes keys.
type deleting struct {
	skep.Store
	before func()
}

func (d deleting) Delete(ctx context.Context, sc skep.Scope, keys []skep.Key) (int, error) {
	d.before()
	return d.Store.Delete(ctx, sc, keys)
}

// A node that goes down while keys are deleted, when nobody has remembered them for it any more, is not passed by: the
// deletion names it, and is remembered when it is made again.
func TestADeletionThatANodesEndOvertakes(t *testing.T) {
	t.Parallel()
	x := fencedCrew(t, twice(2, 4), skep.Cache)
	keys := chainOf(1, 8)
	x.putWithoutB(keys, 8)
	require.EqualValues(t, 8, x.repair().Copied)
	own := x.nodes[0].Store
	x.nodes[0].Store = deleting{own, func() { x.kill(1) }}
	sc := skep.Scope{Namespace: 1}
	_, err := x.fences[0].Delete(t.Context(), sc, keys)
	require.ErrorIs(t, err, skep.Unavailable)
	require.ErrorContains(t, err, x.council.Map().Nodes[1].Name)
	require.Empty(t, x.council.Map().Nodes[1].Missed.Spaces)
	x.nodes[0].Store = own
	_, err = x.fences[0].Delete(t.Context(), sc, keys)
	require.NoError(t, err)
	x.comeBack(1)
	require.Zero(t, x.findLive(keys))
}
