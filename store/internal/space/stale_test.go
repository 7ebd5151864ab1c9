package space

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
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

// A group waits to be told of as gone for drives that may be back, and not for those that were taken out or given up.
func TestAGroupWaitsForNoDriveThatIsGoneForGood(t *testing.T) {
	t.Parallel()
	here, away, gaveUp, removed := &Drive{}, &Drive{Absent: skep.Missing}, &Drive{Absent: skep.Missing, GivenUp: true},
		&Drive{}
	removed.Removed.Store(true)
	for _, c := range []struct {
		drives []*Drive
		want   bool
	}{
		{[]*Drive{removed}, false},
		{[]*Drive{gaveUp}, false},
		{[]*Drive{gaveUp, removed}, false},
		{[]*Drive{gaveUp, away}, true},
		{[]*Drive{gaveUp, away, here}, false},
	} {
		require.Equal(t, c.want, (&Group{Drives: c.drives}).untold(), "%+v", c)
	}
}
