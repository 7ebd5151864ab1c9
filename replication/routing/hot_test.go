package routing

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// What is counted is halved together: a block's share of all requests is what it was.
func TestCountsAreHalvedWithTheirSum(t *testing.T) {
	t.Parallel()
	h := newHot()
	for range halvedAt {
		h.anchor([]uint64{1}, 4)
	}
	require.Equal(t, halvedAt/2, h.total)
	require.Equal(t, h.total, h.counts[1])
}
