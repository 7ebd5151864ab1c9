package space

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// A group from its first header to its last, and what may become of one that fails.
func TestLife(t *testing.T) {
	t.Parallel()
	var g Life
	require.Equal(t, Preparing, g.State())
	for _, s := range []State{Spare, Open, Sealed} {
		g.Become(s)
		require.Equal(t, s, g.State())
	}
	require.Zero(t, g.Claim())
	g.Take(Claim{By: Mover})
	require.Equal(t, Claimed, g.State())
	require.Equal(t, Claim{By: Mover}, g.Release())
	require.Equal(t, Sealed, g.State())
	g.Take(Claim{By: Cleaner, KeepAll: true, Asked: true})
	require.Equal(t, Claim{By: Cleaner, KeepAll: true, Asked: true}, g.Claim())
	for _, s := range []State{Emptied, Freed, Gone} {
		g.Become(s)
		require.Equal(t, s, g.State())
		require.Zero(t, g.Claim())
	}

	var failed, found Life
	failed.Become(Failed)
	failed.Become(Gone)
	found.Found()
	require.Equal(t, Sealed, found.State())
}

// Every state has a name, and every change that the table lacks panics under the tag invariants.
func TestIllegalChangesPanic(t *testing.T) {
	t.Parallel()
	require.Len(t, after, len(names))
	require.Equal(t, "emptied", Emptied.String())
	require.Equal(t, "state 12", State(12).String())
	if !invariants {
		t.Skip("needs the build tag invariants")
	}
	legal := 0
	for from := range State(len(names)) {
		for to := range State(len(names)) {
			var g Life
			g.state.Store(int32(from))
			become := func() { g.Become(to) }
			switch {
			case from == Sealed && to == Claimed:
				require.Panics(t, become, "a claim has an owner")
				require.Panics(t, func() { g.Take(Claim{}) })
				g.Take(Claim{By: Cleaner})
				require.Panics(t, func() { g.Take(Claim{By: Mover}) }, "it has one already")
			case from == Claimed && to == Sealed:
				require.Panics(t, become, "who has it releases it")
				g.Release()
				require.Panics(t, func() { g.Release() })
			case slices.Contains(after[from], to):
				legal++
				become()
			default:
				require.Panics(t, become, "%v to %v", from, to)
			}
		}
	}
	require.Equal(t, 9, legal)
}
