package clustermap

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
)

const three = `
seed: 6c0f3a5e9b1d4827a3c5e7f90b2d4861
nodes:
  - {id: 1, name: a, addr: "10.0.0.1:7420", domain: [zone, rack-1]}
  - {id: 2, name: b, addr: "10.0.0.2:7420", weight: 3}
  - {id: 18446744073709551615, name: c, addr: "unix:/run/skep.sock"}
`

func TestAMapIsReadAsYAMLAndJSON(t *testing.T) {
	t.Parallel()
	m, err := Parse([]byte(three))
	require.NoError(t, err)
	require.Equal(t, "6c0f3a5e9b1d4827a3c5e7f90b2d4861", m.Seed.String())
	require.Equal(t, DefaultGroup, m.Group)
	require.EqualValues(t, 1, m.Epoch)
	require.Equal(t, []Node{
		{ID: 1, Name: "a", Addr: "10.0.0.1:7420", Weight: 1, Domain: []string{"zone", "rack-1"}},
		{ID: 2, Name: "b", Addr: "10.0.0.2:7420", Weight: 3},
		{ID: 1<<64 - 1, Name: "c", Addr: "unix:/run/skep.sock", Weight: 1},
	}, m.Nodes)
	b, err := m.Encode()
	require.NoError(t, err)
	again, err := Parse(b)
	require.NoError(t, err, "%s", b)
	require.Equal(t, m, again)
	n, err := m.Node("b")
	require.NoError(t, err)
	require.Equal(t, uint64(2), n.ID)
	_, err = m.Node("d")
	require.ErrorIs(t, err, skep.Invalid)
}

func TestAMapSucceedsAnother(t *testing.T) {
	t.Parallel()
	was, err := Parse([]byte(three + "epoch: 3\n"))
	require.NoError(t, err)
	for change, says := range map[string]string{"epoch: 3": "epoch", "epoch: 2": "epoch", "epoch: 4\ngroup: 8": "group", "epoch: 4": ""} {
		m, err := Parse([]byte(three + change + "\n"))
		require.NoError(t, err)
		if err = m.Succeeds(was); says == "" {
			require.NoError(t, err)
			m.Seed[0]++
			err, says = m.Succeeds(was), "seed"
		}
		require.ErrorIs(t, err, skep.Invalid, change)
		require.ErrorContains(t, err, says)
	}
}

func TestABadMapIsRefusedByName(t *testing.T) {
	t.Parallel()
	many := "seed: 6c0f3a5e9b1d4827a3c5e7f90b2d4861\nnodes:\n"
	for i := range MaxNodes + 1 {
		many += fmt.Sprintf("  - {id: %d, name: n%d, addr: a%d}\n", i+1, i, i)
	}
	for what, c := range map[string]struct{ text, says string }{
		"nothing":               {"", "text"},
		"no map":                {"[1, 2]", "text"},
		"a field there is not":  {three + "term: 3\n", "text"},
		"a large epoch":         {three + "epoch: 4294967296\n", "text"},
		"two maps":              {three + "---\n" + three, "documents"},
		"too large":             {three + "#" + strings.Repeat(" ", MaxBytes), "size in bytes"},
		"no seed":               {strings.Replace(three, "seed: 6c0f3a5e9b1d4827a3c5e7f90b2d4861", "", 1), "seed"},
		"a seed of 0":           {strings.Replace(three, "6c0f3a5e9b1d4827a3c5e7f90b2d4861", strings.Repeat("0", 32), 1), "seed"},
		"a short seed":          {strings.Replace(three, "6c0f3a5e", "", 1), "seed"},
		"a seed of other signs": {strings.Replace(three, "6c0f", "zzzz", 1), "seed"},
		"too many replicas":     {three + "replicas: 5\n", "replicas"},
		"negative replicas":     {three + "replicas: -1\n", "replicas"},
		"more acks than nodes":  {three + "replicas: 2\nacks: 3\n", "acks"},
		"acks and no replicas":  {three + "acks: 2\n", "acks"},
		"a negative group":      {three + "group: -1\n", "group"},
		"a large group":         {three + "group: 1025\n", "group"},
		"no nodes":              {"seed: 6c0f3a5e9b1d4827a3c5e7f90b2d4861", "nodes"},
		"too many nodes":        {many, "nodes"},
		"no id":                 {strings.Replace(three, "id: 1,", "", 1), "id of node 0"},
		"an id twice":           {strings.Replace(three, "id: 2", "id: 1", 1), "id of node 1"},
		"no name":               {strings.Replace(three, "name: b,", "", 1), "node 1"},
		"a name twice":          {strings.Replace(three, "name: b", "name: a", 1), "name of node 1"},
		"a long name":           {strings.Replace(three, "name: b", "name: "+strings.Repeat("b", 256), 1), "node 1"},
		"an address twice":      {strings.Replace(three, "10.0.0.2", "10.0.0.1", 1), "address of node 1"},
		"a resp address twice":  {strings.ReplaceAll(three, "name:", "resp: \"h:1\", name:"), "resp address of node 1"},
		"a negative weight":     {strings.Replace(three, "weight: 3", "weight: -3", 1), "weight of node 1"},
		"a large weight":        {strings.Replace(three, "weight: 3", "weight: 65536", 1), "weight of node 1"},
		"an empty domain":       {strings.Replace(three, "rack-1", `""`, 1), "node 0"},
		"many domains":          {strings.Replace(three, "rack-1", "1,2,3,4,5,6,7,8", 1), "domains of node 0"},
	} {
		_, err := Parse([]byte(c.text))
		require.ErrorIs(t, err, skep.Invalid, what)
		require.ErrorContains(t, err, c.says, what)
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(three))
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := Parse(b)
		if err != nil {
			require.ErrorIs(t, err, skep.Invalid)
			return
		}
		text, err := m.Encode()
		require.NoError(t, err)
		again, err := Parse(text)
		require.NoError(t, err)
		require.Equal(t, m.Seed, again.Seed)
		require.Equal(t, len(m.Nodes), len(again.Nodes))
	})
}
