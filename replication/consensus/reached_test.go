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

	"github.com/skepkv/skep/replication/clustermap"
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

// A node that was cut off has not heard of a change until it is back, and is not asked while it is down.
func TestWhoHasNotHeard(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := three(t)
		defer w.end(t)
		leads := w.awaitLeader(t)
		m, away := w.nodes[leads].m, leads%3+1
		unheard := func(epoch uint32) string {
			if n := m.Unheard(t.Context(), epoch); n != nil {
				return n.Name
			}
			return ""
		}
		w.sameMaps(t, 1)
		require.Empty(t, unheard(1))
		w.cut(away)
		epoch, err := m.Propose(t.Context(), open1("x"))
		require.NoError(t, err)
		require.Equal(t, nodeOf(away).Name, unheard(epoch))
		w.heal(away)
		w.sameMaps(t, epoch)
		require.Empty(t, unheard(epoch))
		require.Equal(t, nodeOf(leads).Name, unheard(epoch+1), "it has not heard itself: it cannot know whom to ask")
		w.cut(away)
		epoch, err = m.Propose(t.Context(), &clustermap.Command{Do: clustermap.SetState, Name: nodeOf(away).Name,
			State: clustermap.Down})
		require.NoError(t, err)
		eventually(t, "the other one has heard", func() bool { return unheard(epoch) == "" })
		w.heal(away)
	})
}
