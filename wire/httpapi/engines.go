package httpapi

import (
	"net/http"
	"time"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/wire/auth"
)

// RouteBody is a request that waits for an engine.
type RouteBody struct {
	Namespace uint32        `json:"namespace"`
	Keys      []HexKey      `json:"keys"`              // the chain of its prompt, first block first
	Tokens    int           `json:"tokens,omitempty"`  // of the prompt; 0: those of whole blocks
	GoalMs    float64       `json:"goal_ms,omitempty"` // to the first token; 0: 2,000
	Engines   []RouteEngine `json:"engines"`           // that may take it, 1 to 64
}

// RouteEngine is an engine that may take a request.
type RouteEngine struct {
	Name            string  `json:"name"`
	WaitMs          float64 `json:"wait_ms,omitempty"`           // until it begins with a request that comes now
	TokensPerSecond float64 `json:"tokens_per_second,omitempty"` // that it computes of a prompt; 0: 5,000
	Blocks          int     `json:"blocks,omitempty"`            // that its own cache has room for; 0: 4,096
}

// RouteView is where the request should go.
type RouteView struct {
	Engine       string   `json:"engine"`
	HeldBlocks   int      `json:"held_blocks"`   // leading blocks that its own cache should have, by what it was sent
	StoredBlocks int      `json:"stored_blocks"` // leading blocks that the store has, or all nodes of its cluster
	Node         string   `json:"node"`          // of a cluster, that has most of these; else empty
	ExpectMs     float64  `json:"expect_ms"`     // to the first token
	Choices      []string `json:"choices"`       // the engines that requests of this prefix go to
	Why          string   `json:"why"`           // affinity, load or relief
}

// Routing is what Options.Route is asked. What is 0 is the default.
type Routing struct {
	Keys    []skep.Key
	Tokens  int
	Goal    time.Duration
	Engines []RoutingEngine
}

// RoutingEngine is one of its engines. What is 0 is the default.
type RoutingEngine struct {
	Name   string
	Wait   time.Duration
	Rate   float64
	Blocks int
}

// mostMs is 11 days.
const mostMs = 1e9

func duration(field string, ms float64) (time.Duration, error) {
	if !(ms >= 0 && ms <= mostMs) {
		return 0, skep.Invalidf("route", field, ms, "0 to 1000000000")
	}
	return time.Duration(ms * float64(time.Millisecond)), nil
}

func (a *api) route(r *http.Request, id auth.Identity) (any, error) {
	const op = "route"
	var body RouteBody
	if err := decode(r, &body); err != nil {
		return nil, err
	}
	if a.o.Route == nil {
		return nil, &skep.Error{Op: op, Kind: skep.Unsupported}
	}
	ns, err := id.Namespace(r.Context(), op, a.o.Store, skep.NamespaceID(body.Namespace))
	if err != nil {
		return nil, err
	}
	q := Routing{Tokens: body.Tokens}
	if q.Goal, err = duration("goal_ms", body.GoalMs); err != nil {
		return nil, err
	}
	for _, k := range body.Keys {
		q.Keys = append(q.Keys, skep.Key(k))
	}
	for _, e := range body.Engines {
		wait, err := duration("wait_ms", e.WaitMs)
		if err != nil {
			return nil, err
		}
		q.Engines = append(q.Engines, RoutingEngine{e.Name, wait, e.TokensPerSecond, e.Blocks})
	}
	return a.o.Route(r.Context(), &ns, &q)
}
