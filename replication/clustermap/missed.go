package clustermap

import (
	"fmt"
	"slices"

	"github.com/skepkv/skep"
)

// MaxMissed is how many namespaces are remembered of a node that is down.
const MaxMissed = 32

// Missed is what a node that is down is to lose before it serves again: whole namespaces, since keys are not agreed on.
type Missed struct {
	Epoch  uint32  `json:"epoch"`            // of the map that last added to it
	Spaces []Space `json:"spaces,omitempty"` // at most MaxMissed
	Spared bool    `json:"spared,omitempty"` // there were more: all of class Cache are lost
}

// Space names a namespace; without a name, all of a tenant.
type Space struct {
	Tenant string `json:"tenant"`
	Name   string `json:"name,omitempty"`
	Spares bool   `json:"spares,omitempty"` // it is lost where it is of class Cache: another one of that name is not
}

// of says whether it names a namespace.
func (x *Space) of(tenant, name string, spares bool) bool {
	return x.Tenant == tenant && (x.Name == "" || x.Name == name) && (spares || !x.Spares)
}

// Loses says whether a node that missed it is to lose a namespace. What is written over may have been written over
// meanwhile, so those whose keys stand alone are lost anyway, where their class allows for it.
func (m *Missed) Loses(s *skep.NamespaceSpec) bool {
	if m == nil {
		return false
	}
	return s.Class == skep.Cache && (m.Spared || !s.Chained) || slices.ContainsFunc(m.Spaces, func(x Space) bool {
		return x.of(s.Tenant, s.Name, s.Class == skep.Cache)
	})
}

// remembers says whether the node loses what a command says that is missed.
func (m *Missed) remembers(c *Command) bool {
	return m != nil && (c.Spares && m.Spared || slices.ContainsFunc(m.Spaces, func(x Space) bool {
		return x.of(c.Tenant, c.Name, c.Spares)
	}))
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
	return !slices.ContainsFunc(m.Down(), func(n *Node) bool { return !n.Missed.remembers(c) })
}

// miss has the nodes that are down lose a namespace, or all of a tenant. Beyond what is remembered of one it loses all
// of class Cache, if the command spares no more than that; else it is refused.
func (m *Map) miss(c *Command) (changed bool, err error) {
	if c.Tenant == "" || len(c.Tenant) > skep.MaxNameSize || len(c.Name) > skep.MaxNameSize {
		return false, skep.Invalidf(op, "missed namespace", fmt.Sprintf("%q of tenant %q", c.Name, c.Tenant),
			fmt.Sprintf("names of at most %d bytes, a tenant's at least", skep.MaxNameSize))
	}
	m.Nodes = slices.Clone(m.Nodes)
	for i := range m.Nodes {
		n := &m.Nodes[i]
		if n.State != Down || n.Missed.remembers(c) {
			continue
		}
		was := Missed{}
		if n.Missed != nil {
			was = *n.Missed
		}
		was.Epoch = m.Epoch + 1
		switch {
		case len(was.Spaces) < MaxMissed:
			was.Spaces = append(slices.Clip(was.Spaces), Space{c.Tenant, c.Name, c.Spares})
		case c.Spares:
			was.Spared = true
		default:
			return false, &skep.Error{Op: op, Kind: skep.Unavailable, Field: "node", Value: n.Name,
				Limit: fmt.Sprintf("up, or %d namespaces that it has missed deletions in", MaxMissed)}
		}
		n.Missed, changed = &was, true
	}
	return changed, nil
}

// returns has a node that is down be up, if it has lost all that it missed. A node that was removed is none of the map,
// though another one has its name now.
func (m *Map) returns(c *Command) (bool, error) {
	i := slices.IndexFunc(m.Nodes, func(n Node) bool { return n.Name == c.Name && (c.ID == 0 || c.ID == n.ID) })
	if i < 0 {
		return false, &skep.Error{Op: op, Kind: skep.NotFound, Field: "node",
			Value: fmt.Sprintf("%s, number %d", c.Name, c.ID), Limit: "a node of the map"}
	}
	if m.Nodes[i].State != Down {
		return false, nil
	}
	if missed := m.Nodes[i].Missed; missed != nil && c.Lost < missed.Epoch {
		return false, &skep.Error{Op: op, Kind: skep.Conflict, Field: "what node " + c.Name + " has lost, by epoch",
			Value: c.Lost, Limit: missed.Epoch}
	}
	m.Nodes = slices.Clone(m.Nodes)
	m.Nodes[i].State, m.Nodes[i].Missed = Up, nil
	m.Returned = m.Epoch + 1
	return true, nil
}

// validMissed looks at what a node has missed: one that is down says so, in a map that is agreed on.
func (n *Node) validMissed(at string) error {
	if n.Missed != nil && (n.State != Down || len(n.Missed.Spaces) > MaxMissed) {
		return skep.Invalidf(op, "what "+at+" has missed", len(n.Missed.Spaces),
			fmt.Sprintf("at most %d, of one that is down", MaxMissed))
	}
	return nil
}
