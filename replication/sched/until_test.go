package sched

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
)

// A deadline farther away than a duration reaches does not come round as one that is over.
func TestADeadlineThatNeverComes(t *testing.T) {
	t.Parallel()
	require.Zero(t, until(time.Second, time.Time{}))
	require.Greater(t, until(time.Second, skep.Steady().Add(time.Hour)), 30*time.Minute)
	require.Greater(t, until(time.Second, skep.Steady().Add(math.MaxInt64)), time.Hour)
	require.Equal(t, time.Duration(1), until(time.Second, skep.Steady().Add(-time.Hour)))
}
