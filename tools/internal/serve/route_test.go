package serve

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/memstore"
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
