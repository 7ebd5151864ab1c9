package serve

import (
	"context"
	"slices"
	"time"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/replication/routing"
	"github.com/skepkv/skep/wire/httpapi"
)

// router answers POST /api/v1/route by package routing.
func (s *server) router() func(context.Context, *skep.NamespaceInfo, *httpapi.Routing) (httpapi.RouteView, error) {
	by := routing.New()
	return func(ctx context.Context, ns *skep.NamespaceInfo, q *httpapi.Routing) (v httpapi.RouteView, err error) {
		ask := routing.Question{Owner: ns.Tenant, Keys: q.Keys, BlockTokens: ns.Shape.BlockTokens, Tokens: q.Tokens,
			Goal: q.Goal}
		for _, e := range q.Engines {
			ask.Engines = append(ask.Engines, routing.Engine(e))
		}
		if err := ask.Validate(); err != nil { // before all nodes are asked
			return v, err
		}
		found, node, err := s.find(ctx, ns, ask.Keys)
		if err != nil {
			return v, err
		}
		ask.Stored, ask.Load = found.Blocks, max(found.Estimate, 0)
		a, err := by.Route(&ask)
		if err != nil {
			return v, err
		}
		v = httpapi.RouteView{Engine: ask.Engines[a.Engine].Name, HeldBlocks: a.Held, StoredBlocks: ask.Stored, Node: node,
			ExpectMs: float64(a.Expect) / float64(time.Millisecond), Why: a.Way.String()}
		for i, c := range a.Choices {
			if i == 0 || c != a.Choices[0] {
				v.Choices = append(v.Choices, ask.Engines[c].Name)
			}
		}
		return v, nil
	}
}

// find looks up what the cluster has of a chain, and names the node that has most of it: this node's Store knows its own
// groups alone.
func (s *server) find(
	ctx context.Context, ns *skep.NamespaceInfo, keys []skep.Key,
) (out skep.LookupResult, node string, err error) {
	r := &skep.LookupRequest{Scope: skep.Scope{Namespace: ns.ID}, Keys: keys, Lease: skep.NoLease,
		Cost: &skep.RecomputeCost{}} // for the estimate
	if s.whole == nil {
		out, err = s.st.Lookup(ctx, r)
		return out, "", err
	}
	list, err := s.whole.NamespacesOf(ctx, ns.Tenant)
	if err != nil {
		return out, "", err
	}
	i := slices.IndexFunc(list, func(n skep.NamespaceInfo) bool { return n.Name == ns.Name })
	if i < 0 { // deleted meanwhile, or this node alone has it and is away
		return out, "", nil
	}
	r.Namespace = list[i].ID
	out, of, err := s.whole.Holders(ctx, r)
	for name, n := range of {
		if most := of[node]; n > most || n == most && n > 0 && name < node {
			node = name
		}
	}
	return out, node, err
}
