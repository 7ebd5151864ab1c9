package serve

import (
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/replication/clustermap"
	"github.com/skepkv/skep/replication/consensus"
	"github.com/skepkv/skep/wire/httpapi"
)

// Shares are of what those have that say so, and by the weights of those that are up.
func TestAClusterIsShown(t *testing.T) {
	t.Parallel()
	m := &clustermap.Map{Epoch: 7, Replicas: 2, Nodes: []clustermap.Node{
		{ID: 1, Name: "a", Domain: []string{"r1"}}, {ID: 2, Name: "b"}, {ID: 3, Name: "c"}}}
	v := viewOf(consensus.Status{Node: 2, Epoch: 7, Leader: 1, DownAfter: 60, Nodes: []consensus.NodeStatus{
		{ID: 1, Name: "a", Weight: 1, State: "up", Voter: true, Reached: true, Epoch: 7,
			Load: &consensus.Load{Blocks: 3, Bytes: 300, Capacity: 1000, Missing: -1}},
		{ID: 2, Name: "b", Weight: 3, State: "up", Voter: true, Reached: true, Epoch: 7, Behind: 2,
			Load: &consensus.Load{Blocks: 1, Bytes: 100, Missing: 4, Repairing: true, Sent: 50}},
		{ID: 3, Name: "c", Weight: 4, State: "down", Error: "no answer"},
	}}, m, "b")
	nodes := []httpapi.ClusterNode{
		{Name: "a", Domain: []string{"r1"}, State: "up", Role: "leads", Reached: true, Epoch: 7, Weight: 1, Share: .25,
			Load: &httpapi.ClusterLoad{Blocks: 3, Bytes: 300, Capacity: 1000, Share: .75, Missing: -1}},
		{Name: "b", State: "up", Role: "votes", Reached: true, Epoch: 7, Behind: 2, Weight: 3, Share: .75,
			Load: &httpapi.ClusterLoad{Blocks: 1, Bytes: 100, Share: .25, Missing: 4, Repairing: true, Sent: 50}},
		{Name: "c", State: "down", Role: "hears", Weight: 4, Error: "no answer"},
	}
	require.Equal(t, httpapi.ClusterView{Node: "b", Epoch: 7, Leader: "a", Replicas: 2, DownAfter: 60, Nodes: nodes}, v)
	require.Empty(t, viewOf(consensus.Status{}, nil, "b").Nodes, "it has not heard of a map yet")
}

// Of a node whose figures cannot be read nothing is said: 0 blocks would be.
func TestWhatCannotBeReadIsNotKnown(t *testing.T) {
	t.Parallel()
	s := &server{st: skep.UnsupportedStore{}, log: slog.New(slog.DiscardHandler)}
	require.Nil(t, s.load(t.Context()))
}
