package clustermap

import (
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"testing"
	"unicode"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
)

// agreed is a map of two nodes and a namespace, as nodes agree on it.
func agreed(t *testing.T) *Map {
	t.Helper()
	m, err := Parse([]byte(strings.NewReplacer(`"10.0.0.1:7420"`, `"10.0.0.1:7420", peer: "10.0.0.1:7440"`,
		`"10.0.0.2:7420"`, `"10.0.0.2:7420", peer: "b:7440"`, "id: 18446744073709551615", "id: 7",
		`"unix:/run/skep.sock"`, `"unix:/run/skep.sock", peer: "[::1]:7440"`).Replace(three)))
	require.NoError(t, err)
	m, err = (*Map)(nil).Apply(&Command{Do: Found, Map: m})
	require.NoError(t, err)
	m, err = m.Apply(&Command{Do: OpenNamespace, Spec: &skep.NamespaceSpec{Tenant: "t", Name: "n", Shape: skep.Shape{Kind: skep.Opaque, BlockTokens: 1}}})
	require.NoError(t, err)
	return m
}

// sent is a command as it arrives.
func sent(t *testing.T, c *Command) *Command {
	t.Helper()
	b, err := c.Encode()
	require.NoError(t, err)
	out, err := DecodeCommand(b)
	require.NoError(t, err)
	require.Equal(t, c, out)
	return out
}

func TestCommandsChangeTheMap(t *testing.T) {
	t.Parallel()
	m := agreed(t)
	require.EqualValues(t, 2, m.Epoch)
	require.EqualValues(t, 7, m.LastNode)
	require.Len(t, m.Namespaces, 1)
	apply := func(c *Command) {
		next, err := m.Apply(sent(t, c))
		require.NoError(t, err)
		require.NotSame(t, m, next)
		require.Equal(t, m.Epoch+1, next.Epoch)
		m = next
		b, err := m.Encode()
		require.NoError(t, err)
		again, err := Decode(b)
		require.NoError(t, err)
		require.Equal(t, m, again)
	}
	apply(&Command{Do: RemoveNode, Name: "c"})
	apply(&Command{Do: AddNode, Node: &Node{Name: "d", Addr: "d:1", Peer: "d:2", Domain: []string{"rack"}}})
	n, err := m.Node("d")
	require.NoError(t, err)
	require.Equal(t, Node{ID: 8, Name: "d", Addr: "d:1", Peer: "d:2", Weight: 1, Domain: []string{"rack"}}, *n, "an id is never given again")
	apply(&Command{Do: SetWeight, Name: "d", Weight: 5})
	apply(&Command{Do: SetState, Name: "d", State: Out})
	apply(&Command{Do: SetAddress, Name: "d", Peer: "e:2"})
	apply(&Command{Do: SetAddress, Name: "d", Addr: "e:1"})
	apply(&Command{Do: SetAddress, Name: "d", RESP: "e:3"})
	n, err = m.Node("d")
	require.NoError(t, err)
	require.Equal(t, Node{ID: 8, Name: "d", Addr: "e:1", Peer: "e:2", RESP: "e:3", Weight: 5, State: Out, Domain: []string{"rack"}}, *n)
	apply(&Command{Do: SetState, Name: "d", State: Up})
	apply(&Command{Do: SetState, Name: "d", State: Down})
	apply(&Command{Do: Miss, Tenant: "t", Name: "n", Spares: true})
	apply(&Command{Do: Miss, Tenant: "u"})
	require.Equal(t, &Missed{Epoch: m.Epoch, Spaces: []Space{{"t", "n", true}, {"u", "", false}}}, m.Down()[0].Missed)
	require.Nil(t, m.Public().Down()[0].Missed, "other tenants' names")
	for _, c := range []*Command{{Do: Miss, Tenant: "t", Name: "n", Spares: true}, {Do: Miss, Tenant: "u", Name: "n"}, {Do: Return, Name: "a"}} {
		next, err := m.Apply(sent(t, c))
		require.NoError(t, err)
		require.Same(t, m, next, "it is so: %+v", c)
	}
	for _, c := range []*Command{{Do: Return, Name: "d", Lost: m.Epoch - 1}, {Do: SetState, Name: "d", State: Out}} {
		_, err = m.Apply(c)
		require.ErrorIs(t, err, skep.Conflict)
	}
	apply(&Command{Do: Return, Name: "d", Lost: m.Epoch})
	require.Empty(t, m.Down())
	apply(&Command{Do: DeleteNamespace, Tenant: "t", Name: "n"})
	apply(&Command{Do: OpenNamespace, Spec: &skep.NamespaceSpec{Tenant: "t", Name: "n", Copies: 1, Shape: skep.Shape{Kind: skep.Opaque, BlockTokens: 1}}})
	require.EqualValues(t, 2, m.Namespaces[0].ID, "nor is a number")
	require.Empty(t, m.Public().Namespaces)
	require.Len(t, m.Namespaces, 1)

	for _, c := range []*Command{
		{Do: SetWeight, Name: "d", Weight: 5}, {Do: SetState, Name: "d"}, {Do: SetAddress, Name: "d", Addr: "e:1", Peer: "e:2"},
		{Do: SetAddress, Name: "d", RESP: "e:3"}, {Do: SetAddress, Name: "d", Addr: "e:1", RESP: "e:3"},
		{Do: OpenNamespace, Spec: &skep.NamespaceSpec{Tenant: "t", Name: "n", Shape: skep.Shape{Kind: skep.Opaque, BlockTokens: 1}}},
	} {
		next, err := m.Apply(c)
		require.NoError(t, err)
		require.Same(t, m, next, "it is so: %+v", c)
	}
}

