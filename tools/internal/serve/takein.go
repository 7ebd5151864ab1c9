package serve

import (
	"context"
	"encoding/json"
	"slices"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/replication/clustermap"
	"github.com/skepkv/skep/replication/consensus"
	"github.com/skepkv/skep/tools/internal/member"
)

// takeIn answers a node that is to be added by member.Add.
func (s *server) takeIn(ctx context.Context, q *member.AskJoin) (json.RawMessage, error) {
	c := s.member.c
	if of := c.Cluster(); q.Lacked != of {
		if err := s.lacks(ctx, q.Node.Name); err != nil {
			return nil, err
		}
		return json.Marshal(member.Added{Cluster: of})
	}
	epoch, err := c.Propose(ctx, &clustermap.Command{Do: clustermap.AddNode, Node: &q.Node})
	if skep.KindOf(err) == skep.Conflict && s.begun(ctx, epoch, &q.Node) {
		err = nil
	}
	if err != nil {
		return nil, err
	}
	return s.added(ctx, epoch, q.Node.Name)
}

// lacks has the nodes agree that the map has no node of a name: what this node knows of the map may be old. The command
// is one that a map never carries out, and refuses otherwise where it has the node.
func (s *server) lacks(ctx context.Context, name string) error {
	_, err := s.member.c.Propose(ctx, &clustermap.Command{Do: clustermap.SetAddress, Name: name})
	switch skep.KindOf(err) {
	case skep.NotFound:
		return nil
	case skep.Invalid:
		return &skep.Error{Op: "cluster", Kind: skep.Conflict, Field: "node", Value: name,
			Limit: "the name of no other node"}
	}
	return err
}

// begun says whether the node that the map of an epoch has is the one that asks, which was added and not told. It is at
// the same addresses, and nobody has ever served it: it does not answer, has no vote, which only a node gets that has
// answered, keeps to no lease, and has missed nothing.
func (s *server) begun(ctx context.Context, epoch uint32, n *clustermap.Node) bool {
	c := s.member.c
	s.member.tells(ctx, epoch)
	has, err := c.Map().Node(n.Name)
	if err != nil || has.Addr != n.Addr || has.Peer != n.Peer || has.Lease != 0 || has.Missed != nil {
		return false
	}
	nodes := c.Status(ctx).Nodes
	i := slices.IndexFunc(nodes, func(x consensus.NodeStatus) bool { return x.ID == has.ID })
	return i >= 0 && !nodes[i].Voter && !nodes[i].Reached && ctx.Err() == nil
}

// added is what who adds a node is told: the map that has it.
func (s *server) added(ctx context.Context, epoch uint32, name string) (json.RawMessage, error) {
	s.member.tells(ctx, epoch)
	m := s.member.c.Map()
	if _, err := m.Node(name); err != nil {
		return nil, &skep.Error{Op: "cluster", Kind: skep.Conflict, Field: "node", Value: name,
			Limit: "a node that nobody removes meanwhile"}
	}
	return json.Marshal(member.Added{Map: m.Public(), Cluster: s.member.c.Cluster()})
}
