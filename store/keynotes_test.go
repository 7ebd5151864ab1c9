package store

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/segment"
)

// openSealed makes a store with blocks of tenant t, encrypted with the first of the tests' keys.
func openSealed(t *testing.T) (Options, *Store, skep.Scope, []skep.Key) {
	o := small(tempRoot(t, "store"))
	o.EncryptionKeys, o.CacheBytes = oneKey("t", 1), -1
	unjudged(&o)
	s, err := Open(testContext(t), o)
	require.NoError(t, err)
	sc := openSpace(t, s, "secrets", skep.Cache, 1, true)
	keys := chainKeys(1, 4)
	requireOutcome(t, skep.Committed, putRun(t, s, sc, keys, 9000))
	return o, s, sc, keys
}

// reopened opens the store again with other keys.
func reopened(t *testing.T, o Options, ring map[string][]EncryptionKey) (*Store, error) {
	t.Helper()
	o.EncryptionKeys = ring
	return Open(testContext(t), o)
}

// The first put says which key is in use, and not the open after it: until then everything may be evicted.
func TestAPutSaysWhichKeyIsInUse(t *testing.T) {
	t.Parallel()
	o, s, sc, keys := openSealed(t)
	for _, k := range keys {
		_, err := s.Delete(testContext(t), sc, []skep.Key{k})
		require.NoError(t, err)
	}
	require.Zero(t, s.index.Stats().Blocks)
	require.NoError(t, s.Close())
	for _, ring := range []map[string][]EncryptionKey{nil, oneKey("t", 2)} {
		_, err := reopened(t, o, ring)
		requireKind(t, skep.Denied, err)
		require.ErrorContains(t, err, key(1).ID())
	}
}

// A program from before keys were noted has written with a new one, which the catalog does not name: the blocks do.
func TestAKeyThatOnlyBlocksNameIsRight(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	o, s, sc, _ := openSealed(t)
	require.NoError(t, s.SetEncryptionKeys(oneKey("t", 2, 1)))
	newer := chainKeys(2, 4)
	requireOutcome(t, skep.Committed, putRun(t, s, sc, newer, 9000))
	rows, err := s.catalog.Sealings(ctx)
	require.NoError(t, err)
	require.Len(t, rows, 2)
	b := s.catalog.NewBatch()
	for _, r := range rows {
		if segment.KeyID(r.Key).String() == key(2).ID() {
			b.DeleteSealing(r)
		}
	}
	require.Equal(t, 1, b.Len())
	require.NoError(t, s.catalog.Commit(ctx, b, true))
	require.NoError(t, s.Close())

	_, err = reopened(t, o, oneKey("t", 3))
	requireKind(t, skep.Denied, err)
	require.ErrorContains(t, err, key(2).ID(), "it says all of them")
	s, err = reopened(t, o, oneKey("t", 2))
	require.NoError(t, err)
	requireChain(t, s, sc, newer, 9000)
	require.NoError(t, s.Close())
}

// A row that a put wrote while its namespace was purged goes at the next open, and hinders nobody.
func TestKeysOfWhatIsGoneAreForgotten(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	o, s, sc, _ := openSealed(t)
	rows, err := s.catalog.Sealings(ctx)
	require.NoError(t, err)
	require.Len(t, rows, 1)
	require.NoError(t, s.Purge(ctx, skep.Purge{Namespace: sc.Namespace}))
	left, err := s.catalog.Sealings(ctx)
	require.NoError(t, err)
	require.Empty(t, left)
	b := s.catalog.NewBatch()
	b.PutSealing(rows[0])
	require.NoError(t, s.catalog.Commit(ctx, b, true))
	require.NoError(t, s.Close())

	o.ReadOnly = true
	s, err = reopened(t, o, nil)
	require.NoError(t, err, "nothing is written")
	require.NoError(t, s.Close())
	o.ReadOnly = false
	s, err = reopened(t, o, nil)
	require.NoError(t, err)
	left, err = s.catalog.Sealings(ctx)
	require.NoError(t, err)
	require.Empty(t, left)
	require.NoError(t, s.Close())
}

// A rebuild knows keys by the blocks, and the next open by what the rebuild's has noted.
func TestARebuildNotesKeysAnew(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	o, s, sc, keys := openSealed(t)
	require.NoError(t, s.Close())
	require.NoError(t, os.RemoveAll(filepath.Join(o.Dir, "catalog")))
	_, err := Rebuild(ctx, o, false, nil)
	require.NoError(t, err)
	s, err = reopened(t, o, oneKey("t", 1))
	require.NoError(t, err)
	for _, k := range keys {
		_, err := s.Delete(ctx, sc, []skep.Key{k})
		require.NoError(t, err)
	}
	require.NoError(t, s.Close())
	_, err = reopened(t, o, oneKey("t", 2))
	requireKind(t, skep.Denied, err)
}

// The first put of a namespace that is encrypted needs room to say which key is in use. Where there is none its blocks
// are declined, as any other's are, and put when there is room again; a writer that was begun meanwhile commits then.
func TestAPutThatCannotSayItsKeyIsDeclined(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	o := small(tempRoot(t, "store"))
	o.EncryptionKeys, o.CacheBytes = oneKey("t", 1), -1
	s, err := Open(ctx, o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	sc, keys := openSpace(t, s, "secrets", skep.Cache, 1, true), chainKeys(1, 2)
	begin := func() skep.BlockWriter {
		m := skep.Manifest{{Name: skep.PartKV, Size: 9000}}
		w, err := s.Begin(ctx, &skep.BeginRequest{Scope: sc, Key: keys[0], ValidTokens: anySize.BlockTokens, Manifest: m})
		require.NoError(t, err)
		require.NoError(t, w.Write(ctx, skep.PartKV, 0, content(keys[0], skep.PartKV, 1, 9000)))
		return w
	}
	say := s.keys.Config.Say
	var later skep.BlockWriter
	for _, why := range []skep.Kind{skep.Full, skep.ReadOnly, skep.DeviceFailed} {
		s.keys.Config.Say = func(context.Context, []byte) error { return &skep.Error{Op: "write log entries", Kind: why} }
		declined := skep.PutResult{Outcome: skep.Declined, Reason: why}
		require.Equal(t, []skep.PutResult{declined, declined}, putRun(t, s, sc, keys, 9000))
		r, err := begin().Commit(ctx, skep.AckCommitted)
		require.NoError(t, err)
		require.Equal(t, declined, r)
		later = begin()
	}
	s.keys.Config.Say = say
	r, err := later.Commit(ctx, skep.AckCommitted)
	require.NoError(t, err)
	require.Equal(t, skep.Committed, r.Outcome)
	requireOutcome(t, skep.Committed, putRun(t, s, sc, keys[1:], 9000))
	recs := recordsOf(t, s)
	require.Len(t, recs, 2)
	for _, rec := range recs {
		require.NotNil(t, rec.Sealed)
	}
}
