package freeport

import (
	"net"
	"testing"

	"github.com/stretchr/testify/require"
)

// Of many tests at once each has ports of its own, at which it may listen as often as it likes.
func TestEachTestHasItsOwnPorts(t *testing.T) {
	t.Parallel()
	given := map[string]bool{}
	for range 200 {
		addr := Addr(t)
		require.False(t, given[addr], addr)
		given[addr] = true
		for range 2 {
			l, err := net.Listen("tcp", addr)
			require.NoError(t, err)
			require.NoError(t, l.Close())
		}
	}
}
