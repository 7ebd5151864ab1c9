package serve

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/replication"
	"github.com/skepkv/skep/store/memstore"
	"github.com/skepkv/skep/wire"
	"github.com/skepkv/skep/wire/auth"
	"github.com/skepkv/skep/wire/httpapi"
)

// A router asks where a request should go: the first time an engine has nothing, the second time what it was sent.
func TestARouterAsks(t *testing.T) {
	t.Parallel()
	st := memstore.New(memstore.Options{})
	ns, err := st.OpenNamespace(t.Context(), skep.NamespaceSpec{Tenant: auth.DefaultTenant, Name: "n", Chained: true,
		Shape: skep.Shape{BlockTokens: 16, Bytes: 64}})
	require.NoError(t, err)
	keys := []skep.Key{skep.KeyOf([]byte("1")), skep.KeyOf([]byte("2"))}
	_, err = st.Put(t.Context(), &skep.PutRequest{Scope: skep.Scope{Namespace: ns.ID},
		Blocks: []skep.Block{{Key: keys[0], Parts: []skep.Part{{Bytes: make([]byte, 64)}}}}})
	require.NoError(t, err)
	r := start(t, local(t), Options{Store: st})
	ask := func() (v httpapi.RouteView) {
		res, err := http.Post("http://"+r.at("http")+"/api/v1/route", "application/json", strings.NewReader(fmt.Sprintf(
			`{"namespace": %d, "keys": ["%s", "%s"],
			"engines": [{"name": "a"}, {"name": "b", "wait_ms": 60000}, {"name": "c", "wait_ms": 60000}]}`,
			ns.ID, keys[0], keys[1])))
		require.NoError(t, err)
		defer res.Body.Close()
		require.Equal(t, 200, res.StatusCode)
		require.NoError(t, json.NewDecoder(res.Body).Decode(&v))
		return v
	}
	v := ask()
	require.Equal(t, "a", v.Engine, "the others are late")
	require.Zero(t, v.HeldBlocks)
	require.Equal(t, 1, v.StoredBlocks)
	require.Len(t, v.Choices, 2)
	require.Equal(t, 2, ask().HeldBlocks)
}

// Any node of a cluster says what all of them have, and which has most of it.
func TestARouterAsksANodeOfACluster(t *testing.T) {
	t.Parallel()
	r := newRing(t, 3, func(c *Config) { c.HTTP = "127.0.0.1:0" })
	st, err := replication.Dial(t.Context(), wire.Options{Addr: "unix:" + r.configs[0].Unix})
	require.NoError(t, err)
	defer func() { require.NoError(t, st.Close()) }()
	ns, err := skep.OpenNamespace(t.Context(), st, skep.NamespaceSpec{Tenant: auth.DefaultTenant, Name: "n", Chained: true,
		Shape: skep.Shape{BlockTokens: 16, Bytes: 64}})
	require.NoError(t, err)
	const n = 300 // several groups
	keys, names, blocks := make([]skep.Key, n), make([]string, n), make([][]byte, n)
	for i := range keys {
		keys[i], blocks[i] = skep.KeyOf([]byte{byte(i), byte(i >> 8)}), make([]byte, 64)
		names[i] = keys[i].String()
	}
	_, err = ns.Put(t.Context(), keys, 0, blocks...)
	require.NoError(t, err)
	most := map[string]bool{}
	for _, node := range r.nodes {
		var list []skep.NamespaceInfo
		_, body := get(t, http.DefaultClient, "http://"+node.at("http")+"/api/v1/namespaces", "")
		require.NoError(t, json.Unmarshal([]byte(body), &list))
		require.Len(t, list, 1)
		ask, err := json.Marshal(map[string]any{"namespace": list[0].ID, "keys": names,
			"engines": []any{map[string]any{"name": "a"}}})
		require.NoError(t, err)
		res, err := http.Post("http://"+node.at("http")+"/api/v1/route", "application/json", strings.NewReader(string(ask)))
		require.NoError(t, err)
		answer, err := io.ReadAll(res.Body)
		require.NoError(t, errors.Join(err, res.Body.Close()))
		var v httpapi.RouteView
		require.NoError(t, json.Unmarshal(answer, &v))
		require.Equal(t, n, v.StoredBlocks, "%s", answer)
		most[v.Node] = true
	}
	require.Len(t, most, 1, "they agree: %v", most)
	require.NotContains(t, most, "")
}
