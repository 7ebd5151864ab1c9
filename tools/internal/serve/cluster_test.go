package serve

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/replication"
	"github.com/skepkv/skep/wire"
	"github.com/skepkv/skep/wire/auth"
)

const mapText = `
seed: 6c0f3a5e9b1d4827a3c5e7f90b2d4861
nodes:
  - {id: 1, name: a, addr: "127.0.0.1:7431"}
  - {id: 2, name: b, addr: "unix:/run/b.sock"}
`

func TestANodeListensWhereTheMapSays(t *testing.T) {
	t.Parallel()
	file := write(t, "map.yaml", mapText)
	load := func(flags map[string]string) (*Config, error) {
		flags["dir"] = "/d"
		return Load("", nil, flags)
	}
	c, err := load(map[string]string{"cluster": file, "node": "a"})
	require.NoError(t, err)
	assert.Equal(t, "127.0.0.1:7431", c.Listen)
	c, err = load(map[string]string{"cluster": file, "node": "a", "listen": "127.0.0.1:9"})
	require.NoError(t, err)
	assert.Equal(t, "127.0.0.1:9", c.Listen, "what it was told")
	c, err = load(map[string]string{"cluster": file, "node": "b"})
	require.NoError(t, err)
	assert.Equal(t, []string{None, "/run/b.sock"}, []string{c.Listen, c.Unix})
	for what, flags := range map[string]map[string]string{
		"node":                  {"cluster": file},
		"cluster":               {"node": "a"},
		"no such file":          {"cluster": file + "x", "node": "a"},
		"name of a node":        {"cluster": file, "node": "c"},
		"YAML or JSON of a map": {"cluster": write(t, "bad.yaml", "nodes: {"), "node": "a"},
	} {
		_, err := load(flags)
		require.ErrorIs(t, err, skep.Invalid, what)
		require.ErrorContains(t, err, what)
	}
}

// A server that is a node tells clients the map, which by its address alone are a Store of all nodes; one that is none
// says so.
func TestAClientNeedsTheAddressOfOneNode(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp("", "skep")
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	text := "seed: 6c0f3a5e9b1d4827a3c5e7f90b2d4861\ngroup: 2\nnodes:\n"
	for i, name := range []string{"a", "b", "c"} {
		text += fmt.Sprintf("  - {id: %d, name: %s, addr: %q}\n", i+1, name, "unix:"+filepath.Join(dir, name))
	}
	file := write(t, "map.yaml", text)
	for _, name := range []string{"a", "b"} { // and c is away
		c := local(t)
		c.Cluster, c.Node, c.Listen, c.RESP, c.HTTP, c.Unix = file, name, None, None, None, filepath.Join(dir, name)
		start(t, c, Options{})
	}
	st, err := replication.Dial(t.Context(), wire.Options{Addr: "unix:" + filepath.Join(dir, "a")})
	require.NoError(t, err)
	defer func() { require.NoError(t, st.Close()) }()
	ns, err := skep.OpenNamespace(t.Context(), st, skep.NamespaceSpec{Tenant: auth.DefaultTenant, Name: "n", Shape: skep.Shape{Kind: skep.Opaque, BlockTokens: 1}})
	require.NoError(t, err)
	outcomes := map[skep.Outcome]int{}
	for i := range 60 {
		k := skep.KeyOf([]byte{byte(i)})
		res, err := ns.Put(t.Context(), []skep.Key{k}, 0, []byte("value"))
		require.NoError(t, err)
		outcomes[res[0].Outcome]++
		found, err := ns.Lookup(t.Context(), []skep.Key{k})
		require.NoError(t, err)
		require.Equal(t, res[0].Outcome == skep.Committed, found.Blocks == 1)
	}
	require.Len(t, outcomes, 2, "some are committed, and those of the node that is away are declined: %v", outcomes)

	alone := local(t)
	start(t, alone, Options{})
	_, err = replication.Dial(t.Context(), wire.Options{Addr: "unix:" + alone.Unix})
	require.ErrorIs(t, err, skep.Unsupported)
}
