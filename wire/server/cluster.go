package server

import "github.com/skepkv/skep"

// clusterState is the map that a server tells clients of, and its epoch.
type clusterState struct {
	text  []byte
	epoch uint32
}

// SetCluster gives the server of a node another map: requests by an older one are answered so from here on. A server
// that was made without a map stays without.
//
// Errors: Invalid (the epoch is not above the one there is).
func (s *Server) SetCluster(text []byte, epoch uint32) error {
	for {
		was := s.cluster.Load()
		switch {
		case was == nil:
			return skep.Invalidf("set cluster", "map", "set", "none: the server was made without one")
		case epoch <= was.epoch:
			return skep.Invalidf("set cluster", "epoch", epoch, was.epoch+1)
		}
		if s.cluster.CompareAndSwap(was, &clusterState{text, epoch}) {
			return nil
		}
	}
}

// compare answers a request by another map.
func (c *clusterState) compare(op string, epoch uint32) error {
	switch {
	case epoch < c.epoch:
		return &skep.Error{Op: op, Kind: skep.StaleMap, Field: "epoch", Value: epoch, Limit: c.epoch}
	case epoch > c.epoch:
		return &skep.Error{Op: op, Kind: skep.Behind, Field: "epoch", Value: epoch, Limit: c.epoch}
	}
	return nil
}
