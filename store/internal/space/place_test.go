package space

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep/layout"
)

// A log page that one copy got and the other did not is given back.
func TestLogOfTwoCopiesIsAllOrNothing(t *testing.T) {
	t.Parallel()
	filler, err := layout.NewFiller(2, 8)
	require.NoError(t, err)
	g := &Group{Filler: filler, Drives: []*Drive{{}, {}}, Logged: make([]int, 2)}
	table, r := New(Config{}), Reservation{Group: g}
	require.True(t, table.takeLogLocked(&r, 1, 2))
	before := append([]LogPlace{}, r.Logs...)
	mark := filler.Mark()
	other := 1 - before[0].Device
	_, ok := filler.Log(other, 6) // the second copy's device is full now, up to its header
	require.True(t, ok)
	require.False(t, table.takeLogLocked(&r, 2, 2))
	filler.Rollback(mark)
	require.Equal(t, before, r.Logs)
	require.Equal(t, 1, r.LogPages)
	require.Equal(t, []int{1, 1}, g.Logged)
}
