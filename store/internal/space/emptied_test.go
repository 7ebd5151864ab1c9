package space

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep/store/internal/health"
)

// Who waits for the segments of emptied groups, as the cleaner does at its end, does not wait for a group whose drives
// are all dead: nobody can tell them.
func TestNobodyWaitsForAnEmptiedGroupWithoutDrives(t *testing.T) {
	t.Parallel()
	var table Table
	d, g := &Drive{}, &Group{}
	g.Drives = []*Drive{d}
	table.Empty(claimed(g))
	require.True(t, table.Emptying())
	d.Standing.Set(health.Dead)
	require.False(t, table.Emptying())
	g.Life.Become(Freed) // just before
	require.True(t, table.Emptying(), "a reader has it")
}

func claimed(g *Group) *Group {
	g.Life.Found()
	g.Life.Take(Claim{By: Cleaner})
	return g
}
