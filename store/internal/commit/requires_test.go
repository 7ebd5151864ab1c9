//go:build invariants

package commit

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep/layout"
)

// The row of a block that the index had goes under the lock of changes, with which its readers wait. One that the index
// never had there needs no lock: nobody has found it.
func TestRowsThatWereShownGoUnderTheLockOfChanges(t *testing.T) {
	t.Parallel()
	a, b := layout.Location{Group: 1, Page: 1}, layout.Location{Group: 1, Page: 2}
	r := rowsOf(t, nil, a, b)
	require.Panics(t, func() { r.deleteRow(a) })
	require.True(t, has(t, r, a))
	r.changes.Lock()
	r.deleteRow(a)
	r.changes.Unlock()
	require.False(t, has(t, r, a))

	r.neverShown(b)
	require.False(t, has(t, r, b))
}
