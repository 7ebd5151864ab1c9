package clustermap

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
)

// newMap is a map of n nodes.
func newMap(n int) *Map {
	m := &Map{Epoch: 3, Seed: Seed{1}, Group: DefaultGroup, LastNode: uint64(n)}
	for i := range n {
		m.Nodes = append(m.Nodes, Node{ID: uint64(i + 1), Name: fmt.Sprint("n", i), Addr: fmt.Sprint("unix:", i),
			Peer: fmt.Sprintf("n%d:1", i), Weight: 1})
	}
	return m
}

// Silence is within limits, and a node that returns keeps to the one that is agreed on now: an earlier one changes
// nothing.
func TestTheSilenceOfAMap(t *testing.T) {
	t.Parallel()
	m := newMap(3)
	for _, after := range []uint32{1, MinSilence - 1, MaxSilence + 1} {
		_, err := m.Apply(&Command{Do: SetSilence, After: after})
		require.ErrorIs(t, err, skep.Invalid)
	}
	same, err := m.Apply(&Command{Do: SetSilence})
	require.NoError(t, err)
	require.Same(t, m, same)
	next, err := m.Apply(&Command{Do: SetSilence, After: 60})
	require.NoError(t, err)
	require.Equal(t, Silence{60, m.Epoch + 1}, next.Silence)
	name := next.Nodes[1].Name
	_, err = next.Apply(&Command{Do: Return, Name: name, Since: m.Silence.Epoch})
	require.ErrorIs(t, err, skep.Conflict)
	kept, err := next.Apply(&Command{Do: Return, Name: name, Since: next.Silence.Epoch})
	require.NoError(t, err)
	require.EqualValues(t, 60, kept.Nodes[1].Lease)
	require.Zero(t, next.Nodes[1].Lease, "the map before is as it was")
	require.Equal(t, time.Minute, kept.Ends(&kept.Nodes[1]))
	require.Zero(t, kept.Ends(&kept.Nodes[0]), "it keeps to none")
	require.Empty(t, kept.Public().Silence)
	require.Zero(t, kept.Public().Nodes[1].Lease)

	more := Node{Name: "more", Addr: "unix:more", Peer: "more:1", Weight: 1, Lease: 20}
	with, err := kept.Apply(&Command{Do: AddNode, Node: &more})
	require.NoError(t, err)
	require.Zero(t, with.Nodes[3].Lease, "it has said nothing yet")

	_, err = kept.Apply(&Command{Do: SetState, Name: name, ID: kept.Nodes[1].ID + 100, State: Down})
	require.ErrorIs(t, err, skep.NotFound, "another node of that name")
}

// Of few nodes one is down by itself, of many a quarter, and never the last one that is not of a domain.
func TestWhoMayBeDownByItself(t *testing.T) {
	t.Parallel()
	for name, x := range map[string]struct {
		domains string // of the nodes, a letter each; -: none
		down    string // the nodes that are, x
		want    string // the others that may be, y
	}{
		"three":                {"---", "   ", "yyy"},
		"two of three":         {"---", "x  ", "   "},
		"one":                  {"-", " ", " "},
		"two":                  {"--", "  ", "yy"},
		"one of eight":         {"--------", "x       ", " yyyyyyy"},
		"two of eight":         {"--------", "xx      ", "        "},
		"the last of its rack": {"aabbbbbb", "x       ", "  yyyyyy"},
		"a rack of its own":    {"abbb", "    ", "yyyy"},
	} {
		m := newMap(len(x.domains))
		for i := range m.Nodes {
			if d := x.domains[i]; d != '-' {
				m.Nodes[i].Domain = []string{string(d), fmt.Sprint(i)}
			}
			if x.down[i] == 'x' {
				m.Nodes[i].State = Down
			}
		}
		got := ""
		for i := range m.Nodes {
			got += map[bool]string{true: "y", false: " "}[m.MayEnd(&m.Nodes[i])]
		}
		require.Equal(t, x.want, got, name)
	}
}
