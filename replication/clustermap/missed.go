package clustermap

import (
	"encoding/json"
	"fmt"
	"slices"

	"github.com/skepkv/skep"
)

// Limits of what is remembered for nodes that are down.
const (
	MaxMissed         = 32        // namespaces, of one node
	MaxMissedOfTenant = 8         // of these, a tenant's; beyond, all of the tenant that may be lost
	MaxMissedBytes    = 128 << 10 // of all nodes together, as they are encoded
)

// Missed is what a node that is down is to lose before it serves again: whole namespaces, since keys are not agreed on.
type Missed struct {
	Epoch  uint32  `json:"epoch"`            // of the map that last added to it
	Spaces []Space `json:"spaces,omitempty"` // at most MaxMissed
	Spared bool    `json:"spared,omitempty"` // there were more: all of class Cache are lost
	Out    bool    `json:"out,omitempty"`    // the node was out, and is so when it has returned
}

// Space names a namespace, and those of its clustered contexts; without a name, all of a tenant.
type Space struct {
	Tenant string `json:"tenant"`
	Name   string `json:"name,omitempty"`
	Spares bool   `json:"spares,omitempty"` // it is lost where it is of class Cache: another one of that name is not
}

// of says whether it names a namespace, or all that another one names.
func (x *Space) of(y Space) bool {
	named := skep.NamespaceSpec{Tenant: x.Tenant, Name: x.Name}
	return x.Tenant == y.Tenant && (y.Spares || !x.Spares) &&
		(x.Name == "" || x.Name == y.Name || named.Clusters(skep.NamespaceSpec{Tenant: y.Tenant, Name: y.Name}))
}

// Loses says whether a node that missed it is to lose a namespace. What is written over may have been written over
// meanwhile, so those whose keys stand alone are lost anyway, where their class allows for it.
func (m *Missed) Loses(s *skep.NamespaceSpec) bool {
	return m != nil && (s.Class == skep.Cache && !s.Chained || m.has(Space{s.Tenant, s.Name, s.Class == skep.Cache}))
}

// has says whether the node loses all that a Space names.
func (m *Missed) has(y Space) bool {
	return m != nil && (y.Spares && m.Spared || slices.ContainsFunc(m.Spaces, func(x Space) bool { return x.of(y) }))
}

// missing is what a command says that is missed.
func (c *Command) missing() Space { return Space{c.Tenant, c.Name, c.Spares} }

// with is what the node has missed and one more; nil: there is no room for that. A tenant of which more is missed than
// its share loses what may be lost of it, and others lose nothing for it.
func (m Missed) with(x Space) *Missed {
	m.Spaces = slices.Clone(m.Spaces)
	m.drop(x)
	if m.count(x.Tenant, true)+m.count(x.Tenant, false) >= MaxMissedOfTenant {
		m.gather(x.Tenant)
		if x.Spares {
			x.Name = ""
			m.drop(x)
		} else if m.count(x.Tenant, false) >= MaxMissedOfTenant {
			return nil
		}
	}
	if len(m.Spaces) >= MaxMissed && !m.has(x) && !m.gather(m.widest()) {
		if !x.Spares {
			return nil
		}
		m.spare()
	}
	if !m.has(x) {
		m.Spaces = append(m.Spaces, x)
	}
	return &m
}

// drop takes out what x names, too.
func (m *Missed) drop(x Space) {
	m.Spaces = slices.DeleteFunc(m.Spaces, func(y Space) bool { return x.of(y) })
}

// count is how many of a tenant's namespaces are remembered: those that may be lost, or the others.
func (m *Missed) count(tenant string, spares bool) (n int) {
	for _, x := range m.Spaces {
		if x.Tenant == tenant && x.Spares == spares {
			n++
		}
	}
	return n
}

// widest is the tenant of which most namespaces that may be lost are remembered.
func (m *Missed) widest() (tenant string) {
	most := 0
	for _, x := range m.Spaces {
		if n := m.count(x.Tenant, true); n > most {
			tenant, most = x.Tenant, n
		}
	}
	return tenant
}

// gather has all of a tenant be lost that may be, in place of its namespaces. It says whether these were several.
func (m *Missed) gather(tenant string) bool {
	if m.count(tenant, true) < 2 {
		return false
	}
	all := Space{Tenant: tenant, Spares: true}
	m.drop(all)
	m.Spaces = append(m.Spaces, all)
	return true
}

// spare has all of class Cache be lost.
func (m *Missed) spare() {
	m.Spaces, m.Spared = slices.DeleteFunc(m.Spaces, func(x Space) bool { return x.Spares }), true
	if len(m.Spaces) == 0 {
		m.Spaces = nil // as it is read again
	}
}

// missedBytes is how much of the map is what nodes have missed, as it is encoded.
func (m *Map) missedBytes() (n int) {
	for i := range m.Nodes {
		if m.Nodes[i].Missed != nil {
			b, _ := json.Marshal(m.Nodes[i].Missed) // it cannot fail
			n += len(b)
		}
	}
	return n
}

