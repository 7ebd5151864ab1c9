//go:build linux

package loan_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/gpu/loan"
	"github.com/skepkv/skep/layout/elastic"
)

// The border follows what the lender needs: all running and admitted requests with their
// growth, at once; and down again when it was not needed for a window.
func TestBorderFollowsDemand(t *testing.T) {
	t.Parallel()
	l := newLender(t, func(o *loan.LenderOptions) { o.Window = 50 * time.Millisecond })
	b := spawn(t, l.socket)
	down := func(headroom, border int) { // two blocks a unit
		t.Helper()
		soon(t, func() bool { l.Relax(headroom); return l.Border() == border }, "the border is at %d", border)
	}
	down(4, 2)
	l.lent(14)
	b.holding(24)
	require.NoError(t, l.Demand(bounded(t), elastic.Demand{Running: 3, Admitted: 6, Growth: 1}))
	require.Equal(t, 5, l.Border(), "ten blocks")
	l.check()
	require.NoError(t, l.Demand(bounded(t), elastic.Demand{Running: 4}))
	require.Equal(t, 5, l.Border(), "enough")
	require.NoError(t, l.Demand(bounded(t), elastic.Demand{Running: 1000}))
	require.Equal(t, units, l.Border(), "all there is")
	b.holding(0)

	var mine []int
	for range 7 {
		block, ok := l.Alloc()
		require.True(t, ok)
		mine = append(mine, block)
	}
	down(1, 4) // what is in use counts, however long ago it was taken
	l.lent(12)
	b.holding(24)
	for _, block := range mine {
		require.NoError(t, l.Free(block))
	}
	down(0, 2) // the floor
	b.quit()
	require.NoError(t, l.Close())
	require.ErrorIs(t, l.Demand(t.Context(), elastic.Demand{}), skep.Closed)
	require.Zero(t, l.Relax(0))
}

// A demand for less than what is on its way back takes none of that down.
func TestDemandLeavesWhatIsOnItsWayBack(t *testing.T) {
	t.Parallel()
	l := newLender(t, func(o *loan.LenderOptions) { o.Reclaim = time.Second })
	b := spawn(t, l.socket)
	l.move(2)
	l.lent(14)
	b.stop() // it answers nobody, and is ended
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	_ = l.Move(ended, 10)
	_ = l.Demand(ended, elastic.Demand{Running: 6})
	require.Equal(t, 10, l.Status().Offer)
	soon(t, func() bool { return l.Border() == 10 }, "all of it comes back")
	require.Error(t, b.wait())
}
