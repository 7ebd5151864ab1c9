package consensus

import (
	"context"
	"sync"

	"github.com/skepkv/skep/replication/clustermap"
)

// Unheard asks the other nodes of the map how far they are, and gives the first one that does not say that it has the
// map of an epoch or a newer one; nil: all have. Those that are down are not asked: they hear of it before they serve.
// Where this node has an older map, it is the one: it does not know whom to ask.
func (m *Member) Unheard(ctx context.Context, epoch uint32) *clustermap.Node {
	now := m.Map()
	if epochOf(now) < epoch || now == nil {
		return &clustermap.Node{ID: m.o.ID, Name: m.nameOf(serverID(m.o.ID))}
	}
	ctx, cancel := context.WithTimeout(ctx, ioTimeout)
	defer cancel()
	heard := make([]bool, len(now.Nodes))
	slots := make(chan struct{}, askedAtOnce)
	var wait sync.WaitGroup
	for i := range now.Nodes {
		n := &now.Nodes[i]
		if n.ID == m.o.ID || n.State == clustermap.Down {
			heard[i] = true
			continue
		}
		slots <- struct{}{}
		wait.Go(func() {
			defer func() { <-slots }()
			r, err := m.peers.call(ctx, n.ID, n.Peer, request{})
			heard[i] = err == nil && r.Epoch >= epoch
		})
	}
	wait.Wait()
	for i, ok := range heard {
		if !ok {
			return &now.Nodes[i]
		}
	}
	return nil
}
