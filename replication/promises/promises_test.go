package promises

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
)

// A lease is there until it runs out or is taken, whichever comes first, and may be made longer.
func TestALeaseEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var b Book[string]
		first, ok := b.Add("first", skep.Steady().Add(time.Minute))
		require.True(t, ok)
		second, ok := b.Add("second", skep.Steady().Add(time.Minute))
		require.True(t, ok)
		require.NotEqual(t, first.ID, second.ID)
		require.Equal(t, 2, b.Len())
		x, ok := b.Get(first.ID)
		require.True(t, ok)
		require.Equal(t, "first", x)
		b.Until(first.ID, skep.Steady().Add(time.Hour))
		b.Until(0, skep.Steady().Add(time.Hour)) // of none
		time.Sleep(time.Minute)
		_, ok = b.Get(second.ID)
		require.False(t, ok, "it ran out")
		require.Equal(t, 1, b.Len())
		x, ok = b.Take(first.ID)
		require.True(t, ok)
		require.Equal(t, "first", x)
		_, ok = b.Take(first.ID)
		require.False(t, ok, "it is taken once")
		require.Zero(t, b.Len())
	})
}

// There are so many leases and no more, and those that ran out make room.
func TestThereAreSoManyLeases(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var b Book[int]
		until := skep.Steady().Add(time.Minute)
		for i := range Most {
			_, ok := b.Add(i, until)
			require.True(t, ok)
		}
		_, ok := b.Add(Most, until)
		require.False(t, ok)
		time.Sleep(time.Minute)
		_, ok = b.Add(Most, skep.Steady().Add(time.Minute))
		require.True(t, ok)
		require.Equal(t, 1, b.Len())
	})
}
