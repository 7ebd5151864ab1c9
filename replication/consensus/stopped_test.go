package consensus

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/replication/clustermap"
)

// recover has a node that does not run go on without others.
func (w *world) recover(t *testing.T, id int, lost ...string) Recovered {
	t.Helper()
	r, err := Recover(w.options(id), lost, false)
	require.NoError(t, err)
	return r
}

// change proposes a change of a node's map and gives the epoch.
func change(t *testing.T, m *Member, c clustermap.Command) uint32 {
	t.Helper()
	epoch, err := m.Propose(t.Context(), &c)
	require.NoError(t, err)
	return epoch
}

// Two of three nodes are lost. The third one goes on alone, in a cluster of another identity, with all that it knew,
// and the map can be changed again. The lost ones come back, and would be most voters of what was: they are told, and
// change nothing.
func TestANodeGoesOnWithoutMostVoters(t *testing.T) {
	t.Parallel()
	for _, snapshot := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			w := three(t)
			defer w.end(t)
			change(t, w.nodes[1].m, *open1("s"))
			n4 := nodeOf(4) // is down, and has missed something
			change(t, w.nodes[1].m, clustermap.Command{Do: clustermap.AddNode, Node: &n4})
			change(t, w.nodes[1].m, clustermap.Command{Do: clustermap.SetState, Name: "n4", State: clustermap.Down})
			epoch := change(t, w.nodes[1].m, clustermap.Command{Do: clustermap.Miss, Tenant: "t", Name: "s", Spares: true})
			was := w.sameMaps(t, epoch)
			old := w.nodes[1].m.Cluster()
			if snapshot {
				require.NoError(t, w.nodes[1].m.raft.Snapshot().Error())
			}
			for id := 1; id <= 3; id++ {
				w.crash(t, id)
			}

			kept, err := Read(w.options(1))
			require.NoError(t, err)
			require.Equal(t, Kept{Cluster: old, Map: was, Voters: []uint64{1, 2, 3}, Term: kept.Term}, kept)
			require.NotZero(t, kept.Term)
			would, err := Recover(w.options(1), []string{"n3", "n2"}, true)
			require.NoError(t, err)
			again, err := Read(w.options(1))
			require.NoError(t, err)
			require.Equal(t, kept, again, "it was only looked at")
			r := w.recover(t, 1, "n3", "n2")
			would.Cluster = r.Cluster
			require.Equal(t, would, r)
			require.Equal(t, epoch, r.From)
			require.NotEqual(t, old, r.Cluster)
			require.Equal(t, r, w.recover(t, 1, "n2", "n3"), "it was done")

			m := w.start(t, 1, nil)
			eventually(t, "it leads alone", func() bool { return w.leader() == 1 && m.Map() != nil && len(m.Map().Nodes) == 2 })
			require.Equal(t, []string{"1"}, w.nodes[1].voters())
			require.Equal(t, r.Cluster, m.Cluster())
			now := m.Map()
			require.Equal(t, epoch+clustermap.RecoveryEpochs, now.Epoch)
			require.Equal(t, was.Nodes[0], now.Nodes[0])
			require.Equal(t, was.Nodes[3], now.Nodes[1], "what n4 has missed stays")
			require.Equal(t, was.Namespaces, now.Namespaces)
			require.Equal(t, was.LastNode, now.LastNode)

			epoch = change(t, m, *open1("later"))
			for id := 2; id <= 3; id++ {
				w.start(t, id, nil)
			}
			for id := 2; id <= 3; id++ {
				_, err := w.nodes[id].m.Propose(t.Context(), open1("lost"))
				require.ErrorIs(t, err, skep.Behind)
				require.ErrorContains(t, err, "skep cluster add")
				require.Contains(t, w.nodes[id].m.Status(t.Context()).Error, "skep cluster add")
				require.Equal(t, old, w.nodes[id].m.Cluster())
			}
			time.Sleep(time.Minute)
			synctest.Wait()
			require.Equal(t, epoch, m.Map().Epoch)
			require.Equal(t, []string{"1"}, w.nodes[1].voters())
			w.stop(t, 2)
			w.stop(t, 3)

			n5 := nodeOf(5)
			change(t, m, clustermap.Command{Do: clustermap.RemoveNode, Name: "n4"})
			epoch = change(t, m, clustermap.Command{Do: clustermap.AddNode, Node: &n5})
			w.start(t, 5, nil)
			w.sameMaps(t, epoch)
		})
	}
}

