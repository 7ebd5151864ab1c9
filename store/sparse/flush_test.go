package sparse_test

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// What was observed is stored once both puts of a Flush went well, and else by the next one, or Close.
func TestAFlushThatFailedIsMadeUpFor(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	sp, c, f := w.open(1 << 40)
	require.NoError(t, observe(w, c, 5, false))
	f.left.Store(0)
	require.ErrorIs(t, c.Flush(w.ctx), errKilled)
	f.left.Store(1 << 40) // there is room again
	require.NoError(t, c.Flush(w.ctx))
	require.NoError(t, c.Close(w.ctx))
	require.NoError(t, sp.Close(w.ctx))

	sp, c, _ = w.open(1 << 40)
	defer sp.Close(w.ctx)
	require.Equal(t, 5, c.Info().PerLayer[0].Steps, "steps that a Flush, and a Close, said are durable")
}
