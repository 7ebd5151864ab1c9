package cli_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/replication"
	"github.com/skepkv/skep/replication/clustermap"
	"github.com/skepkv/skep/replication/consensus"
	"github.com/skepkv/skep/store/storetest"
	"github.com/skepkv/skep/tools/internal/command"
	"github.com/skepkv/skep/tools/internal/command/commandtest"
	"github.com/skepkv/skep/wire"
	"github.com/skepkv/skep/wire/auth"
)

// One of three servers is killed, and an operator says that it is down: keys are deleted without it. Started again, it
// has none of them, and is up by itself. One that runs is not said to be down.
func TestANodeThatWasDownHasNothingThatWasDeleted(t *testing.T) {
	t.Parallel()
	n := newNodes(t)
	three := n.three()
	n.whole(three, 3)
	ctx := t.Context()
	ns, keys := n.sixty(skep.NamespaceSpec{Tenant: auth.DefaultTenant, Name: "n",
		Shape: skep.Shape{Kind: skep.Opaque, BlockTokens: 1}})
	has := func(name string) (there int) {
		c, err := wire.Dial(ctx, wire.Options{Addr: n.addr(name), Strict: true})
		require.NoError(t, err)
		defer c.Close()
		list, err := c.Namespaces(ctx)
		require.NoError(t, err)
		for _, info := range list {
			blocks, err := c.CountBlocks(ctx, info.ID)
			require.NoError(t, err)
			there += int(blocks)
		}
		return there
	}
	require.Positive(t, has("b"))
	set := func(state string) commandtest.Output {
		return skepRun(t, "cluster", "set", "b", "--state", state, "--server", n.addr("a"), "--json")
	}
	require.NotZero(t, set("down").Code, "it runs")

	n.kill("b")
	_, err := ns.Delete(ctx, keys...)
	require.ErrorIs(t, err, skep.Unavailable, "nobody has said that it is down")
	set("down").OK(t)
	require.NotZero(t, set("up").Code, "it is up when it has been started")
	_, err = ns.Delete(ctx, keys...)
	require.NoError(t, err)

	n.serve("b")
	storetest.Eventually(t, "b is up by itself", func() bool {
		s := n.ask("a")
		return s != nil && len(n.mapOf("a").Down()) == 0 && n.serves("b")
	})
	b, err := n.mapOf("a").Node("b")
	require.NoError(t, err)
	require.Equal(t, clustermap.Up, b.State)
	require.Zero(t, has("b"))
	for i := range keys {
		found, err := ns.Load(ctx, skep.Chain{Keys: keys[i : i+1]}, func(*skep.Chunk) error { return nil })
		require.NoError(t, err)
		require.Zero(t, found, "key %d is back", i)
	}
}

// Who asks one node hears which other does not answer: skep status says so, and what could not be put or got names it.
func TestANodeThatIsGoneIsNamed(t *testing.T) {
	t.Parallel()
	n := newNodes(t)
	n.whole(n.three(), 3)
	at := func(args ...string) commandtest.Output { return skepRun(t, append(args, "--server", n.addr("a"))...) }
	require.Zero(t, at("status").Code)
	for i := range 20 {
		require.Zero(t, at("put", fmt.Sprint("k", i), "--text", "v").Code)
	}
	n.kill("c")
	status := at("status")
	assert.Equal(t, command.Faults, status.Code)
	assert.Regexp(t, `NOT WELL +node c does not answer at 127.0.0.1:`, status.Stdout)
	assert.Contains(t, status.Stdout, "1, all well", "its drives are")
	for _, what := range [][]string{{"put", "--text", "v"}, {"get"}, {"del"}} {
		good, bad := 0, 0
		for i := range 20 {
			o := at(append([]string{what[0], fmt.Sprint("k", i)}, what[1:]...)...)
			if o.Code == 0 {
				good++
				continue
			}
			bad++
			if what[0] != "get" { // which is a miss
				assert.Contains(t, o.Stderr, "node is c, must be one that answers", "%v", what)
			}
			assert.Contains(t, o.Stderr, "skep cluster status", "%v", what)
		}
		assert.Positive(t, good, "%v", what)
		assert.Positive(t, bad, "%v", what)
	}
}

