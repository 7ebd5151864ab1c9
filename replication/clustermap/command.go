package clustermap

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"

	"github.com/skepkv/skep"
)

// MaxCommand is how many bytes an encoded command has at most: a whole map, where one is founded.
const MaxCommand = MaxBytes + 1<<10

// Verb says what a command does.
type Verb string

// The verbs, and the fields of a Command that they take.
const (
	Found           Verb = "found"            // Map: the first map of a cluster
	AddNode         Verb = "add node"         // Node, whose ID is 0: it gets the next
	RemoveNode      Verb = "remove node"      // Name
	SetWeight       Verb = "set weight"       // Name, Weight
	SetState        Verb = "set state"        // Name, State, ID
	SetAddress      Verb = "set address"      // Name, Addr, Peer and RESP, of which those that are empty stay
	OpenNamespace   Verb = "open namespace"   // Spec
	DeleteNamespace Verb = "delete namespace" // Tenant, Name
	Miss            Verb = "miss"             // Tenant, Name of a namespace or none, Spares: what nodes that are down miss
	Return          Verb = "return"           // Name and ID of a node that runs, Lost, Since: it is not down
	SetSilence      Verb = "set silence"      // After: the silence after which a node is down by itself
	// Recover: Names of nodes that are lost, Name of the one that goes on with what it knows, Cluster that it was of, Term
	// of the last change there. It raises the epoch by RecoveryEpochs.
	Recover Verb = "recover"
)

// Command is a change of the map. It says everything that the next map depends on besides the last one: Apply looks at
// no clock and draws no number.
type Command struct {
	Do     Verb                `json:"do"`
	Map    *Map                `json:"map,omitempty"`
	Node   *Node               `json:"node,omitempty"`
	Spec   *skep.NamespaceSpec `json:"spec,omitempty"`
	Tenant string              `json:"tenant,omitempty"`
	Name   string              `json:"name,omitempty"`
	Addr   string              `json:"addr,omitempty"`
	Peer   string              `json:"peer,omitempty"`
	RESP   string              `json:"resp,omitempty"`
	Weight int                 `json:"weight,omitempty"`
	State  State               `json:"state,omitempty"`
	Spares bool                `json:"spares,omitempty"` // Miss: of a namespace that all of may be lost of, with others
	Lost   uint32              `json:"lost,omitempty"`   // Return: the node has lost what it missed by the map of this epoch
	ID     uint64              `json:"id,omitempty"`     // Return, SetState: of the node; 0: that which has the name
	Since  uint32              `json:"since,omitempty"`  // Return: Silence.Epoch of the map whose lease the node keeps to
	After  uint32              `json:"after,omitempty"`  // SetSilence: seconds; 0: never

	Names   []string `json:"names,omitempty"`
	Cluster string   `json:"cluster,omitempty"`
	Term    uint64   `json:"term,omitempty"` // Recover: raft's, of the last change that the node knew
}

// Encode writes the command as JSON, which DecodeCommand reads.
func (c *Command) Encode() ([]byte, error) {
	b, err := json.Marshal(c)
	if err == nil && len(b) > MaxCommand {
		return nil, skep.Invalidf(op, "command's size in bytes", len(b), fmt.Sprintf("at most %d", MaxCommand))
	}
	return b, err
}

// DecodeCommand reads a command. Whether it can be carried out, Apply says.
func DecodeCommand(b []byte) (*Command, error) {
	if len(b) > MaxCommand {
		return nil, skep.Invalidf(op, "command's size in bytes", len(b), fmt.Sprintf("at most %d", MaxCommand))
	}
	c := &Command{}
	return c, strictly(b, c)
}

