package clustermap

import (
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
)

const lostCluster = "6c0f3a5e9b1d4827a3c5e7f90b2d4861"

// Most nodes are lost: one goes on, and the others that are left stay as they are. The map remembers which cluster it
// goes on from, and clients are not told.
func TestAMapGoesOnWithoutNodesThatAreLost(t *testing.T) {
	t.Parallel()
	was := agreed(t)
	for _, c := range []Command{
		{Do: AddNode, Node: &Node{Name: "d", Addr: "d:7420", Peer: "d:7440"}},
		{Do: SetState, Name: "d", State: Down},
		{Do: Miss, Tenant: "t", Name: "s", Spares: true},
	} {
		next, err := was.Apply(&c)
		require.NoError(t, err)
		was = next
	}
	require.Len(t, was.Nodes, 4)
	m, err := was.Apply(&Command{Do: Recover, Name: "a", Names: []string{"c", "b"}, Cluster: lostCluster})
	require.NoError(t, err)
	require.Equal(t, []Node{was.Nodes[0], was.Nodes[3]}, m.Nodes, "what d has missed stays")
	require.Len(t, was.Nodes, 4, "the map before it is as it was")
	require.Equal(t, was.Epoch+RecoveryEpochs, m.Epoch)
	require.NoError(t, m.Succeeds(was))
	require.Equal(t, &Recovery{lostCluster, was.Epoch, 0}, m.From(lostCluster))
	require.Nil(t, m.From("another"))
	b, err := m.Encode()
	require.NoError(t, err)
	got, err := Decode(b)
	require.NoError(t, err)
	require.Equal(t, m, got)
	require.Nil(t, m.Public().Recovered)

	for i := range 2 * MaxRecovered { // again and again
		_, err := m.Node("a")
		require.NoError(t, err)
		name := fmt.Sprint("x", i)
		m, err = m.Apply(&Command{Do: AddNode, Node: &Node{Name: name, Addr: name + ":1", Peer: name + ":2"}})
		require.NoError(t, err)
		m, err = m.Apply(&Command{Do: Recover, Name: "a", Names: []string{name}, Cluster: fmt.Sprintf("%032x", i)})
		require.NoError(t, err)
	}
	require.Len(t, m.Recovered, MaxRecovered)
	require.Nil(t, m.From(lostCluster), "the oldest went")
	require.NotNil(t, m.From(fmt.Sprintf("%032x", 2*MaxRecovered-1)))
}

// The one that goes on is up where nobody else is.
func TestWhoGoesOnAlone(t *testing.T) {
	t.Parallel()
	lost := []string{"b", "c"}
	for _, state := range []State{Up, Out, Down} {
		m, err := agreed(t).Apply(&Command{Do: SetState, Name: "a", State: state})
		require.NoError(t, err)
		next, err := m.Apply(&Command{Do: Recover, Name: "a", Names: lost, Cluster: lostCluster})
		require.NoError(t, err)
		require.Equal(t, Up, next.Nodes[0].State)
		with, err := m.Apply(&Command{Do: Recover, Name: "a", Names: lost[:1], Cluster: lostCluster})
		require.NoError(t, err)
		require.Equal(t, state, with.Nodes[0].State, "another one is up")
	}
}

// One that was down loses what it missed, as far as it knows that, before it serves. Until then it cannot be out, and if
// it is down again, what it missed before is not forgotten.
func TestWhoWasDownGoesOnAlone(t *testing.T) {
	t.Parallel()
	apply := func(m *Map, c Command) *Map {
		t.Helper()
		next, err := m.Apply(&c)
		require.NoError(t, err, "%+v", c)
		b, err := next.Encode()
		require.NoError(t, err)
		again, err := Decode(b)
		require.NoError(t, err)
		require.Equal(t, next, again)
		return next
	}
	for _, state := range []State{Up, Out} {
		m := apply(agreed(t), Command{Do: SetState, Name: "b", State: state}) // nothing is changed, or it is out
		m = apply(m, Command{Do: SetState, Name: "b", State: Down})
		m = apply(m, Command{Do: Miss, Tenant: "t", Name: "s", Spares: true})
		missed := m.Nodes[1].Missed
		m = apply(m, Command{Do: Recover, Name: "b", Names: []string{"a", "c"}, Cluster: lostCluster})
		require.Equal(t, Up, m.Nodes[0].State)
		require.Equal(t, &Missed{Epoch: missed.Epoch, Spaces: missed.Spaces}, m.Nodes[0].Missed)

		m = apply(m, Command{Do: AddNode, Node: &Node{Name: "d", Addr: "d:7420", Peer: "d:7440"}})
		_, err := m.Apply(&Command{Do: SetState, Name: "b", State: Out})
		require.ErrorIs(t, err, skep.Conflict)
		again := apply(m, Command{Do: SetState, Name: "b", State: Down})
		require.Equal(t, missed.Spaces, again.Nodes[0].Missed.Spaces)
		_, err = m.Apply(&Command{Do: Return, Name: "b", Since: m.Silence.Epoch})
		require.ErrorIs(t, err, skep.Conflict, "it has lost nothing yet")
		m = apply(m, Command{Do: Return, Name: "b", Lost: missed.Epoch, Since: m.Silence.Epoch})
		require.Nil(t, m.Nodes[0].Missed)
		require.Equal(t, Up, m.Nodes[0].State)
		require.Equal(t, m.Epoch, m.Returned)
	}
}

func TestABadRecoveryChangesNothing(t *testing.T) {
	t.Parallel()
	m := agreed(t)
	for kind, list := range map[skep.Kind][]Command{
		skep.Invalid: {
			{Name: "a", Cluster: lostCluster},
			{Name: "a", Names: []string{"a", "b"}, Cluster: lostCluster},
			{Name: "x", Names: []string{"b"}, Cluster: lostCluster},
			{Name: "a", Names: []string{"b"}, Cluster: "00"},
			{Name: "a", Names: []string{"b"}},
		},
		skep.NotFound: {
			{Name: "a", Names: []string{"x"}, Cluster: lostCluster},
			{Name: "a", Names: []string{"b", "b"}, Cluster: lostCluster},
		},
	} {
		for _, c := range list {
			c.Do = Recover
			was, err := m.Encode()
			require.NoError(t, err)
			_, err = m.Apply(&c)
			require.ErrorIs(t, err, kind, "%+v", c)
			now, err := m.Encode()
			require.NoError(t, err)
			require.Equal(t, was, now)
		}
	}
	last := *m
	last.Epoch = math.MaxUint32 - RecoveryEpochs + 1
	_, err := last.Apply(&Command{Do: Recover, Name: "a", Names: []string{"b"}, Cluster: lostCluster})
	require.ErrorIs(t, err, skep.Invalid)
	require.ErrorContains(t, err, "epoch")
	bad := *m
	bad.Recovered = []Recovery{{lostCluster, m.Epoch + 1, 7}}
	require.ErrorContains(t, bad.Validate(), "epoch that it was recovered from")
	bad.Recovered = make([]Recovery, MaxRecovered+1)
	require.ErrorContains(t, bad.Validate(), "clusters that it was recovered from")
}
