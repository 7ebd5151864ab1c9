package twopointer

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
)

// What the engine took while a piece was decided is off the piece.
func TestTakenIsOffThePiece(t *testing.T) {
	t.Parallel()
	s := scheduler(t, Config{Channels: []Channel{{BytesPerSecond: 1e6}}})
	join := func() int {
		d, err := s.Step(Event{Kind: Join, New: &Strand{Tokens: 1024, Cost: Cost{PerToken: 1}, BytesPerToken: 1}})
		require.NoError(t, err)
		return d.Strand
	}
	i := join()
	d, err := s.Step(Event{Kind: Ready})
	require.NoError(t, err)
	require.Equal(t, 512, d.From)
	require.Equal(t, 512.0, s.OnItsWay(0))
	_, err = s.Step(Event{Kind: Taken, Strand: i, To: 640})
	require.NoError(t, err)
	at, ok := s.Standing(i)
	require.True(t, ok)
	require.Equal(t, Standing{Head: 640, May: 640, Tail: 640}, at)
	require.InDelta(t, 384, s.OnItsWay(0), 1e-9)
	for _, to := range []int{0, 640, 1025} {
		_, err = s.Step(Event{Kind: Taken, Strand: i, To: to})
		require.ErrorIs(t, err, skep.Invalid)
	}
	_, err = s.Step(Event{Kind: Landed, Strand: i, From: 640, To: 1024})
	require.NoError(t, err)
	_, err = s.Step(Event{Kind: Computed, Strand: i, From: 0, To: 640})
	require.NoError(t, err)
	st, _ := s.State(i)
	require.Zero(t, st.Left)
}
