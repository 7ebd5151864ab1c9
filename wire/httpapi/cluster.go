package httpapi

import (
	"net/http"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/wire/auth"
)

// ClusterView is a cluster whose nodes agree on a map, as the server sees it.
type ClusterView struct {
	Node      string `json:"node"`       // whose view it is
	Epoch     uint32 `json:"epoch"`      // of its map
	Leader    string `json:"leader"`     // the node that leads; "": none, and the map cannot be changed
	Replicas  int    `json:"replicas"`   // nodes that have each block of a chain
	DownAfter int64  `json:"down_after"` // silence after which a node is down by itself (seconds); 0: never
	// Encrypted are the tenants that some node encrypts; *: those without a key of their own.
	Encrypted []string      `json:"encrypted,omitempty"`
	Error     string        `json:"error,omitempty"`
	Nodes     []ClusterNode `json:"nodes"`
}

// ClusterNode is one node.
type ClusterNode struct {
	Name    string   `json:"name"`
	Addr    string   `json:"addr"`   // where clients reach it
	Domain  []string `json:"domain"` // what may fail with it, the widest first
	State   string   `json:"state"`  // up, out, down or removed
	Role    string   `json:"role"`   // leads, votes or hears
	Reached bool     `json:"reached"`
	Epoch   uint32   `json:"epoch"`  // of the map that it has
	Behind  uint64   `json:"behind"` // changes of the map that it has not carried out
	Weight  int      `json:"weight"`
	Share   float64  `json:"share"` // of all blocks that are to be its by the map, 0 to 1
	// LacksKeys are the encrypted tenants whose key it lacks: it takes none of their blocks.
	LacksKeys []string `json:"lacks_keys,omitempty"`
	Error     string   `json:"error,omitempty"`
	// Load is what it has; absent: it does not say.
	Load *ClusterLoad `json:"load,omitempty"`
}

// ClusterLoad is what a node has, and sends to others.
type ClusterLoad struct {
	Blocks    int64   `json:"blocks"`
	Bytes     int64   `json:"bytes"`      // payload of them
	Capacity  int64   `json:"capacity"`   // of its drives, bytes
	Share     float64 `json:"share"`      // of the bytes that all nodes have, 0 to 1
	Missing   int64   `json:"missing"`    // copies on others that its last repair could not make; -1: it has made none
	Repairing bool    `json:"repairing"`  // one is under way
	Sent      int64   `json:"sent_bytes"` // by the one under way, or the last one
}

func (a *api) cluster(r *http.Request, _ auth.Identity) (any, error) {
	if a.o.Cluster == nil {
		return nil, &skep.Error{Op: "cluster", Kind: skep.Unsupported, Field: "server", Value: "no node that agrees on a map"}
	}
	return a.o.Cluster(r.Context())
}