func TestABadCommandChangesNothing(t *testing.T) {
	t.Parallel()
	m := agreed(t)
	spec := func(f func(s *skep.NamespaceSpec)) *skep.NamespaceSpec {
		s := m.Namespaces[0].NamespaceSpec
		f(&s)
		return &s
	}
	node := func(f func(n *Node)) *Node {
		n := Node{Name: "d", Addr: "d:1", Peer: "d:2"}
		f(&n)
		return &n
	}
	for what, c := range map[string]struct {
		c    Command
		kind skep.Kind
		says string
	}{
		"no verb":               {Command{}, skep.Invalid, "command"},
		"another verb":          {Command{Do: "dance"}, skep.Invalid, "dance"},
		"founded already":       {Command{Do: Found, Map: m}, skep.Conflict, "map"},
		"no node":               {Command{Do: AddNode}, skep.Invalid, "node"},
		"an id":                 {Command{Do: AddNode, Node: node(func(n *Node) { n.ID = 9 })}, skep.Invalid, "id of node d"},
		"no peer":               {Command{Do: AddNode, Node: node(func(n *Node) { n.Peer = "" })}, skep.Invalid, "peer address"},
		"a bad peer":            {Command{Do: AddNode, Node: node(func(n *Node) { n.Peer = "d:0" })}, skep.Invalid, "peer address"},
		"a bad resp":            {Command{Do: AddNode, Node: node(func(n *Node) { n.RESP = "d:0" })}, skep.Invalid, "resp address"},
		"no address":            {Command{Do: AddNode, Node: node(func(n *Node) { n.Addr = "" })}, skep.Invalid, "address"},
		"a name twice":          {Command{Do: AddNode, Node: node(func(n *Node) { n.Name = "a" })}, skep.Conflict, "node"},
		"a peer twice":          {Command{Do: AddNode, Node: node(func(n *Node) { n.Peer = "b:7440" })}, skep.Invalid, "no other node's"},
		"a negative weight":     {Command{Do: AddNode, Node: node(func(n *Node) { n.Weight = -1 })}, skep.Invalid, "weight"},
		"down at first":         {Command{Do: AddNode, Node: node(func(n *Node) { n.State = Down })}, skep.Invalid, "node d"},
		"an odd state":          {Command{Do: AddNode, Node: node(func(n *Node) { n.State = "odd" })}, skep.Invalid, "state"},
		"remove nobody":         {Command{Do: RemoveNode, Name: "x"}, skep.NotFound, "node"},
		"weigh nobody":          {Command{Do: SetWeight, Name: "x", Weight: 1}, skep.NotFound, "node"},
		"no weight":             {Command{Do: SetWeight, Name: "a"}, skep.Invalid, "weight"},
		"much weight":           {Command{Do: SetWeight, Name: "a", Weight: MaxWeight + 1}, skep.Invalid, "weight"},
		"a state there is not":  {Command{Do: SetState, Name: "a", State: "odd"}, skep.Invalid, "state"},
		"nowhere":               {Command{Do: SetAddress, Name: "a"}, skep.Invalid, "address of node a"},
		"another's address":     {Command{Do: SetAddress, Name: "a", Addr: "10.0.0.2:7420"}, skep.Invalid, "no other node's"},
		"everywhere":            {Command{Do: SetAddress, Name: "a", Addr: "0.0.0.0:1"}, skep.Invalid, "address of node a"},
		"no port":               {Command{Do: SetAddress, Name: "a", Peer: "host"}, skep.Invalid, "peer address"},
		"missed by nobody's":    {Command{Do: Miss, Name: "n"}, skep.Invalid, "missed"},
		"nobody returns":        {Command{Do: Return, Name: "x"}, skep.NotFound, "node"},
		"no namespace":          {Command{Do: OpenNamespace}, skep.Invalid, "namespace"},
		"a namespace's name":    {Command{Do: OpenNamespace, Spec: spec(func(s *skep.NamespaceSpec) { s.Name = "" })}, skep.Invalid, "name"},
		"other properties":      {Command{Do: OpenNamespace, Spec: spec(func(s *skep.NamespaceSpec) { s.Chained = true })}, skep.Conflict, "namespace"},
		"delete what is not":    {Command{Do: DeleteNamespace, Tenant: "t", Name: "x"}, skep.NotFound, "namespace"},
		"delete of no tenant's": {Command{Do: DeleteNamespace, Tenant: "u", Name: "n"}, skep.NotFound, "namespace"},
	} {
		was, err := m.Encode()
		require.NoError(t, err)
		next, err := m.Apply(&c.c)
		require.ErrorIs(t, err, c.kind, what)
		require.ErrorContains(t, err, c.says, what)
		require.Nil(t, next, what)
		is, err := m.Encode()
		require.NoError(t, err)
		require.Equal(t, string(was), string(is), what)
	}
	for _, c := range []Command{{Do: Found}, {Do: Found, Map: &Map{}}, {Do: Found, Map: func() *Map { m, _ := Parse([]byte(three)); return m }()}} {
		_, err := (*Map)(nil).Apply(&c)
		require.ErrorIs(t, err, skep.Invalid)
	}
	_, err := (*Map)(nil).Apply(&Command{Do: RemoveNode, Name: "a"})
	require.ErrorIs(t, err, skep.NotFound)
	for _, text := range []string{"", "{", `{"do": "found"} {}`, `{"weigh": 1}`, `{"state": "odd"}`, strings.Repeat(" ", MaxCommand+1)} {
		_, err := DecodeCommand([]byte(text))
		require.ErrorIs(t, err, skep.Invalid)
	}
}

