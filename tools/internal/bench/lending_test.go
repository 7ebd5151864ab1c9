package bench

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// The policies see the same requests. What looks at all of them keeps nobody waiting and lends most of
// the time's memory; what looks at one does where requests come one by one, and nowhere else.
func TestLending(t *testing.T) {
	t.Parallel()
	rows, err := lending(1)
	require.NoError(t, err)
	require.Len(t, rows, 6)
	for i, load := range []string{"quiet", "busy by turns"} {
		none, all, one := rows[3*i], rows[3*i+1], rows[3*i+2]
		require.Equal(t, []string{load, "none", "all-requests", "algorithm-1"}, []string{none.Load, none.Policy, all.Policy, one.Policy})
		require.Equal(t, none.Requests, all.Requests)
		require.Equal(t, none.Requests, one.Requests)
		require.Zero(t, none.LentGB+none.Waited+float64(none.Up+none.Down+none.Evicted+none.Stranded))
		require.Zero(t, all.Waited+float64(all.Evicted+all.Stranded))
		require.Greater(t, all.LentGB, 50.0)
		require.Greater(t, one.LentGB, all.LentGB)
	}
	require.Greater(t, rows[5].Waited, 0.9)
	require.Positive(t, rows[5].Evicted)
}
