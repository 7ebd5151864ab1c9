package consensus

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/replication/clustermap"
	"github.com/skepkv/skep/tools/drawn"
)

// A change that is proposed to any node is on that node when the call returns, and on all soon. A namespace has one
// number, whoever opens it.
func TestNodesAgree(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := three(t)
		defer w.end(t)
		var saw []uint32
		stop := w.nodes[3].m.Watch(func(m *clustermap.Map) { saw = append(saw, m.Epoch) })
		epoch := uint32(1)
		for id := 1; id <= 3; id++ {
			got, err := w.nodes[id].m.Propose(t.Context(), open1(fmt.Sprint("s", id)))
			require.NoError(t, err)
			epoch++
			require.Equal(t, epoch, got)
			require.Equal(t, epoch, w.nodes[id].m.Map().Epoch, "it has what it proposed")
		}
		for id := 1; id <= 3; id++ { // again
			got, err := w.nodes[id].m.Propose(t.Context(), open1("s2"))
			require.NoError(t, err)
			require.Equal(t, epoch, got)
		}
		m := w.sameMaps(t, epoch)
		n, err := m.Namespace("t", "s2")
		require.NoError(t, err)
		require.EqualValues(t, 2, n.ID)
		other := specOf("s2")
		other.Chained = true
		for id := 1; id <= 3; id++ {
			_, err := w.nodes[id].m.Propose(t.Context(), &clustermap.Command{Do: clustermap.OpenNamespace, Spec: other})
			require.ErrorIs(t, err, skep.Conflict)
			_, err = w.nodes[id].m.Propose(t.Context(), &clustermap.Command{Do: clustermap.SetWeight, Name: "n1", Weight: 1 << 16})
			require.ErrorIs(t, err, skep.Invalid)
			require.ErrorContains(t, err, "weight of node 0")
		}
		synctest.Wait()
		require.Equal(t, epoch, w.nodes[1].m.Map().Epoch)
		stop()
		require.NotEmpty(t, saw)
		require.IsIncreasing(t, saw)
		require.Equal(t, epoch, saw[len(saw)-1])
		calls := len(saw)
		_, err = w.nodes[1].m.Propose(t.Context(), open1("s4"))
		require.NoError(t, err)
		w.sameMaps(t, epoch+1)
		require.Len(t, saw, calls, "nothing is told after stop")

		s := w.nodes[2].m.Status(t.Context())
		require.EqualValues(t, w.awaitLeader(t), s.Leader)
		require.Len(t, s.Nodes, 3)
		for _, n := range s.Nodes {
			require.True(t, n.Voter && n.Reached && n.Behind == 0 && n.Epoch == epoch+1, "%+v", n)
			require.Equal(t, &Load{Blocks: int64(n.ID), Missing: -1}, n.Load, "what each has")
		}
	})
}

// The leader crashes, again and again: another one leads within seconds, and what was acknowledged is in the map of
// all. What crashed comes back, by the log or, where that was cut, by a snapshot.
func TestNoAcknowledgedChangeIsLost(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(drawn.Seed(t), 1))
	synctest.Test(t, func(t *testing.T) {
		w := three(t)
		defer w.end(t)
		var acknowledged []string
		epoch := uint32(1)
		propose := func(id int) {
			name := fmt.Sprint("s", len(acknowledged))
			got, err := w.nodes[id].m.Propose(t.Context(), open1(name))
			require.NoError(t, err)
			require.Greater(t, got, epoch)
			epoch = got
			acknowledged = append(acknowledged, name)
		}
		rounds := 8
		if testing.Short() {
			rounds = 4
		}
		for round := range rounds {
			lost := w.awaitLeader(t)
			if round%4 == 3 {
				lost = 1 + lost%3 // a follower
			}
			for range 1 + rng.IntN(5) {
				propose(1 + rng.IntN(3))
			}
			w.crash(t, lost)
			began := time.Now()
			left := []int{1 + lost%3, 1 + (lost+1)%3}
			propose(left[rng.IntN(2)])
			require.Less(t, time.Since(began), 10*time.Second)
			for range rng.IntN(40) { // more than is kept of the log, sometimes
				propose(left[rng.IntN(2)])
			}
			w.start(t, lost, nil)
			m := w.sameMaps(t, epoch)
			for _, name := range acknowledged {
				_, err := m.Namespace("t", name)
				require.NoError(t, err)
			}
			require.Equal(t, len(acknowledged), len(m.Namespaces))
			w.awaitVoters(t, 1, 2, 3)
		}
	})
}

