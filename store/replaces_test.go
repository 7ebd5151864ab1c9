package store

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/device"
	"github.com/skepkv/skep/store/storetest"
)

// tailSpace opens a durable namespace some of whose blocks are partial tails.
func tailSpace(t testing.TB, s *Store, chained bool) skep.Scope {
	t.Helper()
	n, err := s.OpenNamespace(testContext(t), skep.NamespaceSpec{Tenant: "t", Name: "n", Shape: halfShape,
		Class: skep.Durable, Copies: 1, Chained: chained})
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
	sc := tailSpace(t, s, true)
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

// requireAlone requires that k is all there is in s, and that the index and the rows agree upon it.
func requireAlone(t *testing.T, s *Store, sc skep.Scope, k skep.Key) {
	t.Helper()
	require.EqualValues(t, 1, s.index.Stats().Blocks)
	require.Equal(t, 1, prefix(t, s, sc, []skep.Key{k}))
	require.Len(t, recordsOf(t, s), 1)
	require.EqualValues(t, 8<<10, s.names.Get(sc.Namespace).Stored.Load())
}

// version gives a block other bytes than putRequest does, as a partial tail or whole.
func version(k skep.Key, v, valid int) skep.Block {
	return skep.Block{Key: k, ValidTokens: valid, Parts: []skep.Part{{Bytes: content(k, skep.PartKV, v, 8<<10)}}}
}

// Of two puts of a key at once the later one is committed first. The earlier one, which is outdated then, names a tail:
// that is gone from the index as its row is.
func TestAnOutdatedPutDropsWhatItReplaces(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	s, r, _ := openRig(t, func(o *Options) {
		unjudged(o)
		o.OpTimeout = hangs
	})
	defer func() { require.NoError(t, s.Close()) }()
	sc := tailSpace(t, s, false)
	tail, k := keyOf(1), keyOf(2)
	put := func(t testing.TB, list ...skep.Block) {
		res, err := s.Put(ctx, &skep.PutRequest{Scope: sc, Blocks: list})
		require.NoError(t, err)
		requireOutcome(t, skep.Committed, res)
	}
	put(t, version(tail, 1, 1))
	r.each(func(_ int, d *device.Fault) { d.MustInject(holdWritesOf(k)) })
	first := version(k, 1, 0)
	first.Replaces = &tail
	crew := storetest.NewCrew(t)
	crew.Go(func(t testing.TB) { put(t, first) })
	require.NoError(t, waitHeld(r, 1))
	put(t, version(k, 2, 0))
	r.each(func(_ int, d *device.Fault) { d.Release() })
	crew.Wait()
	requireAlone(t, s, sc, k)
}

// A tail and the block that replaces it come in one put, over an older tail or over none. The tail is gone once the put
// is answered: no row of it is left, and no crash brings one back.
func TestATailOfTheSamePutIsDroppedForGood(t *testing.T) {
	t.Parallel()
	for name, older := range map[string]bool{"none before": false, "over an older one": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx := testContext(t)
			s, _, crash := crashRig(t, func(*Options) {})
			sc := tailSpace(t, s, false)
			tail, k := keyOf(1), keyOf(2)
			if older {
				res, err := s.Put(ctx, &skep.PutRequest{Scope: sc, Blocks: []skep.Block{version(tail, 1, 1)}})
				require.NoError(t, err)
				requireOutcome(t, skep.Committed, res)
			}
			whole := version(k, 1, 0)
			whole.Replaces = &tail
			res, err := s.Put(ctx, &skep.PutRequest{Scope: sc, Blocks: []skep.Block{version(tail, 2, 1), whole}})
			require.NoError(t, err)
			requireOutcome(t, skep.Committed, res)
			o := crash("")
			requireAlone(t, s, sc, k)
			require.NoError(t, s.Close())
			s, err = Open(ctx, o)
			require.NoError(t, err)
			requireAlone(t, s, sc, k)
			require.NoError(t, s.Close())
		})
	}
}

// apart is a, blocks of other keys, and b: more than one append takes where segments are small.
func apart(a, b skep.Block) []skep.Block {
	list := []skep.Block{a}
	for i := range 60 {
		list = append(list, version(keyOf(9, uint32(i)), 1, 0))
	}
	return append(list, b)
}

// afterARebuild puts some, one put after the other, and gives the store as it is when its catalog is lost after that.
func afterARebuild(t *testing.T, puts ...[]skep.Block) (s *Store, sc skep.Scope) {
	ctx := testContext(t)
	o := small(tempRoot(t, "store"))
	s, err := Open(ctx, o)
	require.NoError(t, err)
	sc = tailSpace(t, s, false)
	for _, blocks := range puts {
		res, err := s.Put(ctx, &skep.PutRequest{Scope: sc, Blocks: blocks})
		require.NoError(t, err)
		requireOutcome(t, skep.Committed, res)
	}
	before := len(recordsOf(t, s))
	require.NoError(t, s.Close())
	require.NoError(t, os.RemoveAll(filepath.Join(o.Dir, "catalog")))
	s, err = Open(ctx, o)
	require.NoError(t, err)
	require.Len(t, recordsOf(t, s), before)
	return s, sc
}

// A block of the key that another block of its put replaces stays, if it is whole or comes behind that: a rebuild does
// not forget it with the older one that went.
func TestARebuildKeepsWhatIsPutWithWhatReplacesTheOlder(t *testing.T) {
	t.Parallel()
	tail, k := keyOf(1), keyOf(2)
	replacing := version(k, 1, 0)
	replacing.Replaces = &tail
	for name, list := range map[string][]skep.Block{
		"whole, before it": {version(tail, 2, 0), replacing}, "partial, behind it": {replacing, version(tail, 2, 1)},
		"whole, an append before it": apart(version(tail, 2, 0), replacing),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, sc := afterARebuild(t, []skep.Block{version(tail, 1, 1)}, list)
			got, err := fetch(t.Context(), s, skep.Chain{Scope: sc, Keys: []skep.Key{tail}})
			require.NoError(t, err)
			require.NoError(t, got[0].err)
			require.Equal(t, content(tail, skep.PartKV, 2, 8<<10), got[0].data)
			require.Len(t, recordsOf(t, s), len(list))
			require.NoError(t, s.Close())
		})
	}
}

// A tail that comes in a put before what replaces it is gone: no rebuild brings it back.
func TestARebuildForgetsATailOfTheSamePut(t *testing.T) {
	t.Parallel()
	tail, k := keyOf(1), keyOf(2)
	replacing := version(k, 1, 0)
	replacing.Replaces = &tail
	for name, list := range map[string][]skep.Block{
		"in the same append": {version(tail, 2, 1), replacing}, "an append before it": apart(version(tail, 2, 1), replacing),
	} {
		for older, puts := range map[string][][]skep.Block{
			"none before": {list}, "over an older one": {{version(tail, 1, 1)}, list},
		} {
			t.Run(name+", "+older, func(t *testing.T) {
				t.Parallel()
				s, sc := afterARebuild(t, puts...)
				require.Zero(t, prefix(t, s, sc, []skep.Key{tail}))
				require.Equal(t, 1, prefix(t, s, sc, []skep.Key{k}))
				require.NoError(t, s.Close())
			})
		}
	}
}
