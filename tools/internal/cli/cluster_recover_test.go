package cli_test

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/replication"
	"github.com/skepkv/skep/replication/clustermap"
	"github.com/skepkv/skep/store/storetest"
	"github.com/skepkv/skep/wire"
	"github.com/skepkv/skep/wire/auth"
)

// Two of three servers are lost. The third one goes on without them, and the map is changed again. A lost one comes
// back: it changes nothing, and says what to do.
func TestAClusterGoesOnWithoutMostOfItsNodes(t *testing.T) {
	t.Parallel()
	n := newNodes(t)
	three := []string{"a", "b", "c"}
	skepRun(t, append([]string{"cluster", "init", "--node", "a", "--json"}, n.place("a")...)...).OK(t)
	n.serve("a")
	for _, name := range three[1:] {
		n.add(name, "a")
		n.serve(name)
	}
	n.whole(three, 3)
	recovers := func(name string, args ...string) []string {
		return append([]string{"cluster", "recover", "--dir", n.dir(name), "--json"}, args...)
	}
	lost := []string{"--lost", "b,c", "--yes"}
	o := skepRun(t, recovers("a", lost...)...)
	require.Equal(t, 4, o.Code, "it runs: %s", o.Stderr)
	require.Contains(t, o.Stderr, "locked")
	n.kill("a")
	n.kill("c")
	o = skepRun(t, recovers("a", lost...)...)
	require.Equal(t, 2, o.Code, "b answers: %s", o.Stderr)
	require.Contains(t, o.Stderr, "lost node is b")
	n.kill("b")

	s := skepRun(t, "cluster", "status", "--dir", n.dir("a"), "--json").OK(t)
	require.EqualValues(t, 3, s["epoch"])
	require.Len(t, s["nodes"], 3)
	for _, bad := range [][]string{{}, {"--lost", "a,b"}, {"--lost", "b"}, {"--lost", "b,c", "--from", "x"}} {
		o := skepRun(t, recovers("a", append(bad, "--yes")...)...)
		require.Equal(t, 2, o.Code, "%v: %s", bad, o.Stderr)
	}
	require.Equal(t, 3, skepRun(t, recovers("a", "--lost", "b,x", "--yes")...).Code, "the map has no x")
	require.Equal(t, 3, skepRun(t, recovers("none", lost...)...).Code, "nobody's directory")
	would := skepRun(t, recovers("a", "--lost", "b,c", "--dry-run")...).OK(t)
	o = skepRun(t, recovers("a", "--lost", "b,c")...)
	require.Equal(t, 2, o.Code, "nobody says yes: %s", o.Stderr)
	r := skepRun(t, recovers("a", lost...)...).OK(t)
	require.Equal(t, false, r["dry_run"])
	would["dry_run"] = false
	require.Equal(t, would, r)
	require.Equal(t, []any{"a"}, r["nodes"])

	n.serve("a")
	epoch := uint32(3 + clustermap.RecoveryEpochs)
	n.whole([]string{"a"}, epoch)
	ask := func(args ...string) {
		t.Helper()
		skepRun(t, append(append([]string{"cluster"}, args...), "--server", n.addr("a"), "--json")...).OK(t)
	}
	ask("set", "a", "--weight", "2")
	require.EqualValues(t, 4, n.add("d", "a")["id"], "a number is never another node's")
	n.serve("d")
	follows := func(name string, epoch uint32) {
		t.Helper()
		storetest.Eventually(t, name+" follows", func() bool { return n.serves(name) && n.mapOf(name).Epoch == epoch })
	}
	follows("d", epoch+2)
	ask("remove", "d", "--yes")
	was := n.mapOf("a")

	n.serve("b")
	n.serve("c")
	for _, name := range []string{"b", "c"} {
		storetest.Eventually(t, name+" says what to do", func() bool {
			s := n.ask(name)
			return s != nil && strings.Contains(s.Error, "skep cluster add")
		})
		require.False(t, n.serves(name))
		o = skepRun(t, "cluster", "remove", "a", "--yes", "--server", n.addr(name))
		require.NotZero(t, o.Code)
		require.Contains(t, o.Stderr, "skep cluster add")
	}
	require.Equal(t, was, n.mapOf("a"))
	n.kill("b")
	n.kill("c")
	o = skepRun(t, recovers("b", "--from", n.addr("a"))...)
	require.Equal(t, 3, o.Code, "it was taken out: %s", o.Stderr)
	require.Contains(t, o.Stderr, "skep cluster add")
	require.NoError(t, os.RemoveAll(n.dir("b")))
	n.add("b", "a")
	n.serve("b")
	follows("b", epoch+4)
}

