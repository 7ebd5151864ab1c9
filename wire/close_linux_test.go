package wire

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
)

// Who uses anew what lies there, or frees it, believes that it is done with.
func TestCloseSaysThatTheServerMayStillWrite(t *testing.T) {
	t.Parallel()
	g := newGated()
	c, away, cut := cutting(t, g)
	ch := chainOf(t, c, "t", 16)
	mem, err := c.Alloc(t.Context(), 16*blockSize)
	require.NoError(t, err)
	ch.Dest = skep.Destination{Memory: mem.Bytes()}
	g.shut()
	defer g.open()
	go func() {
		<-g.reached
		away.Store(true)
		cut()
	}()
	s, err := c.Restore(t.Context(), &skep.RestoreRequest{Chains: []skep.Chain{ch}})
	require.NoError(t, err)
	require.ErrorIs(t, skep.Drain(t.Context(), s, nil), skep.NotReleased)
	mem.Release()
	require.NotZero(t, c.Withheld(), "the server may write there")
	require.ErrorIs(t, c.Close(), skep.NotReleased)
}
