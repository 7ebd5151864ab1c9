package space

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A restore finds wrong bytes in a group that was freed while it read: the group counts as stale until it is looked for,
// and not for ever.
func TestAGroupThatIsGoneIsNotStale(t *testing.T) {
	t.Parallel()
	var table Table
	table.Suspect(&Group{})
	require.True(t, table.AnyStale())
	require.Nil(t, table.NextSuspect())
	require.False(t, table.AnyStale())
}

// A log that can never be compared with the catalog is read again seldom, and not each minute.
func TestALogThatIsNeverComparedRestsLonger(t *testing.T) {
	t.Parallel()
	var table Table
	g := &Group{}
	for _, rest := range []time.Duration{1, 2, 4, 8, 16, 32, 60, 60} {
		before := time.Now()
		table.SuspectLater(g)
		require.False(t, g.Rests.Before(before.Add(rest*time.Minute)))
		require.False(t, g.Rests.After(time.Now().Add(rest*time.Minute)))
	}
}