// Three of five nodes are lost. One of the two that are left goes on, and the other one comes to it, with an empty log:
// it has the map, and can vote.
func TestAnotherSurvivorComesToTheRecoveredCluster(t *testing.T) {
	t.Parallel()
	for _, snapshot := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld()
			defer w.end(t)
			w.start(t, 1, mapOf(5))
			for id := 2; id <= 5; id++ {
				w.start(t, id, nil)
			}
			w.awaitVoters(t, 1, 2, 3, 4, 5)
			for i := range 30 {
				change(t, w.nodes[1].m, *open1(fmt.Sprint("s", i)))
			}
			w.sameMaps(t, 31)
			for id := 1; id <= 5; id++ {
				if snapshot {
					require.NoError(t, w.nodes[id].m.raft.Snapshot().Error())
				}
			}
			for id := 1; id <= 5; id++ {
				w.stop(t, id)
			}
			r := w.recover(t, 1, "n3", "n4", "n5")
			m := w.start(t, 1, nil)
			eventually(t, "it leads", func() bool { return w.leader() == 1 && m.Map() != nil })
			behind := w.start(t, 2, nil)
			_, err := behind.Propose(t.Context(), open1("lost"))
			require.ErrorIs(t, err, skep.Behind)
			require.ErrorContains(t, err, "skep cluster recover --dir D --from unix:n1")
			w.stop(t, 2)

			require.NoError(t, Adopt(w.options(2), r.Cluster))
			kept, err := Read(w.options(2))
			require.NoError(t, err)
			require.Equal(t, Kept{Cluster: r.Cluster}, kept)
			second := w.start(t, 2, nil)
			eventually(t, "it has the map", func() bool { return epochOf(second.Map()) == m.Map().Epoch })
			n6 := nodeOf(6)
			epoch := change(t, second, clustermap.Command{Do: clustermap.AddNode, Node: &n6})
			w.start(t, 6, nil)
			w.awaitVoters(t, 1, 2, 6)
			require.Len(t, w.sameMaps(t, epoch).Namespaces, 30)

			w.stop(t, 2)
			require.NoError(t, Adopt(w.options(2), r.Cluster), "it is of that cluster")
			kept, err = Read(w.options(2))
			require.NoError(t, err)
			require.Equal(t, epoch, kept.Map.Epoch, "and stays as it was: it has voted")
		})
	}
}

// A node that ran all the while, without a leader, is told, too.
func TestANodeThatRanMeanwhileIsTold(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := three(t)
		defer w.end(t)
		w.stop(t, 1)
		w.stop(t, 2)
		w.recover(t, 1, "n2", "n3")
		w.start(t, 1, nil)
		eventually(t, "it is told", func() bool { return w.nodes[3].m.LeftBehind() != nil })
	})
}

// What is no loss of most voters, or of nodes that there are, is refused, and the node stays as it was.
func TestRecoverRefuses(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := three(t)
		defer w.end(t)
		_, err := Recover(w.options(1), []string{"n2", "n3"}, true)
		require.ErrorIs(t, err, skep.Locked, "it runs")
		w.crash(t, 1)
		was, err := Read(w.options(1))
		require.NoError(t, err)
		for kind, lost := range map[skep.Kind][][]string{
			skep.Invalid:  {nil, {"n1"}, {"n1", "n2", "n3"}},
			skep.NotFound: {{"n9"}, {"n2", "n2"}},
			skep.Conflict: {{"n2"}},
		} {
			for _, names := range lost {
				_, err := Recover(w.options(1), names, false)
				require.ErrorIs(t, err, kind, "%v", names)
			}
		}
		got, err := Read(w.options(1))
		require.NoError(t, err)
		require.Equal(t, was, got)

		change(t, w.nodes[2].m, clustermap.Command{Do: clustermap.RemoveNode, Name: "n3"})
		require.NoError(t, w.nodes[2].m.Left(t.Context(), 3))
		w.stop(t, 3)
		w.stop(t, 2)
		_, err = Recover(w.options(2), []string{"n3"}, false)
		require.ErrorIs(t, err, skep.NotFound, "it was removed")
		o := w.options(9)
		_, err = Read(o)
		require.ErrorIs(t, err, skep.Failed, "nobody's directory")
		o.Cluster = was.Cluster
		m, err := Open(o)
		require.NoError(t, err)
		require.NoError(t, m.Close())
		_, err = Recover(w.options(9), []string{"n3"}, false)
		require.ErrorIs(t, err, skep.NotFound, "it has agreed to nothing")
		for _, bad := range []string{"", "00", "x"} {
			require.ErrorIs(t, Adopt(w.options(2), bad), skep.Invalid)
		}
	})
}

