package store

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout"
)

// The row of a block cannot be read. Its group stays, however short of room the store is, and other groups are cleaned:
// a rebuild of the catalog has the block again.
func TestAGroupWithADamagedRowStays(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	s, _, _ := openRig(t, func(o *Options) { well(o); o.CapacityBytes, o.taskEvery = 3<<20, hangs })
	defer func() { require.NoError(t, s.Close()) }()
	sc, keys, g := putAway(t, s, skep.Cache)
	var at layout.Location
	var whole []byte
	require.NoError(t, s.catalog.ScanGroup(ctx, g.Num, func(l layout.Location, row []byte) error {
		at, whole = l, bytes.Clone(row)
		return nil
	}))
	put := func(row []byte) {
		b := s.catalog.NewBatch()
		b.PutBlock(at, row)
		require.NoError(t, s.catalog.Commit(ctx, b, true))
	}
	put(whole[:len(whole)-1])
	for _, keepAll := range []bool{true, false} {
		requireKind(t, skep.Damaged, s.cleaner.Clean(ctx, g, keepAll))
	}
	for i := range 400 { // several times what there is room for
		requireOutcome(t, skep.Committed, putRun(t, s, sc, []skep.Key{keyOf(uint32(i), 9)}, faultBlock))
	}
	require.Positive(t, s.count.Evicted.Load())
	require.True(t, s.space.Has(g))
	put(whole)
	requireChain(t, s, sc, keys, faultBlock)
	require.NoError(t, s.cleaner.Clean(ctx, g, true))
	requireChain(t, s, sc, keys, faultBlock)
}
