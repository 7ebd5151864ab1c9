package serve

import (
	"time"

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
