package serve

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/replication"
	"github.com/skepkv/skep/replication/clustermap"
	"github.com/skepkv/skep/store/storetest"
	"github.com/skepkv/skep/wire"
	"github.com/skepkv/skep/wire/auth"
)

const mapText = `
seed: 6c0f3a5e9b1d4827a3c5e7f90b2d4861
nodes:
  - {id: 1, name: a, addr: "127.0.0.1:7431", resp: "127.0.0.1:7451"}
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
	assert.Equal(t, []string{"127.0.0.1:7431", "127.0.0.1:7451"}, []string{c.Listen, c.RESP})
	c, err = load(map[string]string{"cluster": file, "node": "a", "listen": "127.0.0.1:9"})
	require.NoError(t, err)
	assert.Equal(t, "127.0.0.1:9", c.Listen, "what it was told")
	c, err = load(map[string]string{"cluster": file, "node": "b"})
	require.NoError(t, err)
	assert.Equal(t, []string{None, "/run/b.sock", Default().RESP}, []string{c.Listen, c.Unix, c.RESP})
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
		require.Len(t, res, 1, err)
		require.Equal(t, res[0].Outcome == skep.Declined, err != nil, "%v", err)
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

// A map with a higher epoch is taken while the server runs, and clients are told; one that cannot follow on the last
// is not.
func TestAMapIsReadAgain(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp("", "skep")
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	c := local(t)
	text := func(epoch int, seed string) []byte {
		return fmt.Appendf(nil, "epoch: %d\nseed: %s\nnodes:\n  - {id: 1, name: a, addr: %q}\n", epoch, seed, "unix:"+c.Unix)
	}
	const seed, other = "6c0f3a5e9b1d4827a3c5e7f90b2d4861", "7c0f3a5e9b1d4827a3c5e7f90b2d4861"
	c.Cluster, c.Node, c.Listen, c.RESP, c.HTTP, c.Unix = filepath.Join(dir, "map"), "a", None, None, None, filepath.Join(dir, "a")
	require.NoError(t, os.WriteFile(c.Cluster, text(1, seed), 0o600))
	again := make(chan os.Signal)
	r := start(t, c, Options{Again: again})
	st, err := wire.Dial(t.Context(), wire.Options{Addr: "unix:" + c.Unix})
	require.NoError(t, err)
	defer func() { require.NoError(t, st.Close()) }()
	epoch := func() uint32 {
		b, err := st.ClusterMap(t.Context())
		require.NoError(t, err)
		m, err := clustermap.Parse(b)
		require.NoError(t, err)
		return m.Epoch
	}
	require.EqualValues(t, 1, epoch())
	require.NoError(t, os.WriteFile(c.Cluster, text(3, seed), 0o600))
	again <- os.Interrupt
	storetest.Eventually(t, "the map is read again", func() bool { return epoch() == 3 })
	_, err = st.Lookup(wire.WithEpoch(t.Context(), 1), &skep.LookupRequest{})
	require.ErrorIs(t, err, skep.StaleMap)
	for _, bad := range [][]byte{text(2, seed), text(4, other), []byte("nodes: {")} {
		require.NoError(t, os.WriteFile(c.Cluster, bad, 0o600))
		again <- os.Interrupt
	}
	again <- os.Interrupt // the last one has been seen to
	require.EqualValues(t, 3, epoch())
	require.Contains(t, r.log.String(), "map of the cluster not reloaded")
}

// A node that a newer map has no more goes on by that map, so that clients of the old one hear of it. Its settings,
// which name a node that is not there, are no reason to keep the old one.
func TestANodeTakesTheMapThatLacksIt(t *testing.T) {
	t.Parallel()
	r := newRing(t, 2, func(c *Config) { c.RESP = None })
	require.NoError(t, r.nodes[1].stop())
	c := r.configs[1]
	load := func() (*Config, error) { return c, errors.Join(c.listenAsNode()...) }
	r.nodes[1] = start(t, c, Options{Again: r.again[1], Reload: load})
	st, err := wire.Dial(t.Context(), wire.Options{Addr: "unix:" + c.Unix})
	require.NoError(t, err)
	defer st.Close()
	r.write(2, 1, -1)
	r.reload(2)
	_, err = st.Lookup(wire.WithEpoch(t.Context(), 1), &skep.LookupRequest{})
	require.ErrorIs(t, err, skep.StaleMap)
	text, err := st.ClusterMap(t.Context())
	require.NoError(t, err)
	m, err := clustermap.Parse(text)
	require.NoError(t, err)
	require.EqualValues(t, 2, m.Epoch)
	require.Contains(t, r.nodes[1].log.String(), "configuration not reloaded")
	require.Contains(t, r.nodes[1].log.String(), "this node is not in the map any more")
	require.NotContains(t, r.nodes[0].log.String(), "this node is not in the map any more")
}
