package clustermap

import (
	"fmt"
	"time"

	"github.com/skepkv/skep"
)

// Limits of Silence.After, in seconds.
const (
	MinSilence = 10
	MaxSilence = 24 * 60 * 60
)

// Silence is when a node is down by itself: who leads has not heard from it for that long. So that nothing that was
// deleted meanwhile is served, each node keeps to a lease (Node.Lease) that ends sooner.
type Silence struct {
	After uint32 `json:"after,omitempty"` // seconds; 0: never, an operator says so
	Epoch uint32 `json:"epoch"`           // of the map that said so first
}

// Ends is after how much silence the nodes agree that the node is down; 0: never. A node that keeps to a longer lease
// yet, for it has not been told of a shorter one, is waited for.
func (m *Map) Ends(n *Node) time.Duration {
	if m.Silence.After == 0 || n.Lease == 0 {
		return 0
	}
	return time.Duration(max(m.Silence.After, n.Lease)) * time.Second
}

// MayEnd says whether a node may be down by itself. At most a quarter of the nodes may be down then, or one where there
// are fewer than four; and the last node of a widest domain (a zone) that is not down stays. Where more is silent, more
// than nodes is wrong, and moving all that they hold would make it worse.
func (m *Map) MayEnd(n *Node) bool {
	if n.State == Down || 4*(len(m.Down())+1) > max(len(m.Nodes), 4) {
		return false
	}
	up, beside, beyond := false, 0, 0 // beside: other nodes of its domain; beyond: those of them that are down
	for i := range m.Nodes {
		o := &m.Nodes[i]
		if o.ID == n.ID {
			continue
		}
		up = up || o.State == Up
		if len(n.Domain) > 0 && len(o.Domain) > 0 && o.Domain[0] == n.Domain[0] {
			beside++
			if o.State == Down {
				beyond++
			}
		}
	}
	return up && (beside == 0 || beyond < beside)
}

// ByID finds a node by its number; nil: the map, which may be nil, has it not.
func (m *Map) ByID(id uint64) *Node {
	if m == nil {
		return nil
	}
	for i := range m.Nodes {
		if m.Nodes[i].ID == id {
			return &m.Nodes[i]
		}
	}
	return nil
}

func (m *Map) setSilence(after uint32) (changed bool) {
	if changed = m.Silence.After != after; changed {
		m.Silence = Silence{after, m.Epoch + 1}
	}
	return changed
}

func (m *Map) validSilence() error {
	valid := func(s uint32) bool { return s == 0 || s >= MinSilence && s <= MaxSilence }
	if !valid(m.Silence.After) {
		return skep.Invalidf(op, "silence of a node that is down, in seconds", m.Silence.After,
			fmt.Sprintf("%d to %d, or 0: never", MinSilence, MaxSilence))
	}
	if m.Silence.Epoch > m.Epoch {
		return skep.Invalidf(op, "epoch of the silence", m.Silence.Epoch, fmt.Sprintf("at most %d", m.Epoch))
	}
	for i := range m.Nodes {
		if n := &m.Nodes[i]; !valid(n.Lease) {
			return skep.Invalidf(op, "lease of node "+n.Name+" in seconds", n.Lease,
				fmt.Sprintf("%d to %d, or 0: none", MinSilence, MaxSilence))
		}
	}
	return nil
}