// Nodes that are all out, the last number of each kind, the last epoch, and a map that would be too large, are refused.
func TestAMapHasBounds(t *testing.T) {
	t.Parallel()
	m := agreed(t)
	for _, name := range []string{"a", "b"} {
		var err error
		m, err = m.Apply(&Command{Do: SetState, Name: name, State: Out})
		require.NoError(t, err)
	}
	_, err := m.Apply(&Command{Do: SetState, Name: "c", State: Out})
	require.ErrorIs(t, err, skep.Invalid)
	_, err = m.Apply(&Command{Do: RemoveNode, Name: "c"})
	require.ErrorIs(t, err, skep.Invalid)

	last := *m
	last.Epoch = math.MaxUint32
	_, err = last.Apply(&Command{Do: SetWeight, Name: "a", Weight: 2})
	require.ErrorContains(t, err, "epoch")
	last = *m
	last.LastNode = math.MaxUint64
	_, err = last.Apply(&Command{Do: AddNode, Node: &Node{Name: "d", Addr: "d:1", Peer: "d:2"}})
	require.ErrorContains(t, err, "id of node d")
	last = *m
	last.LastNamespace = math.MaxUint32
	spec := func(i int) *Command {
		s := m.Namespaces[0].NamespaceSpec
		s.Name = fmt.Sprint("n", i)
		return &Command{Do: OpenNamespace, Spec: &s}
	}
	_, err = last.Apply(spec(0))
	require.ErrorContains(t, err, "id of namespace")

	last = *m
	for i := len(last.Namespaces); i < MaxNamespaces; i++ {
		last.Namespaces = append(last.Namespaces, Namespace{skep.NamespaceID(i + 1), *spec(i).Spec})
	}
	last.LastNamespace = MaxNamespaces
	require.NoError(t, last.Validate())
	_, err = last.Apply(spec(MaxNamespaces))
	require.ErrorContains(t, err, fmt.Sprint("at most ", MaxNamespaces))
	for i := range last.Namespaces {
		last.Namespaces[i].Model = strings.Repeat("m", 200)
	}
	_, err = last.Apply(&Command{Do: SetWeight, Name: "a", Weight: 2})
	require.ErrorContains(t, err, "map's size in bytes")

	b, err := json.Marshal(m)
	require.NoError(t, err)
	for _, change := range [][2]string{
		{`"last_namespace":1`, `"last_namespace":0`}, {`"id":1,"tenant"`, `"id":0,"tenant"`}, {`"copies":1`, `"copies":-1`},
		{`"epoch"`, `"age"`}, {`"namespaces":[`, `"namespaces":[{"id":1,"tenant":"t","name":"n","model":"","shape":{"kind":1,"block_tokens":1}},`},
	} {
		text := strings.Replace(string(b), change[0], change[1], 1)
		require.NotEqual(t, string(b), text, "%v in %s", change, b)
		_, err := Decode([]byte(text))
		require.ErrorIs(t, err, skep.Invalid, "%v", change)
	}
	_, err = Decode(make([]byte, MaxBytes+1))
	require.ErrorIs(t, err, skep.Invalid)
}