// Apply is the map after a command. m stays as it is, and may be nil: there is none before a cluster is founded. A
// command that finds what it asks for gives m itself, and so the same epoch: a namespace that is open with the same
// properties, a weight that the node has. Every other command raises the epoch by one, but for Recover.
//
// Errors: Invalid, NotFound for a name there is not, Conflict for one there is.
func (m *Map) Apply(c *Command) (*Map, error) {
	if c.Do == Found {
		return m.found(c)
	}
	if m == nil {
		return nil, &skep.Error{Op: op, Kind: skep.NotFound, Field: "map", Value: "none", Limit: "a cluster that was founded"}
	}
	next := *m
	var err error
	changed, raise := true, uint32(1)
	switch c.Do {
	case Recover:
		raise, err = RecoveryEpochs, next.recover(c)
	case AddNode:
		err = next.addNode(c.Node)
	case RemoveNode, SetWeight, SetState, SetAddress:
		changed, err = next.setNode(c)
	case Miss:
		changed, err = next.miss(c)
	case Return:
		changed, err = next.returns(c)
	case SetSilence:
		changed = next.setSilence(c.After)
	case OpenNamespace:
		changed, err = next.openNamespace(c.Spec)
	case DeleteNamespace:
		i := slices.IndexFunc(m.Namespaces, func(n Namespace) bool { return n.Tenant == c.Tenant && n.Name == c.Name })
		if i < 0 {
			_, err = m.Namespace(c.Tenant, c.Name)
		} else {
			next.Namespaces = slices.Delete(slices.Clone(m.Namespaces), i, i+1)
			if len(next.Namespaces) == 0 {
				next.Namespaces = nil // as it is read again
			}
		}
	default:
		err = skep.Invalidf(op, "command", string(c.Do), "one of this version's")
	}
	switch {
	case err != nil:
		return nil, err
	case !changed:
		return m, nil
	case m.Epoch > math.MaxUint32-raise:
		return nil, skep.Invalidf(op, "epoch", uint64(m.Epoch)+uint64(raise), uint32(math.MaxUint32))
	}
	next.Epoch += raise
	next.Grouped = m.Several() || next.Several()
	return next.checked(c.Do == AddNode || c.Do == SetAddress || c.Do == OpenNamespace)
}

// reserved is room in a map that names do not take: for what nodes that are down miss, and for states and weights. So
// a cluster that has grown as large as it may can have its nodes be down and up again.
const reserved = MaxMissedBytes + 64<<10

// checked is m where it is valid and no larger than a map may be; names: some were added.
func (m *Map) checked(names bool) (*Map, error) {
	if err := m.Validate(); err != nil {
		return nil, err
	}
	b, err := m.Encode()
	size, most := len(b), MaxBytes
	if names {
		size, most = size-m.missedBytes(), most-reserved
	}
	if err == nil && size > most {
		err = skep.Invalidf(op, "map's size in bytes", size, fmt.Sprintf("at most %d", most))
	}
	if err != nil {
		return nil, err
	}
	return m, nil
}

func (m *Map) found(c *Command) (*Map, error) {
	if m != nil {
		return nil, &skep.Error{Op: op, Kind: skep.Conflict, Field: "map", Value: m.Epoch, Limit: "a cluster that has none"}
	}
	if c.Map == nil {
		return nil, skep.Invalidf(op, "map", "none", "the first map of a cluster")
	}
	next := *c.Map
	next.fill()
	if next.Silence.After != 0 {
		next.Silence.Epoch = next.Epoch
	}
	next.Nodes = slices.Clone(next.Nodes)
	for i := range next.Nodes {
		if next.Nodes[i].Peer == "" {
			return nil, noPeer(next.Nodes[i].Name)
		}
		if err := validNew(&next.Nodes[i]); err != nil {
			return nil, err
		}
		if n := &next.Nodes[i]; n.State == Down {
			return nil, skep.Invalidf(op, "state of node "+n.Name, string(n.State), "up or out in a first map")
		}
		next.Nodes[i].Lease = 0
		next.LastNode = max(next.LastNode, next.Nodes[i].ID)
	}
	next.Grouped = next.Several()
	return next.checked(true)
}

