package store

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
)

// A Durable block that the index has no room for was committed before that was known. It is
// declined only when its row is gone for good: no crash after the answer brings it back.
func TestRefusedStaysRefused(t *testing.T) {
	t.Parallel()
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

// The catalog refuses a put's rows, and the log has its record. Who deletes the key, which is not there, has a
// tombstone written all the same: a rebuild, which has the log only, does not find it.
func TestDeletedAfterItsRowWasRefusedStaysGone(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	r := &refuser{}
	s, _, o := openRig(t, func(o *Options) { o.refuseCommits = r.refuse })
	sc := openSpace(t, s, "n", skep.Durable, 1, false)
	kept, gone := chainKeys(1, 3), keyOf(7)
	requireOutcome(t, skep.Committed, putRun(t, s, sc, kept, faultBlock)) // a group is open
	r.during(t, func() error {
		_, err := heapPut(ctx, s, putRequest(sc, nil, 0, []skep.Key{gone}, faultBlock))
		return err
	})
	n, err := s.Delete(ctx, sc, []skep.Key{gone})
	require.NoError(t, err)
	require.Zero(t, n)
	require.NoError(t, s.Close())

	s = rebuilt(t, o)
	require.Empty(t, present(t, s, sc, []skep.Key{gone}), "deleted, and back")
	requireChain(t, s, sc, kept, faultBlock)
	require.NoError(t, s.Close())
}
