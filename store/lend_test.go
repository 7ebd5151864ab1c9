package store

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/storetest"
)

// A block of several units is read device by device, from the second device on for
// every other block. What is kept of it in memory has its bytes in their own order.
func TestBlocksOfSeveralUnitsComeOutOfMemoryAsTheyWent(t *testing.T) {
	t.Parallel()
	const size, blocks = 2<<20 + 5000, 12
	for _, devices := range []int{1, 2, 3, 5} {
		s := openTest(t, Options{DeviceCount: devices, CacheBytes: 64 << 20, IOBytes: 64 << 20, LeasedBytes: 1 << 40})
		c := storedChain(t, s, skep.Shape{BlockTokens: 1, Bytes: size}, blocks, size)
		tiers := map[skep.Tier]int{}
		for range 3 {
			ses, err := s.Restore(t.Context(), &skep.RestoreRequest{Chains: []skep.Chain{c}})
			require.NoError(t, err)
			eachChunk(t, ses, func(ch *skep.Chunk) {
				require.NoError(t, ch.Err)
				tiers[ch.Tier]++
				require.True(t, slices.Equal(storetest.Payload(c.Keys[ch.Block], skep.PartKV, size), slices.Concat(ch.Data...)),
					"%d devices: block %d from %v", devices, ch.Block, ch.Tier)
				ch.Release()
			})
			require.NoError(t, ses.Close(t.Context()))
		}
		require.Equal(t, blocks, tiers[skep.TierDevice], "the first pass, and no other")
		require.Equal(t, 2*blocks, tiers[skep.TierDRAM])
	}
}
