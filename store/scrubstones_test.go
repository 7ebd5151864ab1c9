package store

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/internal/space"
	"github.com/skepkv/skep/store/segment"
)

// A tombstone that stands on one drive only is written again while it may cover something: not when its namespace was
// purged, nor when every group was opened after it was made.
func TestOldTombstonesAreNotWrittenAgain(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	s, sc, keys := openCopies(t, 1)
	defer func() { require.NoError(t, s.Close()) }()
	ns, tag, err := s.names.Resolve("test", sc)
	require.NoError(t, err)
	stone := segment.Tombstone{Seq: s.root.Next(), Covers: 1, Instance: ns.Instance, SaltTag: segment.SaltTag(tag),
		Key: keys[0]}
	needed := func(stone segment.Tombstone) bool {
		needed, err := s.mends.LogAgain(ctx, entriesOf(t, stone), true)
		require.NoError(t, err)
		return needed
	}
	require.True(t, needed(stone))
	s.space.SealOpen(space.User)
	for _, g := range s.space.Groups() {
		eventually(t, "it is cleaned", func() bool { return s.cleaner.Clean(ctx, g, true) == nil })
		eventually(t, "its drives are told", func() bool { return isFreed(g) })
	}
	oldest := s.space.OldestBeside(nil)
	require.Greater(t, oldest, uint64(1))
	later := stone
	stone.Seq, later.Seq = oldest-1, oldest
	require.False(t, needed(stone))
	require.True(t, needed(later))
	require.NoError(t, s.Purge(ctx, skep.Purge{Namespace: sc.Namespace}))
	require.False(t, needed(later))
}
