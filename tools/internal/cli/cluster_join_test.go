package cli_test

import (
	"context"
	"os"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep/replication/consensus"
	"github.com/skepkv/skep/store/storetest"
	"github.com/skepkv/skep/tools/internal/freeport"
	"github.com/skepkv/skep/tools/internal/self"
)

// Three servers that are started at once with the same settings, as a StatefulSet has it, are a cluster: the first
// makes it where nobody answers, and takes the others in. Started again they are what they were. One whose directory
// was lost is not taken in under its old name.
func TestServersJoinByThemselves(t *testing.T) {
	t.Parallel()
	n := newNodes(t)
	three := []string{"a", "b", "c"}
	seeds := n.addr("a") + "," + n.addr("b") + "," + n.addr("c")
	peers := map[string]string{}
	for _, name := range three {
		peers[name] = freeport.Addr(t)
	}
	start := func(name string) {
		cmd, err := self.Command(context.Background(), nil, "serve", "--config", n.config, "--dir", n.dir(name),
			"--node", name, "--join", seeds, "--join-addr", n.addr(name), "--join-peer", peers[name],
			"--file-devices", "1", "--capacity", "256MiB", "--dram", "32MiB", "--resp", "none", "--http", "none", "--log", "error")
		require.NoError(t, err)
		cmd.Env = append(cmd.Env, "SKEP_JOIN_FIRST=a", "SKEP_JOIN_WAIT=5s", "SKEP_JOIN_REPLICAS=2",
			"SKEP_JOIN_DOMAIN=rack-"+name)
		cmd.Stderr = os.Stderr
		require.NoError(t, cmd.Start())
		n.procs[name] = cmd
	}
	whole := func() *consensus.Status {
		var s *consensus.Status
		for _, name := range three {
			storetest.Eventually(t, name+" knows all three", func() bool {
				s = n.ask(name)
				bad := func(x consensus.NodeStatus) bool { return !x.Reached || !x.Voter }
				return s != nil && !slices.ContainsFunc(s.Nodes, bad) &&
					len(s.Nodes) == 3 // and all vote: without one of them the others agree
			})
		}
		return s
	}
	for _, name := range []string{"c", "b", "a"} {
		start(name)
	}
	whole()
	m := n.mapOf("b")
	require.Equal(t, 2, m.Replicas)
	for _, name := range three {
		x, err := m.Node(name)
		require.NoError(t, err)
		require.Equal(t, peers[name], x.Peer)
		require.Equal(t, []string{"rack-" + name}, x.Domain)
	}

	n.kill("b")
	start("b")
	require.Equal(t, m.Epoch, whole().Epoch)

	n.kill("c")
	require.NoError(t, os.RemoveAll(n.dir("c")))
	lost := skepRun(t, "serve", "--dir", n.dir("c"), "--node", "c", "--join", seeds, "--join-addr", n.addr("c"),
		"--join-peer", peers["c"], "--resp", "none", "--http", "none", "--log", "error")
	require.NotZero(t, lost.Code)
	require.Contains(t, lost.Stderr, "skep cluster remove c")

	for _, bad := range [][]string{
		{"--join-addr", n.addr("x"), "--join-peer", "127.0.0.1:1"},
		{"--node", "x", "--join-peer", "127.0.0.1:1"},
		{"--node", "x", "--join-addr", n.addr("x")},
		{"--node", "x", "--join-addr", n.addr("x"), "--join-peer", "10.0.0.1:7423"},
	} {
		args := append([]string{"serve", "--dir", n.dir("x"), "--join", seeds, "--resp", "none", "--http", "none"}, bad...)
		require.Equal(t, 2, skepRun(t, args...).Code, "%v", bad)
	}
}
