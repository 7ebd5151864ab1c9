package clustermap

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"gopkg.in/yaml.v3"

	"github.com/skepkv/skep"
)

// Limits of a map.
const (
	MaxBytes    = 1 << 20 // of its file, and of what is agreed on
	MaxNodes    = 1000
	MaxWeight   = 1<<16 - 1
	MaxGroup    = 1024
	MaxNameSize = 255 // bytes of a name, an address and a domain
	MaxDomains  = 8   // of one node
	MaxReplicas = 4   // nodes that have a block
	// MaxNamespaces is how many namespaces a map has at most.
	MaxNamespaces = 4096

	// DefaultGroup is the group of a map that does not say.
	DefaultGroup = 16
)

// Seed is what placement is computed from.
type Seed [16]byte

// String is the seed in hexadecimal.
func (s Seed) String() string { return hex.EncodeToString(s[:]) }

// MarshalText writes the seed as String does.
func (s Seed) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText reads 32 hexadecimal digits.
func (s *Seed) UnmarshalText(b []byte) error {
	if hex.DecodedLen(len(b)) != len(s) {
		return skep.Invalidf(op, "seed", string(b), "32 hexadecimal digits")
	}
	if _, err := hex.Decode(s[:], b); err != nil {
		return skep.Invalidf(op, "seed", string(b), "32 hexadecimal digits")
	}
	return nil
}

// Map is a cluster as it stands.
type Map struct {
	Epoch uint32 `json:"epoch" yaml:"epoch"` // raised with every change; 0: 1
	Seed  Seed   `json:"seed" yaml:"seed"`
	Group int    `json:"group" yaml:"group"` // blocks of a chain that stay together; 0: DefaultGroup
	Nodes []Node `json:"nodes" yaml:"nodes"`

	Replicas int `json:"replicas,omitempty" yaml:"replicas,omitempty"` // nodes that each block of a chain is put to; 0: 1
	Acks     int `json:"acks,omitempty" yaml:"acks,omitempty"`         // that have to have it; 0: all where durable, else 1

	// Grouped has chains go in groups though there is one node: it is set for good where there were several, and may
	// be set where there are to be.
	Grouped bool `json:"grouped,omitempty" yaml:"grouped,omitempty"`

	// What follows is agreed on by the nodes, and is in no file.

	LastNode      uint64           `json:"last_node,omitempty" yaml:"-"`      // the highest id that a node ever had
	LastNamespace skep.NamespaceID `json:"last_namespace,omitempty" yaml:"-"` // the highest that a namespace ever had
	Namespaces    []Namespace      `json:"namespaces,omitempty" yaml:"-"`     // by id

	// Returned is the epoch at which a node that was down was up again last: what was deleted by an older map has
	// passed it by.
	Returned uint32 `json:"returned,omitempty" yaml:"-"`

	// Silence is when a node is down by itself.
	Silence Silence `json:"silence,omitzero" yaml:"-"`

	// Recovered is the clusters whose map this one goes on from, which had lost most of their voters; the last at the end.
	Recovered []Recovery `json:"recovered,omitempty" yaml:"-"`
}

// Namespace is a namespace of the cluster: it has the same number on every node.
type Namespace struct {
	ID skep.NamespaceID `json:"id"`
	skep.NamespaceSpec
}

// Node is one server of the cluster.
type Node struct {
	ID     uint64   `json:"id" yaml:"id"`         // places blocks; never another node's
	Name   string   `json:"name" yaml:"name"`     // for people
	Addr   string   `json:"addr" yaml:"addr"`     // of its binary protocol: HOST:PORT, or unix: and a path
	Weight int      `json:"weight" yaml:"weight"` // its share of the blocks, beside the others' weights; 0: 1
	Domain []string `json:"domain,omitempty" yaml:"domain,omitempty"`
	// Domain is what may fail with it, the widest first: zone, rack, host. Replicas are kept apart by it.

	RESP  string `json:"resp,omitempty" yaml:"resp,omitempty"`   // where Redis clients reach it: HOST:PORT; "": nowhere
	Peer  string `json:"peer,omitempty" yaml:"peer,omitempty"`   // where other nodes reach it: HOST:PORT; "": nowhere
	State State  `json:"state,omitempty" yaml:"state,omitempty"` // "": Up

	// Missed is what was deleted while the node is down, which it loses before it serves again; of one that is up: it was
	// down, and a cluster was recovered with it alone. Agreed on, in no file.
	Missed *Missed `json:"missed,omitempty" yaml:"-"`
	// Lease is the Silence.After that the node keeps to, in seconds: it serves for no longer than half of it after it
	// was heard. 0: it serves heard or not, and is down only where an operator says so. Agreed on, in no file.
	Lease uint32 `json:"lease,omitempty" yaml:"-"`
}

