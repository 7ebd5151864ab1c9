package clustermap

import (
	"encoding/hex"
	"fmt"
	"slices"

	"github.com/skepkv/skep"
)

const (
	// MaxRecovered is how many clusters a map remembers that it was recovered from; the oldest goes first.
	MaxRecovered = 16
	// RecoveryEpochs is by how much Recover raises the epoch: clients may know maps that the lost nodes agreed on and
	// the one that goes on has not heard of, and follow no map of a lower epoch.
	RecoveryEpochs = 1 << 16
)

// Recovery is a cluster that a map was recovered from.
type Recovery struct {
	Cluster string `json:"cluster"` // its identity, 32 hexadecimal digits
	Epoch   uint32 `json:"epoch"`   // of the map of it that this one goes on from
	Term    uint64 `json:"term"`    // raft's, of the last change of that map
}

// From is the map's recovery from a cluster; nil: it goes on from no such one.
func (m *Map) From(cluster string) *Recovery {
	i := slices.IndexFunc(m.Recovered, func(r Recovery) bool { return r.Cluster == cluster })
	if i < 0 {
		return nil
	}
	return &m.Recovered[i]
}

// recover takes out the nodes that are lost. The one that goes on is up where no other is. Where it was down, it still
// has to lose what it missed, as far as it knows that: it serves nothing before it has returned.
func (m *Map) recover(c *Command) error {
	if len(c.Names) == 0 {
		return skep.Invalidf(op, "lost nodes", "none", "names of nodes of the map")
	}
	if slices.Contains(c.Names, c.Name) {
		return skep.Invalidf(op, "lost node", c.Name, "another one than that which goes on")
	}
	if _, err := m.Node(c.Name); err != nil {
		return err
	}
	for i, name := range c.Names {
		if _, err := m.Node(name); err != nil || slices.Contains(c.Names[:i], name) {
			return &skep.Error{Op: op, Kind: skep.NotFound, Field: "lost node", Value: name,
				Limit: "a node of the map, named once"}
		}
	}
	m.Nodes = slices.DeleteFunc(slices.Clone(m.Nodes), func(n Node) bool { return slices.Contains(c.Names, n.Name) })
	up := slices.ContainsFunc(m.Nodes, func(n Node) bool { return n.State == Up })
	for i := range m.Nodes {
		n := &m.Nodes[i]
		if up || n.Name != c.Name {
			continue
		}
		n.State = Up
		if n.Missed != nil {
			missed := *n.Missed
			missed.Out = false
			n.Missed = &missed
		}
	}
	m.Recovered = append(slices.Clone(m.Recovered), Recovery{c.Cluster, m.Epoch, c.Term})
	m.Recovered = m.Recovered[max(0, len(m.Recovered)-MaxRecovered):]
	return nil
}

// validRecovered looks at the clusters that the map was recovered from.
func (m *Map) validRecovered() error {
	if len(m.Recovered) > MaxRecovered {
		return skep.Invalidf(op, "clusters that it was recovered from", len(m.Recovered),
			fmt.Sprintf("at most %d", MaxRecovered))
	}
	for _, r := range m.Recovered {
		if b, err := hex.DecodeString(r.Cluster); err != nil || len(b) != 16 {
			return skep.Invalidf(op, "cluster that it was recovered from", fmt.Sprintf("%q", r.Cluster),
				"32 hexadecimal digits")
		}
		if r.Epoch == 0 || r.Epoch > m.Epoch {
			return skep.Invalidf(op, "epoch that it was recovered from", r.Epoch, fmt.Sprintf("1 to %d", m.Epoch))
		}
	}
	return nil
}
