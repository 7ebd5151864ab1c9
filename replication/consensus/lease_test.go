package consensus

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/replication/clustermap"
	"github.com/skepkv/skep/replication/fence"
)

// empty is a Store without namespaces.
type empty struct{ skep.Store }

func (empty) Namespaces(context.Context) ([]skep.NamespaceInfo, error) { return nil, nil }

// guarded is a world whose nodes serve from behind fences.
type guarded struct {
	*world
	began  time.Time
	fences map[int]*fence.Fence
	ends   map[int]func()
}

// guard founds a cluster of n nodes that have been told to keep to a lease.
func guard(t *testing.T, n int, silence uint32) *guarded {
	t.Helper()
	w := &guarded{newWorld(), time.Now(), map[int]*fence.Fence{}, map[int]func(){}}
	for id := 1; id <= n; id++ {
		w.run(t, id, map[bool]*clustermap.Map{true: mapOf(n)}[id == 1])
	}
	lead := w.awaitLeader(t)
	eventually(t, "the cluster is founded", func() bool { return w.nodes[lead].m.Map() != nil })
	w.silence(t, silence)
	w.awaitServing(t, n)
	return w
}

func (w *guarded) silence(t *testing.T, after uint32) {
	t.Helper()
	c := clustermap.Command{Do: clustermap.SetSilence, After: after}
	_, err := w.nodes[w.awaitLeader(t)].m.Propose(t.Context(), &c)
	require.NoError(t, err)
}

// run starts a node, as a server does.
func (w *guarded) run(t *testing.T, id int, found *clustermap.Map) {
	t.Helper()
	m := w.start(t, id, found)
	f := fence.New(empty{}, empty{}, fmt.Sprint("n", id), uint64(id))
	f.Clock = func() time.Duration { return time.Since(w.began) }
	ctx, cancel := context.WithCancel(context.Background())
	behind := make(chan struct{}, 1)
	returns := func() {
		select {
		case behind <- struct{}{}:
		default:
		}
	}
	returns()
	stop := m.Watch(func(m *clustermap.Map) {
		if f.Heard(m) {
			returns()
		}
	})
	done := make(chan struct{})
	go func() {
		defer close(done)
		f.KeepHeard(ctx, returns)
	}()
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		for {
			select {
			case <-behind:
			case <-ctx.Done():
				return
			}
			for f.Return(ctx, m) != nil && ctx.Err() == nil {
				time.Sleep(100 * time.Millisecond)
			}
		}
	}()
	w.fences[id] = f
	w.ends[id] = func() {
		cancel()
		stop()
		<-done
		<-gone
	}
}

// halt ends a node's process, with what was not synced where it crashes.
func (w *guarded) halt(t *testing.T, id int, crashes bool) {
	t.Helper()
	w.ends[id]()
	delete(w.fences, id)
	delete(w.ends, id)
	if crashes {
		w.crash(t, id)
	} else {
		w.stop(t, id)
	}
}

func (w *guarded) finish(t *testing.T) {
	t.Helper()
	for _, end := range w.ends {
		end()
	}
	w.end(t)
}

// newest is the newest map that some node knows to be agreed on; without nodes where none knows one, as when all of them
// have just begun.
func (w *guarded) newest() *clustermap.Map {
	newest := &clustermap.Map{}
	for _, h := range w.nodes {
		if h.m != nil && epochOf(h.m.Map()) > newest.Epoch {
			newest = h.m.Map()
		}
	}
	return newest
}

// state is a node's, by the newest map.
func (w *guarded) state(id int) clustermap.State {
	n, err := w.newest().Node(fmt.Sprint("n", id))
	if err != nil {
		return "gone"
	}
	return n.State
}

// serving is how many nodes serve and keep to the lease that is agreed on.
func (w *guarded) serving() (n int) {
	m := w.newest()
	for id, f := range w.fences {
		if node, err := m.Node(fmt.Sprint("n", id)); err == nil && f.Open() && node.Lease == m.Silence.After {
			n++
		}
	}
	return n
}

