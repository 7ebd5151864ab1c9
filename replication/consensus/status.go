package consensus

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"

	"github.com/hashicorp/raft"

	"github.com/skepkv/skep/replication/clustermap"
)

// Status is the cluster as one node sees it.
type Status struct {
	Node   uint64 `json:"node"`            // number of the node whose view it is
	Epoch  uint32 `json:"epoch"`           // of its map; 0: it has not heard of one since its start
	Leader uint64 `json:"leader"`          // number of the node that leads; 0: none that it knows
	Error  string `json:"error,omitempty"` // why the node takes no part, or no changes; absent where it does
	// silence after which a node is down by itself (seconds); 0: never
	DownAfter uint32 `json:"down_after"`
	// of a node that does not run: raft's term of the last change it knows, which counts before the epoch; else absent
	Term uint64 `json:"term,omitempty"`
	// tenants that some node encrypts; one that lacks the key takes none of their blocks; *: those without one of their
	// own
	Encrypted []string     `json:"encrypted,omitempty"`
	Nodes     []NodeStatus `json:"nodes"` // nodes of its map
}

// NodeStatus is one node of the map.
type NodeStatus struct {
	ID      uint64 `json:"id"`      // number
	Name    string `json:"name"`    // name
	Addr    string `json:"addr"`    // where clients reach it
	Peer    string `json:"peer"`    // where the other nodes reach it
	Weight  int    `json:"weight"`  // its share beside the others'
	Lease   uint32 `json:"lease"`   // silence that it keeps to: it serves for half of it unheard (seconds); 0: none
	State   string `json:"state"`   // up; out: nothing is placed on it; down: nor does it run; removed: the map lacks it
	Voter   bool   `json:"voter"`   // it votes
	Reached bool   `json:"reached"` // it answered within 2 s
	Epoch   uint32 `json:"epoch"`   // of the map that it says it has
	// of the log, that the furthest node has carried out and it has not (entries)
	Behind uint64 `json:"behind"`
	Error  string `json:"error,omitempty"` // why it was not reached; absent where it was
	// what it has, and sends to others; absent where it was not reached, or does not say
	Load *Load `json:"load,omitempty"`
	// of the encrypted tenants, those whose key it says it lacks: it takes none of their blocks
	LacksKeys []string `json:"lacks_keys,omitempty"`
	applied   uint64
}

// Load is what a node has, and what it sends to others.
type Load struct {
	Blocks   int64 `json:"blocks"`   // stored (blocks)
	Bytes    int64 `json:"bytes"`    // payload of them (bytes)
	Capacity int64 `json:"capacity"` // the cap on its drives; 0: none (bytes)
	// of copies that others should have of its blocks, that its last repair could not make (blocks); -1: it has made none
	Missing   int64 `json:"missing"`
	Repairing bool  `json:"repairing"`  // one is under way
	Sent      int64 `json:"sent_bytes"` // payload that the one under way, or the last one, sent (bytes)
	Rate      int64 `json:"rate"`       // that the one under way keeps to now; 0: it sends nothing (bytes a second)
	// tenants that it has encryption keys for; *: all that have none of their own; absent: it does not say
	Keys []string `json:"keys,omitzero"`
}

// load is what this node has; nil: that is not known.
func (m *Member) load(ctx context.Context) *Load {
	if m.o.Load == nil {
		return nil
	}
	return m.o.Load(ctx)
}

// askedAtOnce is how many nodes Status asks at a time.
const askedAtOnce = 32

// Status asks every node how far it is.
func (m *Member) Status(ctx context.Context) Status {
	s := Status{Node: m.o.ID, Nodes: []NodeStatus{}}
	select {
	case <-m.logs.failed:
		s.Error = m.logs.failure().Error()
	default:
		if at, id := m.raft.LeaderWithID(); id != "" {
			if to, err := m.ServerAddr(id); err == nil {
				at = to
			}
			s.Leader, _, _ = splitAddress(at)
		}
	}
	if err := cmp.Or(m.LeftBehind(), m.logs.seen()); err != nil && s.Error == "" {
		s.Error = err.Error()
	}
	now := m.Map()
	if now == nil {
		return s
	}
	s.Epoch, s.DownAfter, s.Encrypted = now.Epoch, now.Silence.After, encrypted(now)
	votes := map[raft.ServerID]bool{}
	nodes := slices.Clone(now.Nodes)
	if f := m.raft.GetConfiguration(); f.Error() == nil {
		for _, v := range f.Configuration().Servers {
			votes[v.ID] = v.Suffrage == raft.Voter
			id, peer, err := splitAddress(v.Address)
			if err == nil && !slices.ContainsFunc(now.Nodes, func(n clustermap.Node) bool { return n.ID == id }) {
				nodes = append(nodes, clustermap.Node{ID: id, Peer: peer, State: "removed"})
			}
		}
	}
	s.Nodes = make([]NodeStatus, len(nodes))
	slots := make(chan struct{}, askedAtOnce)
	var wait sync.WaitGroup
	for i, n := range nodes {
		out := &s.Nodes[i]
		*out = statusOf(&n, votes[serverID(n.ID)])
		if n.ID == m.o.ID {
			out.Reached, out.Epoch, out.applied, out.Load = true, now.Epoch, m.raft.AppliedIndex(), m.load(ctx)
			continue
		}
		slots <- struct{}{}
		wait.Go(func() {
			defer func() { <-slots }()
			ctx, cancel := context.WithTimeout(ctx, ioTimeout)
			defer cancel()
			r, err := m.peers.call(ctx, n.ID, n.Peer, request{Load: true})
			if err != nil {
				out.Error = err.Error()
				return
			}
			out.Reached, out.Epoch, out.applied, out.Load = true, r.Epoch, r.Applied, r.Load
		})
	}
	wait.Wait()
	furthest := uint64(0)
	for i := range s.Nodes {
		furthest = max(furthest, s.Nodes[i].applied)
	}
	for i := range s.Nodes {
		s.Nodes[i].Behind = furthest - s.Nodes[i].applied
		if l := s.Nodes[i].Load; l != nil && l.Keys != nil {
			s.Nodes[i].LacksKeys = clustermap.LacksKeys(s.Encrypted, l.Keys)
		}
	}
	return s
}

// encrypted are the tenants of which a map says so, or that it begins.
func encrypted(m *clustermap.Map) []string { return slices.Sorted(maps.Keys(m.Sealings())) }

func statusOf(n *clustermap.Node, votes bool) NodeStatus {
	out := NodeStatus{ID: n.ID, Name: n.Name, Addr: n.Addr, Peer: n.Peer, Weight: n.Weight, Lease: n.Lease,
		State: "up", Voter: votes}
	if n.State != "" {
		out.State = string(n.State)
	}
	return out
}

// Status is the cluster as a node knows it that does not run, which reaches nobody.
func (k *Kept) Status(node uint64) Status {
	s := Status{Node: node, Nodes: []NodeStatus{}}
	if k.Map == nil {
		return s
	}
	s.Epoch, s.DownAfter, s.Term, s.Encrypted = k.Map.Epoch, k.Map.Silence.After, k.Term, encrypted(k.Map)
	for i := range k.Map.Nodes {
		n := &k.Map.Nodes[i]
		s.Nodes = append(s.Nodes, statusOf(n, slices.Contains(k.Voters, n.ID)))
	}
	return s
}
