package store

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
)

// putTails puts tails of one block after the other, each of which the next replaces, and gives their keys.
func putTails(t testing.TB, s *Store, sc skep.Scope, n int) (keys []skep.Key) {
	t.Helper()
	for i := range n {
		k := keyOf(7, uint32(i))
		b := skep.Block{Key: k, ValidTokens: 1, Parts: []skep.Part{{Bytes: content(k, skep.PartKV, i, 100)}}}
		if i > 0 {
			b.Replaces = &keys[i-1]
		}
		res, err := s.Put(testContext(t), &skep.PutRequest{Scope: sc, Blocks: []skep.Block{b}})
		require.NoError(t, err)
		requireOutcome(t, skep.Committed, res)
		keys = append(keys, k)
	}
	return keys
}

// The tombstone of a tail that was replaced is a deletion like any other, of which one drive may be lost, though the
// block that replaced it has one copy: a scrub finds nothing to write again, and a rebuild without any of the drives
// brings none of the tails back.
func TestWhatReplacedATailIsToldOnTwoDrives(t *testing.T) {
	t.Parallel()
	const tails = 6
	s, _, _ := openCopies(t, 1)
	ctx := testContext(t)
	sc := tailSpace(t, s, false)
	keys := putTails(t, s, sc, tails)
	o := s.options
	require.NoError(t, s.Close())
	s, err := Open(ctx, o)
	require.NoError(t, err)
	rep, err := s.Scrub(ctx, ScrubOptions{DryRun: true})
	require.NoError(t, err)
	require.True(t, rep.Sound(), "%+v", rep)
	require.NoError(t, s.Close())
	for missing := range o.DeviceCount {
		o := o
		o.OpenDevice, o.Degraded = nil, DegradedAlways
		o.Dir = filepath.Join(tempRoot(t, "copy"), "store")
		require.NoError(t, os.CopyFS(o.Dir, os.DirFS(s.options.Dir)))
		require.NoError(t, os.RemoveAll(filepath.Join(o.Dir, "catalog")))
		require.NoError(t, os.Remove(filepath.Join(o.Dir, "device-"+strconv.Itoa(missing))))
		_, err := Rebuild(ctx, o, false, nil)
		require.NoError(t, err)
		again, err := Open(ctx, o)
		require.NoError(t, err)
		for i, k := range keys[:tails-1] {
			require.Zero(t, prefix(t, again, sc, []skep.Key{k}), "tail %d without device %d", i, missing)
		}
		require.NoError(t, again.Close())
	}
}