// Down is the nodes that are down.
func (m *Map) Down() (out []*Node) {
	for i := range m.Nodes {
		if m.Nodes[i].State == Down {
			out = append(out, &m.Nodes[i])
		}
	}
	return out
}

// Remembers says whether all nodes that are down lose what a command says that they miss.
func (m *Map) Remembers(c *Command) bool {
	return !slices.ContainsFunc(m.Down(), func(n *Node) bool { return !n.Missed.has(c.missing()) })
}

// miss has the nodes that are down lose a namespace, or all of a tenant. Beyond what is remembered of one it loses all
// of the tenant, or all there is, of class Cache, if the command spares no more than that; else it is refused.
func (m *Map) miss(c *Command) (changed bool, err error) {
	if c.Tenant == "" || len(c.Tenant) > skep.MaxNameSize || len(c.Name) > skep.MaxNameSize {
		return false, skep.Invalidf(op, "missed namespace", fmt.Sprintf("%q of tenant %q", c.Name, c.Tenant),
			fmt.Sprintf("names of at most %d bytes, a tenant's at least", skep.MaxNameSize))
	}
	m.Nodes = slices.Clone(m.Nodes)
	var more []*Missed
	for i := range m.Nodes {
		n := &m.Nodes[i]
		if n.State != Down || n.Missed.has(c.missing()) {
			continue
		}
		was := Missed{}
		if n.Missed != nil {
			was = *n.Missed
		}
		was.Epoch = m.Epoch + 1
		if n.Missed = was.with(c.missing()); n.Missed == nil {
			return false, tooMuchMissed(n.Name, fmt.Sprintf("%d namespaces, %d of a tenant", MaxMissed, MaxMissedOfTenant))
		}
		more = append(more, n.Missed)
	}
	for _, x := range more { // names may be long, and nodes many
		for m.missedBytes() > MaxMissedBytes && x.gather(x.widest()) {
		}
		if m.missedBytes() > MaxMissedBytes && c.Spares {
			x.spare()
		}
	}
	if len(more) > 0 && !c.Spares && m.missedBytes() > MaxMissedBytes {
		return false, tooMuchMissed(m.Down()[0].Name, fmt.Sprintf("%d bytes", MaxMissedBytes))
	}
	return len(more) > 0, nil
}

// tooMuchMissed is the error of a deletion that cannot be remembered.
func tooMuchMissed(node, most string) error {
	return &skep.Error{Op: op, Kind: skep.Unavailable, Field: "node", Value: node,
		Limit: "up, or one that has missed deletions of at most " + most}
}

// named is the node that a command is of: one of that name and, where it says one, of that number; -1: none is.
func (m *Map) named(c *Command) int {
	return slices.IndexFunc(m.Nodes, func(n Node) bool { return n.Name == c.Name && (c.ID == 0 || c.ID == n.ID) })
}

// returns has a node that is down be up, or out where it was, if it has lost all that it missed, and notes the lease
// that it keeps to. A node that was removed is none of the map, though another one has its name now.
func (m *Map) returns(c *Command) (bool, error) {
	i := m.named(c)
	if i < 0 {
		return false, &skep.Error{Op: op, Kind: skep.NotFound, Field: "node",
			Value: fmt.Sprintf("%s, number %d", c.Name, c.ID), Limit: "a node of the map"}
	}
	if c.Since != m.Silence.Epoch {
		return false, &skep.Error{Op: op, Kind: skep.Conflict, Field: "silence that node " + c.Name + " knows of, by epoch",
			Value: c.Since, Limit: m.Silence.Epoch}
	}
	if m.Nodes[i].State != Down && m.Nodes[i].Missed == nil {
		was := m.Nodes[i].Lease
		m.Nodes = slices.Clone(m.Nodes)
		m.Nodes[i].Lease = m.Silence.After
		return was != m.Silence.After, nil
	}
	missed, is := m.Nodes[i].Missed, Up
	if missed != nil && c.Lost < missed.Epoch {
		return false, &skep.Error{Op: op, Kind: skep.Conflict, Field: "what node " + c.Name + " has lost, by epoch",
			Value: c.Lost, Limit: missed.Epoch}
	}
	m.Nodes = slices.Clone(m.Nodes)
	if missed != nil && missed.Out {
		is = Out
	}
	m.Nodes[i].State, m.Nodes[i].Missed, m.Nodes[i].Lease = is, nil, m.Silence.After
	m.Returned = m.Epoch + 1
	return true, nil
}

// validMissed looks at what a node has missed: one that is down says so, in a map that is agreed on, and one that was
// down and goes on alone (recover).
func (m *Map) validMissed(n *Node, at string) error {
	may := n.State == Down || n.State == Up && len(m.Recovered) > 0
	if n.Missed != nil && (!may || len(n.Missed.Spaces) > MaxMissed) {
		return skep.Invalidf(op, "what "+at+" has missed", len(n.Missed.Spaces),
			fmt.Sprintf("at most %d, of one that is down", MaxMissed))
	}
	return nil
}
