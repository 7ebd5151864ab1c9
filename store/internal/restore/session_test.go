package restore

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
)

// Who asks again and again whether chunks are back, with little time, leaves nothing in the session.
func TestWhoWaitsNoLongerIsForgotten(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	ses := &session{}
	for range 3 {
		require.ErrorIs(t, ses.released(ctx, func() bool { return false }), skep.NotReleased)
	}
	require.Empty(t, ses.idle)
}

// A deadline that is further off than durations go is not one that has passed.
func TestADeadlineCenturiesOff(t *testing.T) {
	t.Parallel()
	p := &twoPointers{began: time.Now().Add(-time.Hour)}
	require.Greater(t, p.until(skep.Steady().AddDate(400, 0, 0)), 200*365*24*time.Hour)
	require.EqualValues(t, 1, p.until(skep.Steady().AddDate(-400, 0, 0)))
	require.Greater(t, p.until(skep.Steady().Add(time.Minute)), time.Hour)
}