func (w *guarded) awaitServing(t *testing.T, n int) {
	t.Helper()
	eventually(t, fmt.Sprint(n, " nodes serve, and keep to the lease"), func() bool { return w.serving() == n })
}

// A node that is not heard for the silence that is agreed on is down by itself. It has served no more before that,
// though it runs and does not know, and is up again when it is heard.
func TestASilentNodeIsDownAndServesNoMore(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := guard(t, 3, 20)
		defer w.finish(t)
		for lost := 1; lost <= 3; lost++ { // a leader among them
			w.cut(lost)
			at := time.Now()
			eventually(t, "it serves no more", func() bool { return !w.fences[lost].Open() })
			require.LessOrEqual(t, time.Since(at), 11*time.Second)
			require.Equal(t, clustermap.Up, w.state(lost))
			eventually(t, "it is down", func() bool { return w.state(lost) == clustermap.Down })
			require.GreaterOrEqual(t, time.Since(at), 15*time.Second, "from when it was heard last, or another one leads")
			w.heal(lost)
			w.awaitServing(t, 3)
			require.Equal(t, clustermap.Up, w.state(lost))
		}
	})
}

// Nothing is down by itself that does not keep to a lease, nor where more than a node is wrong.
func TestWhatIsNotDownByItself(t *testing.T) {
	t.Parallel()
	t.Run("never", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			w := guard(t, 3, 0)
			defer w.finish(t)
			w.cut(2)
			time.Sleep(10 * time.Minute)
			require.Equal(t, clustermap.Up, w.state(2))
			require.True(t, w.fences[2].Open(), "it serves, as no deletion passes it by")
		})
	})
	t.Run("it has not heard of the lease", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			w := guard(t, 3, 0)
			defer w.finish(t)
			w.cut(2)
			w.silence(t, 20)
			time.Sleep(10 * time.Minute)
			require.Equal(t, clustermap.Up, w.state(2))
			w.heal(2)
			w.awaitServing(t, 3)
			w.cut(2)
			eventually(t, "it is down", func() bool { return w.state(2) == clustermap.Down })
		})
	})
	t.Run("it keeps to a longer one", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			w := guard(t, 3, 600)
			defer w.finish(t)
			w.cut(2)
			w.silence(t, 20)
			time.Sleep(9 * time.Minute)
			require.Equal(t, clustermap.Up, w.state(2))
			time.Sleep(2 * time.Minute)
			require.Equal(t, clustermap.Down, w.state(2))
		})
	})
	t.Run("most nodes", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			w := guard(t, 5, 20)
			defer w.finish(t)
			w.cut(4)
			w.cut(5)
			time.Sleep(10 * time.Minute)
			m := w.newest()
			require.Len(t, m.Down(), 1, "of five nodes one")
			require.False(t, w.fences[4].Open())
			require.False(t, w.fences[5].Open())
		})
	})
}

// All nodes serve on where the silence is made much shorter, or longer: none waits for when the lease that it kept to
// before was to be renewed.
func TestNodesServeOnWithAnotherSilence(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := guard(t, 3, clustermap.MaxSilence)
		defer w.finish(t)
		for _, after := range []uint32{clustermap.MinSilence, clustermap.MaxSilence, 60} {
			w.silence(t, after)
			w.awaitServing(t, 3)
			for range 40 {
				time.Sleep(time.Second)
				synctest.Wait()
				require.Equal(t, 3, w.serving())
				require.Empty(t, w.newest().Down())
			}
		}
	})
}

