package store

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep/layout"
)

// A group's live bytes are of all its devices, as its capacity is: every copy counts.
func TestLiveBytesCountEveryCopy(t *testing.T) {
	t.Parallel()
	for copies := 1; copies <= 3; copies++ {
		s, _, keys := openCopies(t, copies)
		m, err := s.StripeMap(testContext(t))
		require.NoError(t, err)
		var live int64
		for _, g := range m.Groups {
			live += g.LiveBytes
		}
		require.EqualValues(t, copies*len(keys)*3*layout.PageSize, live, "blocks of three pages, %d copies", copies)
		require.NoError(t, s.Close())
	}
}
