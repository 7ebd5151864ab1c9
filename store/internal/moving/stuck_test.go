package moving

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep/store/internal/space"
)

// Groups that could not be moved are remembered for a while, also those that are gone by then.
func TestStuckGroupsAreForgotten(t *testing.T) {
	t.Parallel()
	s := stuck{until: map[space.ID]time.Time{}}
	now := time.Now()
	a, b := space.ID{Num: 1000, Generation: 1}, space.ID{Num: 1001, Generation: 1}
	s.add(a, now.Add(-time.Hour))
	s.add(b, now.Add(time.Hour))
	require.False(t, s.has(a, now))
	require.True(t, s.has(b, now))
	require.False(t, s.has(space.ID{Num: 1001, Generation: 2}, now), "its number, and another group")

	s.forget(now)
	require.Equal(t, map[space.ID]time.Time{b: now.Add(time.Hour)}, s.until)
	s.forget(now.Add(time.Hour))
	require.Empty(t, s.until)
}