// Of four servers two that vote are lost, and one that is left goes on. What is deleted meanwhile is remembered for the
// other one that is left: it comes to the recovered cluster with its store, and has lost that.
func TestAnotherSurvivorComesWithItsStore(t *testing.T) {
	t.Parallel()
	n := newNodes(t)
	skepRun(t, append([]string{"cluster", "init", "--node", "a", "--json"}, n.place("a")...)...).OK(t)
	n.serve("a")
	for _, name := range []string{"b", "c"} {
		n.add(name, "a")
		n.serve(name)
	}
	n.whole([]string{"a", "b", "c"}, 3)
	n.add("d", "a")
	n.serve("d")
	storetest.Eventually(t, "d serves", func() bool { return n.serves("d") && n.mapOf("d").Epoch == 4 })
	ctx := t.Context()
	spaces := func() (st *replication.Store, kept, gone *skep.Namespace) {
		t.Helper()
		st, err := replication.Dial(ctx, wire.Options{Addr: n.addr("a")})
		require.NoError(t, err)
		t.Cleanup(func() { _ = st.Close() })
		open := func(name string) *skep.Namespace {
			ns, err := skep.OpenNamespace(ctx, st, skep.NamespaceSpec{Tenant: auth.DefaultTenant, Name: name,
				Shape: skep.Shape{Kind: skep.Opaque, BlockTokens: 1}, Chained: true})
			require.NoError(t, err)
			return ns
		}
		return st, open("kept"), open("gone")
	}
	has := func(space string) (blocks int64) {
		c, err := wire.Dial(ctx, wire.Options{Addr: n.addr("d"), Strict: true})
		require.NoError(t, err)
		defer c.Close()
		list, err := c.Namespaces(ctx)
		require.NoError(t, err)
		for _, info := range list {
			if info.Name == space {
				blocks, err = c.CountBlocks(ctx, info.ID)
				require.NoError(t, err)
			}
		}
		return blocks
	}
	var keys []skep.Key
	st, kept, gone := spaces()
	for i := range 40 {
		keys = append(keys, skep.KeyOf([]byte{byte(i)}))
		for _, ns := range []*skep.Namespace{kept, gone} {
			res, err := ns.Put(ctx, keys[i:], 0, []byte("value"))
			require.NoError(t, err)
			require.Equal(t, skep.Committed, res[0].Outcome)
		}
	}
	require.NoError(t, st.Flush(ctx))
	before := has("kept")
	require.Positive(t, before)
	require.Positive(t, has("gone"))

	for _, name := range []string{"a", "b", "c", "d"} {
		n.kill(name)
	}
	skepRun(t, "cluster", "recover", "--dir", n.dir("a"), "--lost", "b,c", "--yes", "--json").OK(t)
	n.serve("a")
	epoch := uint32(4 + clustermap.RecoveryEpochs)
	storetest.Eventually(t, "a serves", func() bool { return n.serves("a") && n.mapOf("a").Epoch == epoch })
	_, _, gone = spaces()
	_, err := gone.Delete(ctx, keys...)
	require.ErrorIs(t, err, skep.Unavailable, "d is to be asked, too")
	skepRun(t, "cluster", "set", "d", "--state", "down", "--server", n.addr("a"), "--json").OK(t)
	_, err = gone.Delete(ctx, keys...)
	require.NoError(t, err)

	n.serve("d")
	storetest.Eventually(t, "d says what to do", func() bool {
		s := n.ask("d")
		return s != nil && strings.Contains(s.Error, "--from "+n.addr("a"))
	})
	require.False(t, n.serves("d"))
	n.kill("d")
	come := []string{"cluster", "recover", "--dir", n.dir("d"), "--from", n.addr("a"), "--json"}
	would := skepRun(t, append(come, "--dry-run")...).OK(t)
	r := skepRun(t, come...).OK(t)
	would["dry_run"] = false
	require.Equal(t, would, r)
	require.EqualValues(t, 4, r["from"])
	require.Equal(t, []any{"a", "d"}, r["nodes"])
	skepRun(t, come...).OK(t)
	n.serve("d")
	storetest.Eventually(t, "d is up by itself", func() bool {
		return len(n.mapOf("a").Down()) == 0 && n.serves("d")
	})
	require.Zero(t, has("gone"))
	require.GreaterOrEqual(t, has("kept"), before)
	skepRun(t, "cluster", "set", "d", "--weight", "2", "--server", n.addr("d"), "--json").OK(t)
}
