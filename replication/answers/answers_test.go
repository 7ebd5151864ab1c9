package answers

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
)

// Runs that were asked for together have one lease, and each its part of the tiers; asked for one by one each has its
// own, and what they have together ends with the first.
func TestWhatIsSaidOfRuns(t *testing.T) {
	t.Parallel()
	now := time.Now()
	var x Said
	x.Read(&skep.RunsRequest{Tiers: true}, &skep.RunsResult{Lease: skep.Lease{ID: 7, Until: now},
		Runs: []skep.RunFound{{Blocks: 1}, {}, {Blocks: 2}}, Tiers: []skep.Tier{1, 2, 3}})
	require.Equal(t, [][]skep.Tier{{1}, {}, {2, 3}}, x.Tiers)
	require.True(t, x.One)
	require.EqualValues(t, 7, x.Lease)

	x = Said{}
	x.Add(&skep.LookupResult{Blocks: 2, Tokens: 8, Bytes: 9, Lease: skep.Lease{ID: 1, Until: now.Add(time.Minute)}})
	x.Add(&skep.LookupResult{LeaseDenied: true})
	x.Add(&skep.LookupResult{Blocks: 1, Lease: skep.Lease{ID: 2, Until: now.Add(time.Second)}})
	require.Equal(t, []skep.RunFound{{Blocks: 2, Tokens: 8, Bytes: 9}, {}, {Blocks: 1}}, x.Found)
	require.Equal(t, []skep.LeaseID{1, 0, 2}, x.Leases)
	require.Equal(t, now.Add(time.Second), x.Until)
	require.True(t, x.Denied)
}
