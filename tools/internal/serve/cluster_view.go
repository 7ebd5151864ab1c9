package serve

import (
	"cmp"
	"context"

	"github.com/skepkv/skep/replication/clustermap"
	"github.com/skepkv/skep/replication/consensus"
	"github.com/skepkv/skep/wire/httpapi"
)

// clusterView is how the cluster stands, for HTTP and the console; nil: the server is of none that agrees on a map.
func (s *server) clusterView() func(ctx context.Context) (httpapi.ClusterView, error) {
	if s.member == nil {
		return nil
	}
	return func(ctx context.Context) (httpapi.ClusterView, error) {
		return viewOf(s.member.c.Status(ctx), s.member.c.Map(), s.member.id.Name), nil
	}
}

// viewOf makes shares of what the nodes have, and of what they are to have.
func viewOf(st consensus.Status, m *clustermap.Map, self string) httpapi.ClusterView {
	v := httpapi.ClusterView{Node: self, Epoch: st.Epoch, DownAfter: int64(st.DownAfter), Encrypted: st.Encrypted,
		Error: st.Error, Nodes: []httpapi.ClusterNode{}}
	if m == nil {
		return v
	}
	v.Replicas = cmp.Or(m.Replicas, 1)
	domains := map[uint64][]string{}
	for i := range m.Nodes {
		domains[m.Nodes[i].ID] = m.Nodes[i].Domain
	}
	weights, bytes := 0, int64(0)
	for i := range st.Nodes {
		if st.Nodes[i].State == "up" {
			weights += st.Nodes[i].Weight
		}
		if l := st.Nodes[i].Load; l != nil {
			bytes += l.Bytes
		}
	}
	for i := range st.Nodes {
		n := &st.Nodes[i]
		out := httpapi.ClusterNode{Name: n.Name, Addr: n.Addr, Domain: domains[n.ID], State: n.State, Reached: n.Reached,
			Epoch: n.Epoch, Behind: n.Behind, Weight: n.Weight, LacksKeys: n.LacksKeys, Error: n.Error, Role: "hears"}
		switch {
		case n.ID == st.Leader:
			out.Role, v.Leader = "leads", n.Name
		case n.Voter:
			out.Role = "votes"
		}
		if n.State == "up" && weights > 0 {
			out.Share = float64(n.Weight) / float64(weights)
		}
		if l := n.Load; l != nil {
			out.Load = &httpapi.ClusterLoad{Blocks: l.Blocks, Bytes: l.Bytes, Capacity: l.Capacity, Missing: l.Missing,
				Repairing: l.Repairing, Sent: l.Sent}
			if bytes > 0 {
				out.Load.Share = float64(l.Bytes) / float64(bytes)
			}
		}
		v.Nodes = append(v.Nodes, out)
	}
	return v
}