// Of two nodes one votes, and is lost: the other one goes on. The lost one comes back, leads what was at once, and is
// told before it changes anything.
func TestTheOnlyVoterIsLost(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		defer w.end(t)
		w.start(t, 1, mapOf(2))
		w.start(t, 2, nil)
		w.awaitVoters(t, 1)
		change(t, w.nodes[1].m, *open1("s"))
		was := w.sameMaps(t, 2)
		w.stop(t, 1)
		w.stop(t, 2)
		r := w.recover(t, 2, "n1")
		require.Equal(t, was.Epoch, r.From)
		m := w.start(t, 2, nil)
		eventually(t, "it leads", func() bool { return w.leader() == 2 && m.Map() != nil })
		o := w.options(1)
		o.Known = was
		back, err := Open(o)
		require.NoError(t, err)
		w.nodes[1].m = back
		_, err = back.Propose(t.Context(), open1("lost"))
		require.ErrorIs(t, err, skep.Behind)
		eventually(t, "it leads what was", func() bool { return back.Status(t.Context()).Leader == 1 })
		_, err = back.Propose(t.Context(), open1("lost"))
		require.ErrorIs(t, err, skep.Behind)

		w.stop(t, 2) // and recovered once more, without a node that never ran
		n3 := nodeOf(3)
		m = w.start(t, 2, nil)
		change(t, m, clustermap.Command{Do: clustermap.AddNode, Node: &n3})
		w.stop(t, 2)
		_, err = Recover(w.options(2), []string{"n3"}, false)
		require.ErrorIs(t, err, skep.Conflict, "it votes alone: n3 can be removed")
	})
}

// A stranger is told nothing, and a node of the same cluster that it was not recovered.
func TestOnlyWhoWasLeftBehindIsTold(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := three(t)
		defer w.end(t)
		old, err := parseIdentity(w.nodes[1].m.Cluster())
		require.NoError(t, err)
		w.stop(t, 1)
		w.stop(t, 2)
		w.stop(t, 3)
		w.recover(t, 1, "n2", "n3")
		m := w.start(t, 1, nil)
		eventually(t, "it leads", func() bool { return w.leader() == 1 && m.Map() != nil })
		now, err := parseIdentity(m.Cluster())
		require.NoError(t, err)
		for of, want := range map[identity]word{
			old: {Recovered: true, Addr: "unix:n1"}, now: {}, {}: {}, {1}: {},
		} {
			asks := &Member{o: Options{ID: 2}, peers: &peers{of: of, dial: w.dialer("n2:1")}}
			got, err := asks.askWord(t.Context(), 1, "n1:1")
			require.NoError(t, err)
			require.Equal(t, want, got, "%s", of)
			_, err = asks.askWord(t.Context(), 2, "n1:1")
			require.Error(t, err, "it is for another node")
		}
	})
}

// What a node that does not run says of the cluster is what its map has.
func TestTheStatusOfANodeThatDoesNotRun(t *testing.T) {
	t.Parallel()
	m := mapOf(2)
	m.Epoch, m.Silence = 7, clustermap.Silence{After: 60, Epoch: 6}
	m.Nodes[1].State, m.Nodes[1].Lease = clustermap.Down, 60
	k := Kept{Map: m, Voters: []uint64{1}}
	s := k.Status(1)
	require.EqualValues(t, 7, s.Epoch)
	require.EqualValues(t, 60, s.DownAfter)
	require.Len(t, s.Nodes, 2)
	require.True(t, s.Nodes[0].Voter)
	require.False(t, s.Nodes[1].Voter)
	require.Equal(t, "down", s.Nodes[1].State)
	require.EqualValues(t, 60, s.Nodes[1].Lease)
	k = Kept{}
	require.Equal(t, Status{Node: 1, Nodes: []NodeStatus{}}, k.Status(1))
}

// A leader that was cut off has noted changes that nobody agreed on, and so knows a higher epoch than a node that knows
// what was agreed on after it: the term says who knows that.
func TestTheTermSaysWhoKnowsMost(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		defer w.end(t)
		w.start(t, 1, mapOf(5))
		for id := 2; id <= 5; id++ {
			w.start(t, id, nil)
		}
		w.awaitVoters(t, 1, 2, 3, 4, 5)
		old := w.awaitLeader(t)
		w.cut(old)
		for i := range 4 {
			go func() {
				ctx, cancel := context.WithTimeout(context.Background(), time.Second)
				defer cancel()
				_, _ = w.nodes[old].m.Propose(ctx, open1(fmt.Sprint("x", i)))
			}()
		}
		eventually(t, "another one leads", func() bool { l := w.leader(); return l != 0 && l != old })
		change(t, w.nodes[w.leader()].m, *open1("agreed"))
		time.Sleep(5 * time.Second)
		other := 1 + old%5
		for id := 1; id <= 5; id++ {
			w.stop(t, id)
		}
		a, err := Read(w.options(old))
		require.NoError(t, err)
		b, err := Read(w.options(other))
		require.NoError(t, err)
		require.Greater(t, a.Map.Epoch, b.Map.Epoch, "of changes that nobody agreed on")
		require.Greater(t, b.Term, a.Term)
		_, err = b.Map.Namespace("t", "agreed")
		require.NoError(t, err)
	})
}