// A node that comes and goes is waited for twice as long each time.
func TestANodeThatComesAndGoes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := guard(t, 3, 20)
		defer w.finish(t)
		lost := 1 + w.awaitLeader(t)%3
		for _, wait := range []time.Duration{20, 40, 80} {
			w.cut(lost)
			time.Sleep((wait - 6) * time.Second)
			require.Equal(t, clustermap.Up, w.state(lost))
			time.Sleep(8 * time.Second)
			require.Equal(t, clustermap.Down, w.state(lost))
			w.heal(lost)
			w.awaitServing(t, 3)
		}
		h := &w.nodes[w.awaitLeader(t)].m.hearing
		h.mu.Lock()
		for i, at := range h.ended[uint64(lost)] {
			h.ended[uint64(lost)][i] = at.Add(-flapWindow) // an hour passes, and it is forgiven
		}
		h.mu.Unlock()
		w.cut(lost)
		time.Sleep(22 * time.Second)
		require.Equal(t, clustermap.Down, w.state(lost))
	})
}

// An operator who says that a node is down is refused while it may serve.
func TestANodeThatMayServeIsNotSaidToBeDown(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := guard(t, 3, 600)
		defer w.finish(t)
		lead := w.awaitLeader(t)
		lost := 1 + lead%3
		w.cut(lost)
		down := &clustermap.Command{Do: clustermap.SetState, Name: fmt.Sprint("n", lost), State: clustermap.Down}
		_, err := w.nodes[lead].m.Propose(t.Context(), down)
		require.ErrorIs(t, err, skep.Conflict)
		require.ErrorContains(t, err, "10m0s")
		w.silence(t, 20) // it has not heard of that
		time.Sleep(time.Minute)
		_, err = w.nodes[w.awaitLeader(t)].m.Propose(t.Context(), down)
		require.ErrorIs(t, err, skep.Conflict)
		require.Equal(t, clustermap.Up, w.state(lost))
		time.Sleep(10 * time.Minute)
		require.Equal(t, clustermap.Down, w.state(lost), "by itself")
	})
}

// Who leads and is cut off renews no lease, though it does not know yet that another one may lead.
func TestWhoLedRenewsNoLease(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := guard(t, 3, 20)
		defer w.finish(t)
		lead := w.awaitLeader(t)
		m := w.nodes[lead].m
		require.NoError(t, m.Renew(t.Context()))
		stranger := m.renew(t.Context(), 99)
		require.ErrorIs(t, stranger.Error.err(), skep.NotFound)
		require.NotContains(t, m.hearing.at, uint64(99), "what is no node is not remembered")
		w.cut(lead)
		err := m.Renew(t.Context())
		if err == nil { // a heartbeat that was answered just before may count once
			err = m.Renew(t.Context())
		}
		require.ErrorIs(t, err, skep.Unavailable)
	})
}

// A node that returns is heard with that. While it is being agreed that it is down it is not, until that is known.
func TestWhoReturnsIsHeard(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := guard(t, 3, 20)
		defer w.finish(t)
		lead := w.awaitLeader(t)
		m := w.nodes[lead].m
		id := 1 + lead%3
		w.cut(id)
		time.Sleep(10 * time.Second)
		returns, err := (&clustermap.Command{Do: clustermap.Return, Name: fmt.Sprint("n", id)}).Encode()
		require.NoError(t, err)
		_, refused := m.hears(returns)
		require.Nil(t, refused)
		term, silence := m.raft.CurrentTerm(), 20*time.Second
		require.Equal(t, silence, m.hearing.end(term, uint64(id), silence))
		require.Equal(t, silence, m.hearing.end(term-1, uint64(id), silence), "of another term nothing is known")

		require.Zero(t, m.hearing.end(term, uint64(id), 0))
		require.False(t, m.hearing.hear(term, uint64(id)))
		m.hearing.down(uint64(id), raft.ErrLeadershipLost, true)
		require.False(t, m.hearing.hear(term, uint64(id)), "it may be down or not")
		m.hearing.down(uint64(id), raft.ErrNotLeader, true)
		require.True(t, m.hearing.hear(term, uint64(id)), "it is not down by that")
	})
}

