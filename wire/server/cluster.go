package server

import (
	"cmp"
	"context"
	"time"

	"github.com/skepkv/skep"
)

// clusterState is the map that a server tells clients of, and its epoch.
type clusterState struct {
	text  []byte
	epoch uint32
	node  uint64        // which of its nodes the server is
	over  chan struct{} // closed when there is a newer one
}

// behindPatience is how long a request waits for the newer map that it was made by. The nodes hear of one within about
// 100 ms after it is agreed on.
const behindPatience = 250 * time.Millisecond

// SetCluster gives the server of a node another map, in which it is the node of that id (0: as before): requests by an
// older one are answered so from here on. A server that was made without a map stays without.
//
// Errors: Invalid (the epoch is not above the one there is).
func (s *Server) SetCluster(text []byte, epoch uint32, node uint64) error {
	for {
		was := s.cluster.Load()
		switch {
		case was == nil:
			return skep.Invalidf("set cluster", "map", "set", "none: the server was made without one")
		case epoch <= was.epoch:
			return skep.Invalidf("set cluster", "epoch", epoch, was.epoch+1)
		}
		if s.cluster.CompareAndSwap(was, &clusterState{text, epoch, cmp.Or(node, was.node), make(chan struct{})}) {
			close(was.over)
			return nil
		}
	}
}

// byEpoch answers a request by another map. One by a newer map than the server has waits for that, not for long: in
// vain has the newest one that a connection's requests have waited for so, which is not waited for again.
func (s *Server) byEpoch(ctx context.Context, op string, epoch uint32, inVain *uint32) error {
	c := s.cluster.Load()
	if epoch > c.epoch && epoch > *inVain {
		end := time.NewTimer(behindPatience)
		defer end.Stop()
		for waits := true; waits && epoch > c.epoch; c = s.cluster.Load() {
			select {
			case <-c.over:
			case <-end.C:
				waits = false
			case <-ctx.Done():
				waits = false
			}
		}
	}
	switch {
	case epoch < c.epoch:
		return &skep.Error{Op: op, Kind: skep.StaleMap, Field: "epoch", Value: epoch, Limit: c.epoch}
	case epoch > c.epoch:
		*inVain = max(*inVain, epoch)
		return &skep.Error{Op: op, Kind: skep.Behind, Field: "epoch", Value: epoch, Limit: c.epoch}
	}
	return nil
}

// nodeID is which of the cluster's nodes the server is; 0: none.
func (s *Server) nodeID() uint64 {
	if c := s.cluster.Load(); c != nil {
		return c.node
	}
	return s.opt.NodeID
}
