package store

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
)

// tailSpace opens a durable namespace some of whose blocks are partial tails.
func tailSpace(t testing.TB, s *Store) skep.Scope {
	t.Helper()
	n, err := s.OpenNamespace(testContext(t), skep.NamespaceSpec{Tenant: "t", Name: "n", Shape: halfShape,
		Class: skep.Durable, Copies: 1, Chained: true})
	require.NoError(t, err)
	return skep.Scope{Namespace: n.ID}
}

// Many blocks of one put name what they replace, and none of that is a tail: the room for their tombstones stays in the
// log, which is read as before.
func TestManyBlocksReplaceWhatIsNoTail(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	o := small(tempRoot(t, "store"))
	s, err := Open(ctx, o)
	require.NoError(t, err)
	sc := tailSpace(t, s)
	whole, keys, later := chainKeys(1, 64), chainKeys(2, 128), chainKeys(3, 1)
	const size = 1 << 10
	requireOutcome(t, skep.Committed, putRun(t, s, sc, whole, size))
	for half := range 2 {
		part := keys[64*half:][:64]
		var parent *skep.Key
		if half == 1 {
			parent = &keys[63]
		}
		r := putRequest(sc, parent, 64*half, part, size)
		for i := range r.Blocks {
			absent := keyOf(4, uint32(i))
			r.Blocks[i].Replaces = []*skep.Key{&absent, &whole[i]}[half]
		}
		res, err := s.Put(ctx, r)
		require.NoError(t, err)
		requireOutcome(t, skep.Committed, res)
	}
	requireOutcome(t, skep.Committed, putRun(t, s, sc, later, size)) // behind them in the log
	check := func() {
		require.Equal(t, 64, prefix(t, s, sc, whole))
		require.Equal(t, 128, prefix(t, s, sc, keys))
		require.Equal(t, 1, prefix(t, s, sc, later))
	}
	check()
	for _, gone := range []string{"", "catalog"} {
		require.NoError(t, s.Close())
		if gone != "" {
			require.NoError(t, os.RemoveAll(filepath.Join(o.Dir, gone)))
		}
		s, err = Open(ctx, o)
		require.NoError(t, err)
		check()
	}
	require.NoError(t, s.Close())
}