// The smaller side of a cut changes nothing: not a leader that was cut off, not two nodes of five. It hears of the
// others' changes when it is back.
func TestTheSmallerSideChangesNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := three(t)
		defer w.end(t)
		alone := w.awaitLeader(t)
		w.cut(alone)
		_, err := w.nodes[alone].m.Propose(t.Context(), open1("lost"))
		require.ErrorIs(t, err, skep.Unavailable)
		s := w.nodes[alone].m.Status(t.Context())
		require.Zero(t, s.Leader)
		for _, n := range s.Nodes {
			require.Equal(t, int(n.ID) == alone, n.Reached)
			require.Equal(t, n.Reached, n.Error == "")
		}
		epoch, err := w.nodes[1+alone%3].m.Propose(t.Context(), open1("kept"))
		require.NoError(t, err)
		require.EqualValues(t, 2, epoch)
		require.EqualValues(t, 1, w.nodes[alone].m.Map().Epoch)
		w.heal(alone)
		m := w.sameMaps(t, epoch)
		_, err = m.Namespace("t", "lost")
		require.ErrorIs(t, err, skep.NotFound, "what the leader alone had written is taken back")

		w.stop(t, 1)
		w.stop(t, 2)
		_, err = w.nodes[3].m.Propose(t.Context(), open1("lost"))
		require.ErrorIs(t, err, skep.Unavailable)
		require.EqualValues(t, 2, w.nodes[3].m.Map().Epoch, "the map is there all the same")
		w.start(t, 1, nil)
		_, err = w.nodes[3].m.Propose(t.Context(), open1("again"))
		require.NoError(t, err)
	})
}

// Nodes are added and taken out while the cluster runs: five vote where there are five, others only hear, and a leader
// that is taken out hands over first.
func TestVotersFollowTheMap(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := three(t)
		defer w.end(t)
		add := func(id int) {
			n := nodeOf(id)
			_, err := w.nodes[1].m.Propose(t.Context(), &clustermap.Command{Do: clustermap.AddNode, Node: &n})
			require.NoError(t, err)
			n.ID = uint64(id)
			got, err := w.nodes[1].m.Map().Node(n.Name)
			require.NoError(t, err)
			require.Equal(t, n, *got)
		}
		add(4)
		w.start(t, 4, nil)
		w.awaitVoters(t, 1, 2, 3)
		add(5) // and it does not run yet
		w.awaitVoters(t, 1, 2, 3, 4)
		w.start(t, 5, nil)
		w.awaitVoters(t, 1, 2, 3, 4, 5)
		add(6)
		w.start(t, 6, nil)
		w.sameMaps(t, 4)
		w.awaitVoters(t, 1, 2, 3, 4, 5)
		_, err := w.nodes[6].m.Propose(t.Context(), open1("by one that does not vote"))
		require.NoError(t, err)

		lead := w.awaitLeader(t)
		by := 1 + lead%3
		_, err = w.nodes[by].m.Propose(t.Context(), &clustermap.Command{Do: clustermap.RemoveNode, Name: fmt.Sprint("n", lead)})
		require.NoError(t, err)
		eventually(t, "another one leads, and the sixth votes", func() bool {
			voters := w.nodes[by].voters()
			return w.nodes[lead].m.raft.State().String() != "Leader" && len(voters) == 5 && voters[4] == "6"
		})
		w.stop(t, lead)
		for _, id := range []int{6, 5, 4} {
			if id != lead {
				_, err = w.nodes[by].m.Propose(t.Context(), &clustermap.Command{Do: clustermap.RemoveNode, Name: fmt.Sprint("n", id)})
				require.NoError(t, err)
				eventually(t, "it is taken out", func() bool {
					for _, v := range w.nodes[by].voters() {
						if v == fmt.Sprint(id) {
							return false
						}
					}
					return true
				})
				w.stop(t, id)
			}
		}
		_, err = w.nodes[by].m.Propose(t.Context(), open1("by two"))
		require.NoError(t, err)
	})
}

// Who could vote is known in one node's time, however many are silent: they are down only after that. One among them
// that answers votes.
func TestSilentNodesAreAskedAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const nodes = askedAtOnce
		w := newWorld()
		defer w.end(t)
		for id := 2; id <= nodes; id++ {
			w.listen(nodeOf(id).Peer) // and nobody accepts
		}
		m := w.start(t, 1, mapOf(nodes))
		f := m.raft.GetConfiguration()
		eventually(t, "all are members", func() bool {
			f = m.raft.GetConfiguration()
			return f.Error() == nil && len(f.Configuration().Servers) == nodes
		})
		began := time.Now()
		what, _ := m.step(f.Configuration(), f.Index())
		require.Empty(t, what)
		require.LessOrEqual(t, time.Since(began), ioTimeout)
		w.start(t, nodes, nil)
		w.awaitVoters(t, 1, nodes)
	})
}
