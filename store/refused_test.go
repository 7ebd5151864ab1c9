package store

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
)

// A Durable block that the index has no room for was committed before that was known. It is
// declined only when its row is gone for good: no crash after the answer brings it back.
func TestRefusedStaysRefused(t *testing.T) {
	s, _, crash := crashRig(t, func(o *Options) {
		o.BlockBytes, o.IndexBytes = 64<<10, 64*80
	})
	sc := openSpace(t, s, "n", skep.Durable, 1, false)
	var kept, refused []skep.Key
	for i := 0; len(refused) < 3; i++ {
		require.Less(t, i, 1000, "the index never fills up")
		k := keyOf(uint32(i), 7)
		switch res := putRun(t, s, sc, []skep.Key{k}, 3000); res[0].Outcome {
		case skep.Committed:
			kept = append(kept, k)
		default:
			require.Equal(t, skep.Declined, res[0].Outcome)
			refused = append(refused, k)
		}
	}
	o := crash("refused")
	require.NoError(t, s.Close())
	o.IndexBytes = 0 // there is room now, and they would be found
	s, err := Open(testContext(t), o)
	require.NoError(t, err)
	requireChain(t, s, sc, kept, 3000)
	n, _ := requireRight(t, s, sc, refused, 3000)
	require.Zero(t, n)
	require.NoError(t, s.Close())
}
