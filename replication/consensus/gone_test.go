package consensus

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/replication/clustermap"
)

// A node that is gone for good is taken out, and the map is changed on: with two nodes left one votes, and it is one
// that runs.
func TestANodeThatIsGoneIsTakenOut(t *testing.T) {
	t.Parallel()
	for gone := 1; gone <= 3; gone++ {
		synctest.Test(t, func(t *testing.T) {
			w := three(t)
			defer w.end(t)
			w.crash(t, gone)
			by := w.awaitLeader(t)
			_, err := w.nodes[by].m.Propose(t.Context(),
				&clustermap.Command{Do: clustermap.RemoveNode, Name: fmt.Sprint("n", gone)})
			require.NoError(t, err)
			eventually(t, fmt.Sprint(gone, " is taken out, and one node votes"), func() bool {
				lead := w.leader()
				return lead != 0 && slices.Equal([]string{fmt.Sprint(lead)}, w.nodes[lead].voters())
			})
			for id, h := range w.nodes {
				if id != gone {
					_, err := h.m.Propose(t.Context(), open1(fmt.Sprint("by ", id)))
					require.NoError(t, err)
				}
			}
		})
	}
}

// While nodes are away, one that runs is taken out: it votes until the others can do without it, and its
// server is not needed any more once Left says so.
func TestANodeThatRunsIsTakenOutWhileOthersAreAway(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := three(t)
		defer w.end(t)
		lead := w.awaitLeader(t)
		away, out := 1+lead%3, 1+(lead+1)%3
		w.crash(t, away)
		remove := func(by, id int) {
			_, err := w.nodes[by].m.Propose(t.Context(),
				&clustermap.Command{Do: clustermap.RemoveNode, Name: fmt.Sprint("n", id)})
			require.NoError(t, err)
		}
		remove(out, out) // asked of itself
		require.NoError(t, w.nodes[out].m.Left(t.Context(), uint64(out)))
		w.stop(t, out)
		_, err := w.nodes[lead].m.Propose(t.Context(), open1("alone"))
		require.NoError(t, err)
		w.start(t, away, nil)
		eventually(t, "the node that was away has the map", func() bool {
			return epochOf(w.nodes[away].m.Map()) == w.nodes[lead].m.Map().Epoch
		})

		// Two nodes, one voter: it is taken out itself, and the other one leads.
		remove(lead, lead)
		require.NoError(t, w.nodes[lead].m.Left(t.Context(), uint64(lead)))
		w.stop(t, lead)
		_, err = w.nodes[away].m.Propose(t.Context(), open1("the last one"))
		require.NoError(t, err)
	})
}

// A voter that the map lacks stays one while too few of the others answer.
func TestTheLastVotersThatAnswerStay(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := three(t)
		defer w.end(t)
		n := nodeOf(4)
		lead := w.awaitLeader(t)
		_, err := w.nodes[lead].m.Propose(t.Context(), &clustermap.Command{Do: clustermap.AddNode, Node: &n})
		require.NoError(t, err)
		away, out := 1+lead%3, 1+(lead+1)%3
		w.crash(t, away)
		_, err = w.nodes[lead].m.Propose(t.Context(), // of n4, which never ran, the leader and who is away three are to vote
			&clustermap.Command{Do: clustermap.RemoveNode, Name: fmt.Sprint("n", out)})
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		require.ErrorIs(t, w.nodes[lead].m.Left(ctx, uint64(out)), skep.Deadline)
		_, err = w.nodes[lead].m.Propose(t.Context(), open1("with the vote of who is out"))
		require.NoError(t, err)
		w.start(t, away, nil)
		require.NoError(t, w.nodes[lead].m.Left(t.Context(), uint64(out)))
	})
}
