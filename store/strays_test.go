package store

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/internal/space"
	"github.com/skepkv/skep/store/segment"
)

// A log has the record of an append that was never committed and replaced a block which is stored: its tombstone of the
// block is taken back. Where the catalog does not say in time what is stored, nobody knows, and that is no answer.
func TestWhatATombstoneIsTakenBackForIsKnown(t *testing.T) {
	t.Parallel()
	s, _, _ := openRig(t, well)
	defer func() { require.NoError(t, s.Close()) }()
	_, keys, g := putAway(t, s, skep.Durable)
	var rec segment.Record
	for _, rec = range recordsOf(t, s) {
		break
	}
	rec.Seq, rec.Key, rec.Replaces = s.root.Next(), keyOf(99), &keys[0]
	for _, late := range []bool{false, true} {
		ctx, cancel := context.WithCancel(testContext(t))
		defer cancel()
		list, err := s.logs.Strays(ctx, g, func(_ context.Context, _ *space.Group,
			visit func(*segment.Append, segment.Entry) error) error {
			if late {
				cancel()
			}
			return visit(&segment.Append{Seq: rec.Seq}, segment.Entry{Kind: segment.KindBlock, Body: rec.Append(nil)})
		})
		if late {
			requireKind(t, skep.Deadline, err)
			continue
		}
		require.NoError(t, err)
		require.Len(t, list, 2)
		require.Equal(t, keys[0], list[1].Key)
		require.Equal(t, rec.Seq, list[1].Covers)
		require.True(t, list[1].Exact)
	}
}
