package httpapi

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
)

// What is asked of who routes: the prompt and the engines as the router told of them.
func TestRoute(t *testing.T) {
	t.Parallel()
	f := newFixture(t, false)
	other := skep.KeyOf([]byte("not stored"))
	w := f.ask("POST", "/api/v1/route", tokenReader, fmt.Sprintf(`{"namespace": %d, "keys": ["%s", "%s"], "tokens": 7,
		"goal_ms": 500, "engines": [{"name": "a"}, {"name": "b", "wait_ms": 12.5, "tokens_per_second": 9000, "blocks": 64}]}`,
		f.space.ID, f.key, other))
	require.Equal(t, 200, w.Code, w.Body)
	var v RouteView
	require.NoError(t, json.Unmarshal(w.Body.Bytes(), &v))
	require.Equal(t, "b", v.Engine)
	require.Equal(t, f.space.ID, f.askedOf)
	require.Equal(t, Routing{Keys: []skep.Key{f.key, other}, Tokens: 7, Goal: 500 * time.Millisecond,
		Engines: []RoutingEngine{{Name: "a"}, {Name: "b", Wait: 12500 * time.Microsecond, Rate: 9000, Blocks: 64}}}, f.asked)
}

func TestRouteOfWhatIsWrong(t *testing.T) {
	t.Parallel()
	f := newFixture(t, false)
	for fields, code := range map[string]int{
		`"engines": []`: 400,
		`"engines": [{"name": "a", "wait_ms": -1}]`:              400,
		`"engines": [{"name": "a", "wait_ms": 1e300}]`:           400,
		`"engines": [{"name": "a", "speed": 1}]`:                 400,
		`"engines": [{"name": "a"}], "goal_ms": -1`:              400,
		`"engines": [{"name": "a"}]`:                             200,
		`"engines": [{"name": "a", "tokens_per_second": 1e-12}]`: 200,
	} {
		body := fmt.Sprintf(`{"namespace": %d, "keys": ["%s"], %s}`, f.space.ID, f.key, fields)
		require.Equal(t, code, f.ask("POST", "/api/v1/route", tokenReader, body).Code, fields)
	}
	for ns, token := range map[any]string{99: tokenReader, f.space.ID: tokenOther} {
		body := fmt.Sprintf(`{"namespace": %d, "keys": ["%s"], "engines": [{"name": "a"}]}`, ns, f.key)
		require.Equal(t, 404, f.ask("POST", "/api/v1/route", token, body).Code)
	}
}