// State says whether blocks are placed on a node.
type State string

// The states of a node.
const (
	Up  State = ""    // it gets its share
	Out State = "out" // nothing is placed on it, and what it has is a miss until it is up again
	// Down is out, and not running: no call has to reach it. It is up, or out where it was, when it has been started
	// and has lost what it missed. Only nodes that agree on the map know it.
	Down State = "down"
)

// MarshalText writes a state.
func (s State) MarshalText() ([]byte, error) { return []byte(s), nil }

// UnmarshalText reads what MarshalText writes, and "up".
func (s *State) UnmarshalText(b []byte) error {
	switch v := State(b); v {
	case Up, Out, Down:
		*s = v
	case "up":
		*s = Up
	default:
		return skep.Invalidf(op, "state", string(b), "up, out or down")
	}
	return nil
}

const op = "cluster map"

// Parse reads a map, YAML or JSON, and checks it.
func Parse(b []byte) (*Map, error) {
	if len(b) > MaxBytes {
		return nil, skep.Invalidf(op, "size in bytes", len(b), fmt.Sprintf("at most %d", MaxBytes))
	}
	var m Map
	d := yaml.NewDecoder(bytes.NewReader(b))
	d.KnownFields(true)
	if err := d.Decode(&m); err != nil {
		var typed *skep.Error
		if errors.As(err, &typed) {
			return nil, typed
		}
		return nil, &skep.Error{Op: op, Kind: skep.Invalid, Field: "text", Limit: "YAML or JSON of a map", Err: err}
	}
	if err := d.Decode(new(any)); !errors.Is(err, io.EOF) {
		return nil, skep.Invalidf(op, "documents", "more than one", 1)
	}
	m.fill()
	return &m, m.Validate()
}

// fill puts defaults in.
func (m *Map) fill() {
	if m.Epoch == 0 {
		m.Epoch = 1
	}
	if m.Group == 0 {
		m.Group = DefaultGroup
	}
	for i := range m.Nodes {
		if m.Nodes[i].Weight == 0 {
			m.Nodes[i].Weight = 1
		}
		if len(m.Nodes[i].Domain) == 0 {
			m.Nodes[i].Domain = nil // as it is read again
		}
	}
	if len(m.Namespaces) == 0 {
		m.Namespaces = nil
	}
}

