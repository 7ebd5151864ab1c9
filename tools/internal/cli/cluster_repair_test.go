package cli_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/replication"
	"github.com/skepkv/skep/store/storetest"
	"github.com/skepkv/skep/tools/internal/command"
	"github.com/skepkv/skep/wire"
	"github.com/skepkv/skep/wire/auth"
)

// A node is added, and gets its share of what there is; another one is taken out of the map's layout, sends what it
// has, and is not missed when it is gone. What cannot be sent is said.
func TestClusterRepair(t *testing.T) {
	t.Parallel()
	n := newNodes(t)
	skepRun(t, append([]string{"cluster", "init", "--node", "a", "--json"}, n.place("a")...)...).OK(t)
	n.serve("a")
	n.add("b", "a")
	n.serve("b")
	known := func(epoch uint32, names ...string) {
		storetest.Eventually(t, "all have the map", func() bool {
			for _, name := range names {
				if s := n.ask(name); s == nil || s.Epoch < epoch {
					return false
				}
			}
			return true
		})
	}
	known(2, "a", "b")
	st, err := replication.Dial(t.Context(), wire.Options{Addr: n.addr("b")})
	require.NoError(t, err)
	defer func() { require.NoError(t, st.Close()) }()
	ns, err := skep.OpenNamespace(t.Context(), st, skep.NamespaceSpec{
		Tenant: auth.DefaultTenant, Name: "n", Chained: true, Shape: skep.Shape{Kind: skep.Opaque, BlockTokens: 1},
	})
	require.NoError(t, err)
	const blocks = 400
	var keys []skep.Key
	q := &skep.PutRequest{Scope: ns.Scope()}
	for i := range blocks {
		var parent *skep.Key
		if i > 0 {
			parent = &keys[i-1]
		}
		keys = append(keys, skep.ChainKey(parent, []uint32{uint32(i)}))
		value := storetest.Payload(keys[i], skep.PartKV, 1000)
		q.Blocks = append(q.Blocks, skep.Block{Key: keys[i], Parts: []skep.Part{{Bytes: value}}})
	}
	res, err := st.Put(t.Context(), q)
	require.NoError(t, err)
	for _, x := range res {
		require.Equal(t, skep.Committed, x.Outcome)
	}
	repair := func(code int) map[string]any {
		r := skepRun(t, "cluster", "repair", "--server", n.addr("b"), "--json")
		require.Equal(t, code, r.Code, r.Stderr)
		return r.JSON(t)
	}
	found := func() int {
		seen := 0
		all := &skep.RestoreRequest{Chains: []skep.Chain{{Scope: ns.Scope(), Keys: keys}}}
		require.NoError(t, skep.Load(t.Context(), st, all, func(c *skep.Chunk) error {
			if c.Err == nil {
				seen++
				require.Equal(t, q.Blocks[c.Block].Parts[0].Bytes, c.AppendTo(nil))
			}
			return nil
		}))
		return seen
	}
	require.Equal(t, blocks, found())
	n.add("c", "a")
	n.serve("c")
	known(3, "a", "b", "c")
	r := repair(command.OK)
	require.Zero(t, r["missing"])
	require.Len(t, r["nodes"], 3)
	require.Equal(t, blocks, found())
	alone, err := skep.OpenNamespace(t.Context(), st, skep.NamespaceSpec{
		Tenant: auth.DefaultTenant, Name: "alone", Shape: skep.Shape{Kind: skep.Opaque, BlockTokens: 1},
	})
	require.NoError(t, err)
	_, err = st.Put(t.Context(), &skep.PutRequest{Scope: alone.Scope(), Blocks: q.Blocks[:60]}) // a gets some of them
	require.NoError(t, err)
	skepRun(t, "cluster", "set", "a", "--state", "out", "--server", n.addr("b"), "--json").OK(t)
	known(4, "a", "b", "c")
	r = repair(command.Faults)
	require.Zero(t, r["missing"])
	require.Greater(t, r["staying"], 0.0, "keys that stand alone are not moved, and a may not be taken for empty")
	require.Equal(t, "out", r["nodes"].([]any)[0].(map[string]any)["state"])
	n.kill("a")
	require.Equal(t, blocks, found())
	r = repair(command.Faults)
	require.NotEmpty(t, r["nodes"].([]any)[0].(map[string]any)["error"], "a does not answer")
}
