package index

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// A walk meets every block of its namespace once, none of another's, and looks at no more slots a call than it may.
func TestWalkIsOfOneNamespaceInBoundedSteps(t *testing.T) {
	t.Parallel()
	x := open(t, Config{})
	for i := range uint64(30_000) {
		e := Entry{FP: fpOf(i), Opaque: true, Location: at(1, i+1), Pages: 1, Namespace: 7, Tenant: 1}
		if i%1000 == 0 {
			e.Namespace = 8
		}
		insert(t, x, e)
	}
	require.EqualValues(t, 30, x.Count(8, 1))
	require.Zero(t, x.Count(8, 2), "of another tenant")
	require.Zero(t, x.Count(9, 1))
	seen := map[Fingerprint]bool{}
	steps := 0
	for from := ID(0); ; steps++ {
		found, next := x.Walk(8, 1, from, 4, 2000)
		require.LessOrEqual(t, len(found), 4)
		for _, e := range found {
			require.False(t, seen[e.FP])
			require.EqualValues(t, 8, e.Namespace)
			seen[e.FP] = true
		}
		if next == 0 {
			break
		}
		if from != 0 {
			require.LessOrEqual(t, next-from, ID(2000))
		}
		from = next
	}
	require.Len(t, seen, 30)
	require.GreaterOrEqual(t, steps, 30_000/2000-1)
	found, next := x.Walk(9, 1, 0, 4, 2000)
	require.Empty(t, found)
	require.Zero(t, next, "of what is not there nothing is looked for")
}