// Where the term that a node leads in has not begun, it knows nothing of others' silence: the operator who says that
// one is down asks again, and is not refused.
func TestWhoDoesNotHearYetRefusesNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := guard(t, 3, 20)
		defer w.finish(t)
		lead := w.awaitLeader(t)
		m := w.nodes[lead].m
		c := clustermap.Command{Do: clustermap.SetState, Name: fmt.Sprint("n", 1+lead%3), State: clustermap.Down}
		down, err := c.Encode()
		require.NoError(t, err)
		synctest.Wait()
		_, r := m.hears(down)
		require.ErrorIs(t, r.Error.err(), skep.Conflict)
		m.hearing.begin(0)
		_, r = m.hears(down)
		require.True(t, r.Elsewhere)
		require.Nil(t, r.Error)
	})
}

// Whatever is cut off, ends and begins, and however the silence is changed meanwhile: no node serves that is down by a
// map which is agreed on.
func TestNoNodeServesThatIsDown(t *testing.T) {
	t.Parallel()
	for range 4 {
		seed := rand.Uint64()
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { wander(t, seed) })
		})
	}
}

func wander(t *testing.T, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 1))
	n := 3 + rng.IntN(3)
	w := guard(t, n, []uint32{0, 10, 30}[rng.IntN(3)])
	defer w.finish(t)
	downs := 0
	was := map[int]clustermap.State{}
	for range 40 {
		id := 1 + rng.IntN(n)
		switch rng.IntN(8) {
		case 0, 1:
			w.cut(id)
		case 2, 3:
			w.heal(id)
		case 4:
			if w.ends[id] != nil && len(w.ends) > n/2+1 {
				w.halt(t, id, rng.IntN(2) == 0)
			}
		case 5, 6:
			if w.ends[id] == nil {
				w.run(t, id, nil)
			}
		case 7:
			c := clustermap.Command{Do: clustermap.SetSilence, After: []uint32{0, 10, 20, 60}[rng.IntN(4)]}
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			for _, h := range w.nodes {
				if h.m != nil {
					_, _ = h.m.Propose(ctx, &c) // it may be made or not
					break
				}
			}
			cancel()
		}
		for range rng.IntN(120) {
			time.Sleep(250 * time.Millisecond)
			synctest.Wait()
			m := w.newest()
			for id := 1; id <= n; id++ {
				state := w.state(id)
				if state == clustermap.Down && was[id] != state {
					downs++
				}
				was[id] = state
				if f := w.fences[id]; f != nil {
					serves := f.Open() && state == clustermap.Down
					require.False(t, serves, "node %d serves, and is down by the map of epoch %d", id, m.Epoch)
				}
			}
		}
	}
	for id := 1; id <= n; id++ {
		w.heal(id)
		if w.ends[id] == nil {
			w.run(t, id, nil)
		}
	}
	w.awaitServing(t, n)
	require.Empty(t, w.newest().Down())
	t.Log("nodes were down", downs, "times")
}

// Lost nodes come back before the one that goes on without them, and are most voters of what was: they serve. Once that
// one runs they serve no more, the one that follows as little as the one that leads.
func TestLostNodesThatCameBackFirstServeNoMore(t *testing.T) {
	t.Parallel()
	for _, silence := range []uint32{0, 20} {
		synctest.Test(t, func(t *testing.T) {
			w := guard(t, 3, silence)
			defer w.finish(t)
			w.awaitVoters(t, 1, 2, 3)
			w.halt(t, 1, false)
			w.recover(t, 1, "n2", "n3")
			eventually(t, "one of the others leads", func() bool { return w.leader() > 1 })
			require.True(t, w.fences[2].Open())
			require.True(t, w.fences[3].Open())
			w.run(t, 1, nil)
			eventually(t, "they serve no more", func() bool { return !w.fences[2].Open() && !w.fences[3].Open() })
			time.Sleep(time.Minute)
			for id := 2; id <= 3; id++ {
				require.False(t, w.fences[id].Open())
				require.ErrorIs(t, w.nodes[id].m.LeftBehind(), skep.Behind)
				require.ErrorIs(t, w.nodes[id].m.Renew(t.Context()), skep.Behind)
			}
			require.True(t, w.fences[1].Open())
		})
	}
}
