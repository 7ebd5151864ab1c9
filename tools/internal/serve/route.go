package serve

import (
	"context"
	"slices"
	"time"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/replication/routing"
	"github.com/skepkv/skep/wire/httpapi"
)

// route answers POST /api/v1/route by package routing.
func route(by *routing.Router) func(*httpapi.Routing) (httpapi.RouteView, error) {
	return func(q *httpapi.Routing) (v httpapi.RouteView, err error) {
		ask := routing.Question{Owner: q.Tenant, Keys: q.Keys, BlockTokens: q.BlockTokens, Tokens: q.Tokens,
			Stored: q.Stored, Load: q.Load, Goal: q.Goal}
		for _, e := range q.Engines {
			ask.Engines = append(ask.Engines, routing.Engine(e))
		}
		a, err := by.Route(&ask)
		if err != nil {
			return v, err
		}
		v = httpapi.RouteView{Engine: ask.Engines[a.Engine].Name, HeldBlocks: a.Held, Why: a.Way.String(),
			ExpectMs: float64(a.Expect) / float64(time.Millisecond)}
		for i, c := range a.Choices {
			if i == 0 || c != a.Choices[0] {
				v.Choices = append(v.Choices, ask.Engines[c].Name)
			}
		}
		return v, nil
	}
}

// find looks up what the cluster has of a request, and names the node that has most of it: this node's Store knows its own
// groups alone.
func (s *server) find(ctx context.Context, ns *skep.NamespaceInfo, r *skep.LookupRequest) (out skep.LookupResult, node string, err error) {
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
	ask := *r
	ask.Namespace = list[i].ID
	out, of, err := s.whole.Holders(ctx, &ask)
	for name, n := range of {
		if most := of[node]; n > most || n == most && n > 0 && name < node {
			node = name
		}
	}
	return out, node, err
}