func FuzzApply(f *testing.F) {
	f.Add([]byte(`{"do": "set weight", "name": "a", "weight": 3}`))
	f.Add([]byte(`{"do": "open namespace", "spec": {"tenant": "t", "name": "m", "shape": {"kind": 2, "block_tokens": 1}}}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		m := agreed(t)
		c, err := DecodeCommand(b)
		if err != nil {
			require.ErrorIs(t, err, skep.Invalid)
			return
		}
		next, err := m.Apply(c)
		require.Equal(t, agreed(t), m)
		if err == nil {
			text, err := next.Encode()
			require.NoError(t, err)
			again, err := Decode(text)
			require.NoError(t, err)
			require.Equal(t, next, again)
		}
	})
}

// A node that is added, or founds a cluster, has addresses that others can connect to, and a name that can be printed.
func TestANodeIsReachedAtItsAddresses(t *testing.T) {
	t.Parallel()
	for says, bad := range map[string][]Node{
		"name, address or domain of node": {{Name: "b\x1b[31m"}, {Name: "b\nc"}},
		"address of node d":               {{Addr: "d"}, {Addr: ":7420"}, {Addr: "d:0"}, {Addr: "unix:"}, {Addr: "0.0.0.0:1"}},
		"peer address of node d":          {{Peer: "[::]:7440"}, {Peer: "0.0.0.0:7440"}},
		"resp address of node d":          {{RESP: "[::]:7421"}, {RESP: "0.0.0.0:7421"}},
	} {
		for _, n := range bad {
			if n.Name == "" {
				n.Name = "d"
			}
			if n.Addr == "" {
				n.Addr = "d:7420"
			}
			if n.Peer == "" {
				n.Peer = "d:7440"
			}
			_, err := agreed(t).Apply(&Command{Do: AddNode, Node: &n})
			require.ErrorIs(t, err, skep.Invalid, "%+v", n)
			require.ErrorContains(t, err, says)
			n.ID = 1
			_, err = (*Map)(nil).Apply(&Command{Do: Found, Map: &Map{Epoch: 1, Seed: Seed{1}, Nodes: []Node{n}}})
			require.ErrorIs(t, err, skep.Invalid, "%+v", n)
			require.ErrorContains(t, err, says)
		}
	}
}

// Whatever text the nodes agree on, clients read the map, as it is.
func TestEveryMapThatIsAgreedOnIsRead(t *testing.T) {
	t.Parallel()
	for _, domain := range []string{"rack 1", "Gestell-ß", "\"{a: b}\"", "a: b # c", "rack\u007f", "rack\u0081", "rack\ufffe", "a\u0085b"} {
		n := Node{Name: "d", Addr: "d:7420", Peer: "d:7440", Domain: []string{domain}}
		next, err := agreed(t).Apply(&Command{Do: AddNode, Node: &n})
		if strings.ContainsFunc(domain, func(r rune) bool { return !unicode.IsPrint(r) }) {
			require.ErrorIs(t, err, skep.Invalid, "%q", domain)
			continue
		}
		require.NoError(t, err)
		text, err := next.Public().Encode()
		require.NoError(t, err)
		got, err := Parse(text)
		require.NoError(t, err)
		require.Equal(t, next.Public(), got)
	}
}

// Where there were two nodes chains are in groups, and the map says so when one of them is gone.
func TestAMapRemembersThatThereWereSeveralNodes(t *testing.T) {
	t.Parallel()
	m := agreed(t)
	require.True(t, m.Grouped)
	m.Grouped = false // as a version before this one has agreed
	for len(m.Nodes) > 1 {
		was := m
		var err error
		m, err = was.Apply(&Command{Do: RemoveNode, Name: was.Nodes[0].Name})
		require.NoError(t, err)
		require.NoError(t, m.Succeeds(was))
		require.True(t, m.Public().Several())
	}
	next := *m
	next.Epoch, next.Grouped = m.Epoch+1, false
	require.ErrorContains(t, next.Succeeds(m), "grouped")
}
