//go:build linux

package lab_test

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep/tools/internal/reclaim"
)

// A few moves and kills, with the processes the command starts.
func TestBenchReclaim(t *testing.T) {
	t.Parallel()
	o := benchRun(t, "reclaim", "--moves", "3", "--kills", "2", "--json")
	require.Zero(t, o.Code, o.Stderr)
	var r reclaim.Result
	require.NoError(t, json.Unmarshal([]byte(o.Stdout), &r))
	require.True(t, r.Simulated)
	require.Zero(t, r.Wrong)
	require.Positive(t, r.Restores)
	times := map[string]int{}
	for _, x := range r.Rows {
		times[x.What] = x.Times
		require.Len(t, x.Samples, x.Times)
		require.Positive(t, x.P50)
		require.GreaterOrEqual(t, x.Most, x.P99)
	}
	require.Equal(t, map[string]int{"reclaim": 3, "borrower killed": 2, "lender killed": 2}, times)

	require.Contains(t, benchRun(t, "reclaim", "--moves", "1", "--kills", "0").Stdout, "simulated: true")
	require.Equal(t, 2, benchRun(t, "reclaim", "--moves", "0").Code)
}
