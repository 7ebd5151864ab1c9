package store

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/device"
)

// that it holds itself.
func TestALargeBlockInUnalignedMemory(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	s, _, _ := openRig(t, func(o *Options) {
		o.SegmentBytes, o.CapacityBytes, o.IOBytes = 16<<20, 2*(5*16<<20+8<<10), leastIOBytes
	})
	defer func() { require.NoError(t, s.Close()) }()
	sc := openSpace(t, s, "n", skep.Cache, 1, false)
	size := int(s.options.IOBytes) + 4<<20
	bytes := device.AlignedBuffer(size + device.Align)[1:][:size]
	copy(bytes[size-8:], "the end.")
	res, err := s.Put(ctx, &skep.PutRequest{Scope: sc, Blocks: []skep.Block{{Key: keyOf(1),
		Parts: []skep.Part{{Bytes: bytes}}}}})
	require.NoError(t, err)
	requireOutcome(t, skep.Committed, res)
	require.Zero(t, s.arena.Stats().IOUsed, "all of them are back")
}
