package space

import (
	"testing"

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
