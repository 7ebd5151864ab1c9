package consensus

import (
	"context"
	"sync"
	"time"

	"github.com/skepkv/skep/replication/clustermap"
)

// reachPatience is how long a node looks for another one that it is asked for.
const reachPatience = time.Second

// Reached asks the other nodes of the map which of them reaches a node at its peer address: it gives one that does.
// Nil: none that answers before ctx ends.
func (m *Member) Reached(ctx context.Context, id uint64) *clustermap.Node {
	now := m.Map()
	if now == nil {
		return nil
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var mu sync.Mutex
	var by *clustermap.Node
	var wait sync.WaitGroup
	slots := make(chan struct{}, askedAtOnce)
	for i := range now.Nodes {
		n := &now.Nodes[i]
		if n.ID == m.o.ID || n.ID == id || n.State == clustermap.Down {
			continue
		}
		select {
		case slots <- struct{}{}:
		case <-ctx.Done():
			continue
		}
		wait.Go(func() {
			defer func() { <-slots }()
			r, err := m.peers.call(ctx, n.ID, n.Peer, request{Reach: id})
			if err == nil && r.Reached {
				mu.Lock()
				by = n
				mu.Unlock()
				cancel()
			}
		})
	}
	wait.Wait()
	return by
}

// reaches says whether this node reaches another one.
func (m *Member) reaches(id uint64) bool {
	at, err := m.ServerAddr(serverID(id))
	if err != nil {
		return false
	}
	_, peer, err := splitAddress(at)
	if err != nil {
		return false
	}
	ctx, cancel := context.WithTimeout(context.Background(), reachPatience)
	defer cancel()
	c, err := m.o.Dial(ctx, peer)
	if err != nil {
		return false
	}
	_ = c.Close()
	return true
}
