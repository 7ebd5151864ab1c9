package consensus

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"testing"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/replication/clustermap"
	"github.com/skepkv/skep/tools/drawn"
)

// mapOf is the first map of a cluster of n nodes.
func mapOf(n int) *clustermap.Map {
	m := &clustermap.Map{Epoch: 1, Seed: clustermap.Seed{1}, Group: 16}
	for i := range n {
		m.Nodes = append(m.Nodes, nodeOf(i+1))
		m.Nodes[i].ID = uint64(i + 1)
	}
	return m
}

// nodeOf is the node that is to get that id.
func nodeOf(id int) clustermap.Node {
	return clustermap.Node{Name: fmt.Sprint("n", id), Addr: fmt.Sprint("unix:n", id), Peer: fmt.Sprintf("n%d:1", id), Weight: 1}
}

func specOf(name string) *skep.NamespaceSpec {
	return &skep.NamespaceSpec{Tenant: "t", Name: name, Shape: skep.Shape{Kind: skep.Opaque, BlockTokens: 1}}
}

// drawnCommand is some command, good or bad.
func drawnCommand(rng *rand.Rand) *clustermap.Command {
	name := fmt.Sprint("n", 1+rng.IntN(8))
	space := fmt.Sprint("s", rng.IntN(6))
	switch rng.IntN(9) {
	case 0:
		n := nodeOf(1 + rng.IntN(8))
		return &clustermap.Command{Do: clustermap.AddNode, Node: &n}
	case 1:
		return &clustermap.Command{Do: clustermap.RemoveNode, Name: name}
	case 2:
		return &clustermap.Command{Do: clustermap.SetWeight, Name: name, Weight: rng.IntN(5)}
	case 3:
		return &clustermap.Command{Do: clustermap.SetState, Name: name, State: []clustermap.State{clustermap.Up, clustermap.Out, "odd"}[rng.IntN(3)]}
	case 4:
		return &clustermap.Command{Do: clustermap.SetAddress, Name: name, Addr: fmt.Sprint("unix:x", rng.IntN(9))}
	case 5, 6:
		s := specOf(space)
		s.Copies = rng.IntN(3)
		return &clustermap.Command{Do: clustermap.OpenNamespace, Spec: s}
	case 7:
		return &clustermap.Command{Do: clustermap.DeleteNamespace, Tenant: "t", Name: space}
	}
	return &clustermap.Command{Do: clustermap.Found, Map: mapOf(1 + rng.IntN(3))}
}

func newMachine() *machine { return &machine{changed: func() {}} }

func entryOf(t *testing.T, i int, c *clustermap.Command) *raft.Log {
	t.Helper()
	b, err := c.Encode()
	require.NoError(t, err)
	return &raft.Log{Index: uint64(i + 1), Data: b}
}

// restored is a machine made of another's snapshot.
func restored(t *testing.T, m *machine) *machine {
	t.Helper()
	s, err := m.Snapshot()
	require.NoError(t, err)
	store := raft.NewInmemSnapshotStore()
	sink, err := store.Create(1, 1, 1, raft.Configuration{}, 1, nil)
	require.NoError(t, err)
	require.NoError(t, s.Persist(sink))
	_, r, err := store.Open(sink.ID())
	require.NoError(t, err)
	out := newMachine()
	require.NoError(t, out.Restore(r))
	return out
}

// The same entries give the same maps and answers: to another machine, to one that began with a snapshot, and to one
// that began with an old snapshot and has the entries since. A refused entry changes nothing.
func TestTheSameEntriesGiveTheSameMap(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(drawn.Seed(t), 1))
	a, b := newMachine(), newMachine()
	old, since := restored(t, a), 0
	var entries []*raft.Log
	refused, done := 0, 0
	for i := range 500 {
		l := entryOf(t, i, drawnCommand(rng))
		if rng.IntN(50) == 0 {
			l.Data = l.Data[:rng.IntN(len(l.Data))]
		}
		entries = append(entries, l)
		was := a.now.Load()
		var text []byte
		if was != nil {
			text, _ = was.Encode()
		}
		got, other := a.Apply(l).(outcome), b.Apply(l).(outcome)
		require.Equal(t, got.epoch, other.epoch)
		require.Equal(t, fmt.Sprint(got.err), fmt.Sprint(other.err))
		require.Equal(t, a.now.Load(), b.now.Load())
		if was != nil {
			again, err := was.Encode()
			require.NoError(t, err)
			require.Equal(t, string(text), string(again), "a map is not changed")
		}
		if got.err != nil {
			refused++
			require.Same(t, was, a.now.Load())
			require.NotEqual(t, skep.Other, skep.KindOf(got.err), "%v", got.err)
		} else {
			done++
			require.LessOrEqual(t, epochOf(was), got.epoch)
			require.LessOrEqual(t, got.epoch, epochOf(was)+1)
		}
		switch rng.IntN(20) {
		case 0:
			old, since = restored(t, a), len(entries)
			require.Equal(t, a.now.Load(), old.now.Load())
		case 1:
			b = restored(t, b)
		}
	}
	for _, l := range entries[since:] {
		old.Apply(l)
	}
	require.Equal(t, a.now.Load(), old.now.Load())
	require.Greater(t, refused, 20)
	require.Greater(t, done, 20)
}

func TestWhatIsNoSnapshotIsRefused(t *testing.T) {
	t.Parallel()
	m := newMachine()
	m.Apply(entryOf(t, 1, &clustermap.Command{Do: clustermap.Found, Map: mapOf(2)}))
	was := m.now.Load()
	require.NotNil(t, was)
	for text, kind := range map[string]skep.Kind{
		"":                             skep.Damaged,
		"{":                            skep.Damaged,
		`{"format": 2}`:                skep.Version,
		`{"format": 1, "map": {}}`:     skep.Damaged,
		`{"format": 1, "map": [1, 2]}`: skep.Damaged,
		`{"format": 1}` + string(bytes.Repeat([]byte(" "), clustermap.MaxCommand)): skep.Damaged,
	} {
		require.ErrorIs(t, m.Restore(io.NopCloser(bytes.NewReader([]byte(text)))), kind, "%.30s", text)
		require.Same(t, was, m.now.Load())
	}
	require.NoError(t, m.Restore(io.NopCloser(bytes.NewReader([]byte(`{"format": 1}`)))))
	require.Nil(t, m.now.Load(), "a cluster that was not founded yet")
}

// A map of as many nodes as there may be, with names, addresses and domains as they are in practice, is a snapshot of
// less than 1 MiB.
func TestTheMapOfAThousandNodesIsSmall(t *testing.T) {
	t.Parallel()
	m := mapOf(clustermap.MaxNodes)
	for i := range m.Nodes {
		n := &m.Nodes[i]
		n.Name = fmt.Sprintf("node-%04d.rack-%02d.zone-%d", i, i/20, i/500)
		n.Addr, n.Peer = n.Name+".example.internal:7420", n.Name+".example.internal:7423"
		n.Weight = 1 + i
		n.Domain = []string{fmt.Sprint("zone-", i/500), fmt.Sprintf("rack-%02d", i/20), fmt.Sprintf("host-%04d", i)}
	}
	a := newMachine()
	require.NoError(t, a.Apply(entryOf(t, 1, &clustermap.Command{Do: clustermap.Found, Map: m})).(outcome).err)
	b, err := snapshotOf{a.now.Load()}.encode()
	require.NoError(t, err)
	t.Logf("%d nodes: %d bytes", len(m.Nodes), len(b))
	require.Less(t, len(b), 1<<20)
	require.Equal(t, a.now.Load(), restored(t, a).now.Load())
}
