package consensus

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// A node that one of the others does not reach runs all the same, where another one reaches it.
func TestWhoReachesANode(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		defer w.end(t)
		o := w.options(1)
		dial, blind := o.Dial, atomic.Bool{}
		o.Found, o.Dial = mapOf(3), func(ctx context.Context, to string) (net.Conn, error) {
			if blind.Load() && to == nodeOf(3).Peer {
				return nil, errors.New("no route")
			}
			return dial(ctx, to)
		}
		m, err := Open(o)
		require.NoError(t, err)
		w.nodes[1].m = m
		w.start(t, 2, nil)
		w.start(t, 3, nil)
		w.awaitVoters(t, 1, 2, 3)
		blind.Store(true)
		reached := func(id uint64) string {
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			defer cancel()
			if n := m.Reached(ctx, id); n != nil {
				return n.Name
			}
			return ""
		}
		require.Equal(t, nodeOf(2).Name, reached(3))
		require.Empty(t, reached(9), "there is none")
		w.cut(3)
		require.Empty(t, reached(3))
		w.heal(3)
		w.cut(2)
		require.Empty(t, reached(3), "nobody can be asked")
		w.heal(2)
	})
}
