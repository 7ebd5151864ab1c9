package serve

import (
	"encoding/json"
	"fmt"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/tools/internal/member"
)

// rejoins answers a node that comes to the cluster which was recovered from its own.
func (s *server) rejoins(q *member.AskRejoin) (json.RawMessage, error) {
	const op = "cluster"
	c := s.member.c
	if err := c.LeftBehind(); err != nil {
		return nil, err
	}
	m := c.Map()
	if m == nil {
		return nil, &skep.Error{Op: op, Kind: skep.Unavailable, Field: "map", Value: "none yet",
			Limit: "one that is agreed on"}
	}
	if n, err := m.Node(q.Name); err != nil || n.ID != q.ID {
		return nil, &skep.Error{Op: op, Kind: skep.NotFound, Field: "node",
			Value: fmt.Sprintf("%s, number %d", q.Name, q.ID), Limit: "one of the recovered map"}
	}
	out := member.Rejoined{Map: m.Public(), Cluster: c.Cluster()}
	if q.Cluster != out.Cluster {
		from := m.From(q.Cluster)
		if from == nil {
			return nil, &skep.Error{Op: op, Kind: skep.Conflict, Field: "cluster", Value: "that of node " + q.Name,
				Limit: "one that this server's was recovered from; else add the node anew, with an empty directory and wiped drives"}
		}
		out.From, out.Term = from.Epoch, from.Term
	}
	return json.Marshal(out)
}