// three makes a cluster of servers a, b and c.
func (n *nodes) three() []string {
	n.t.Helper()
	three := []string{"a", "b", "c"}
	skepRun(n.t, append([]string{"cluster", "init", "--node", "a", "--json"}, n.place("a")...)...).OK(n.t)
	n.serve("a")
	for _, name := range three[1:] {
		n.add(name, "a")
		n.serve(name)
	}
	return three
}

// sixty puts 60 values into a namespace of the cluster.
func (n *nodes) sixty(spec skep.NamespaceSpec) (*skep.Namespace, []skep.Key) {
	t, ctx := n.t, n.t.Context()
	t.Helper()
	st, err := replication.Dial(ctx, wire.Options{Addr: n.addr("a")})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, st.Close()) })
	ns, err := skep.OpenNamespace(ctx, st, spec)
	require.NoError(t, err)
	var keys []skep.Key
	for i := range 60 {
		keys = append(keys, skep.KeyOf([]byte{byte(i)}))
		res, err := ns.Put(ctx, keys[i:i+1], 0, []byte("value"))
		require.NoError(t, err)
		require.Equal(t, skep.Committed, res[0].Outcome)
	}
	require.NoError(t, st.Flush(ctx))
	return ns, keys
}

// Where the nodes agree on a silence, one that was killed is down by itself: deletions go on without it. With another
// one lost as well, the last one serves nothing, for it may have missed deletions; all serve again when they are back.
func TestANodeThatIsSilentIsDown(t *testing.T) {
	t.Parallel()
	n := newNodes(t)
	three := n.three()
	n.whole(three, 3)
	for _, bad := range [][]string{{"--down-after", "9s"}, {"--down-after", "25h"}, {"--down-after", "soon"},
		{"b", "--down-after", "10s"}, {"--weight", "2"}, {"b"}, {}, {"b", "--unencrypted", "t"},
		{"--unencrypted", "t", "--down-after", "10s"}} {
		args := append([]string{"cluster", "set", "--server", n.addr("a")}, bad...)
		require.Equal(t, 2, skepRun(t, args...).Code, "%v", bad)
	}
	skepRun(t, "cluster", "set", "--down-after", "10s", "--server", n.addr("b"), "--json").OK(t)
	ctx := t.Context()
	ns, keys := n.sixty(skep.NamespaceSpec{Tenant: auth.DefaultTenant, Name: "n",
		Shape: skep.Shape{Kind: skep.Opaque, BlockTokens: 1}})
	storetest.Eventually(t, "all keep to the lease", func() bool {
		s := n.ask("a")
		return s != nil && !slices.ContainsFunc(s.Nodes, func(x consensus.NodeStatus) bool { return x.Lease != 10 })
	})
	require.EqualValues(t, 10, n.ask("a").DownAfter)

	n.kill("b")
	storetest.Eventually(t, "b is down by itself, and keys are deleted without it", func() bool {
		_, err := ns.Delete(ctx, keys...)
		return err == nil
	})
	require.Len(t, n.mapOf("a").Down(), 1)

	n.kill("c")
	storetest.Eventually(t, "a serves no more", func() bool { return !n.serves("a") })
	n.serve("b")
	n.serve("c")
	storetest.Eventually(t, "all serve", func() bool {
		return len(n.mapOf("a").Down()) == 0 && n.serves("a") && n.serves("b") && n.serves("c")
	})
	for i := range keys {
		found, err := ns.Load(ctx, skep.Chain{Keys: keys[i : i+1]}, func(*skep.Chunk) error { return nil })
		require.NoError(t, err)
		require.Zero(t, found, "key %d is back", i)
	}
}