// Validate returns an Invalid error naming the first field outside its limits.
func (m *Map) Validate() error {
	if m.Seed == (Seed{}) {
		return skep.Invalidf(op, "seed", "none", "32 hexadecimal digits, not all 0")
	}
	if m.Group < 1 || m.Group > MaxGroup {
		return skep.Invalidf(op, "group", m.Group, fmt.Sprintf("1 to %d", MaxGroup))
	}
	if m.Replicas < 0 || m.Replicas > MaxReplicas {
		return skep.Invalidf(op, "replicas", m.Replicas, fmt.Sprintf("1 to %d", MaxReplicas))
	}
	if m.Acks < 0 || m.Acks > max(m.Replicas, 1) {
		return skep.Invalidf(op, "acks", m.Acks, fmt.Sprintf("1 to %d, the replicas", max(m.Replicas, 1)))
	}
	if len(m.Nodes) < 1 || len(m.Nodes) > MaxNodes {
		return skep.Invalidf(op, "nodes", len(m.Nodes), fmt.Sprintf("1 to %d", MaxNodes))
	}
	ids, names, addrs := map[uint64]bool{}, map[string]bool{}, map[string]bool{}
	peers, resps := map[string]bool{}, map[string]bool{}
	placed := false
	for i := range m.Nodes {
		n := &m.Nodes[i]
		at := fmt.Sprintf("node %d", i)
		if n.ID == 0 || ids[n.ID] {
			return skep.Invalidf(op, "id of "+at, n.ID, "1 or more, and no other node's")
		}
		for _, text := range append([]string{n.Name, n.Addr}, n.Domain...) {
			if text == "" || len(text) > MaxNameSize || !printable(text) {
				return skep.Invalidf(op, "name, address or domain of "+at, fmt.Sprintf("%q", text),
					fmt.Sprintf("1 to %d bytes of UTF-8 that can be printed", MaxNameSize))
			}
		}
		if names[n.Name] {
			return skep.Invalidf(op, "name of "+at, n.Name, "no other node's")
		}
		if addrs[n.Addr] {
			return skep.Invalidf(op, "address of "+at, n.Addr, "no other node's")
		}
		if n.Peer != "" {
			if err := validPort("peer", at, n.Peer); err != nil {
				return err
			}
			if peers[n.Peer] {
				return skep.Invalidf(op, "peer address of "+at, n.Peer, "no other node's")
			}
			peers[n.Peer] = true
		}
		if n.RESP != "" {
			if err := validPort("resp", at, n.RESP); err != nil {
				return err
			}
			if resps[n.RESP] {
				return skep.Invalidf(op, "resp address of "+at, n.RESP, "no other node's")
			}
			resps[n.RESP] = true
		}
		if n.State != Up && n.State != Out && n.State != Down {
			return skep.Invalidf(op, "state of "+at, string(n.State), "up, out or down")
		}
		if err := m.validMissed(n, at); err != nil {
			return err
		}
		placed = placed || n.State == Up
		if n.Weight < 1 || n.Weight > MaxWeight {
			return skep.Invalidf(op, "weight of "+at, n.Weight, fmt.Sprintf("1 to %d", MaxWeight))
		}
		if len(n.Domain) > MaxDomains {
			return skep.Invalidf(op, "domains of "+at, len(n.Domain), fmt.Sprintf("at most %d", MaxDomains))
		}
		ids[n.ID], names[n.Name], addrs[n.Addr] = true, true, true
	}
	if !placed {
		return skep.Invalidf(op, "nodes that are up", 0, "1 or more")
	}
	return m.validAgreed()
}

// Several says whether chains go in groups: there are several nodes, or there were, or there are to be.
func (m *Map) Several() bool { return len(m.Nodes) > 1 || m.Grouped }

// Node finds a node by its name.
func (m *Map) Node(name string) (*Node, error) {
	for i := range m.Nodes {
		if m.Nodes[i].Name == name {
			return &m.Nodes[i], nil
		}
	}
	return nil, skep.Invalidf(op, "node", name, "the name of a node of the map")
}

// Succeeds returns an Invalid error where m cannot follow on was: clients learn of a map by its epoch, and what was
// placed by another seed or group is found by nobody.
func (m *Map) Succeeds(was *Map) error {
	switch {
	case m.Epoch <= was.Epoch:
		return skep.Invalidf(op, "epoch", m.Epoch, fmt.Sprintf("more than %d, which the last map has", was.Epoch))
	case m.Seed != was.Seed:
		return skep.Invalidf(op, "seed", m.Seed, fmt.Sprintf("%s, as in the last map", was.Seed))
	case m.Group != was.Group:
		return skep.Invalidf(op, "group", m.Group, fmt.Sprintf("%d, as in the last map", was.Group))
	case was.Several() && !m.Several():
		return skep.Invalidf(op, "grouped", false, "true, as there were several nodes: chains are stored in groups")
	}
	return nil
}

// Encode writes the map as JSON, which Parse reads.
func (m *Map) Encode() ([]byte, error) { return json.Marshal(m) }