func noPeer(name string) error {
	return skep.Invalidf(op, "peer address of node "+name, "empty", "HOST:PORT, where other nodes reach it")
}

func (m *Map) addNode(n *Node) error {
	switch {
	case n == nil:
		return skep.Invalidf(op, "node", "none", "a node to be added")
	case n.ID != 0:
		return skep.Invalidf(op, "id of node "+n.Name, n.ID, "none: it is given the next")
	case n.Peer == "":
		return noPeer(n.Name)
	case n.State == Down:
		return skep.Invalidf(op, "state of node "+n.Name, string(n.State), "up or out: it has missed nothing yet")
	case m.LastNode == math.MaxUint64:
		return skep.Invalidf(op, "id of node "+n.Name, "none", "one that no node ever had")
	}
	if _, err := m.Node(n.Name); err == nil {
		return &skep.Error{Op: op, Kind: skep.Conflict, Field: "node", Value: n.Name, Limit: "the name of no other node"}
	}
	if err := validNew(n); err != nil {
		return err
	}
	add := *n
	m.LastNode++
	add.ID, add.Domain, add.Lease = m.LastNode, slices.Clone(n.Domain), 0
	m.Nodes = append(slices.Clone(m.Nodes), add)
	m.fill()
	return nil
}

// setNode carries out a command on one node. It says whether something is changed by it.
func (m *Map) setNode(c *Command) (bool, error) {
	i := m.named(c)
	if i < 0 {
		return false, &skep.Error{Op: op, Kind: skep.NotFound, Field: "node", Value: c.Name, Limit: "the name of a node of the map"}
	}
	m.Nodes = slices.Clone(m.Nodes)
	n := &m.Nodes[i]
	was := *n
	switch c.Do {
	case RemoveNode:
		m.Nodes = slices.Delete(m.Nodes, i, i+1)
		return true, nil
	case SetWeight:
		n.Weight = c.Weight
	case SetState:
		if was.Missed != nil && c.State != Down && c.State != was.State {
			return false, &skep.Error{Op: op, Kind: skep.Conflict, Field: "state of node " + c.Name, Value: "down, or was",
				Limit: "it is as it was once it has been started: it has to lose first what was deleted meanwhile"}
		}
		if n.State = c.State; n.State == Down && n.Missed == nil {
			n.Missed = &Missed{Epoch: m.Epoch + 1, Out: was.State == Out}
		}
	case SetAddress:
		if c.Addr == "" && c.Peer == "" && c.RESP == "" {
			return false, skep.Invalidf(op, "address of node "+c.Name, "empty", "one of its addresses")
		}
		if c.Addr != "" {
			n.Addr = c.Addr
		}
		if c.Peer != "" {
			n.Peer = c.Peer
		}
		if c.RESP != "" {
			n.RESP = c.RESP
		}
		if err := validNew(n); err != nil {
			return false, err
		}
	}
	return n.Addr != was.Addr || n.Peer != was.Peer || n.RESP != was.RESP || n.Weight != was.Weight || n.State != was.State, nil
}

func (m *Map) openNamespace(spec *skep.NamespaceSpec) (bool, error) {
	if spec == nil {
		return false, skep.Invalidf(op, "namespace", "none", "what is to be opened")
	}
	if err := spec.Validate(); err != nil {
		return false, err
	}
	want := *spec
	want.Copies = max(want.Copies, 1)
	if n, err := m.Namespace(want.Tenant, want.Name); err == nil {
		if n.NamespaceSpec != want {
			return false, &skep.Error{Op: op, Kind: skep.Conflict, Field: "namespace", Value: want.Name, Limit: "the properties that it has"}
		}
		return false, nil
	}
	if m.LastNamespace == math.MaxUint32 {
		return false, skep.Invalidf(op, "id of namespace "+want.Name, "none", "one that no namespace ever had")
	}
	m.LastNamespace++
	m.Namespaces = append(slices.Clone(m.Namespaces), Namespace{m.LastNamespace, want})
	return true, nil
}
