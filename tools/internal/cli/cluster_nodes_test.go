package cli_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/replication"
	"github.com/skepkv/skep/replication/clustermap"
	"github.com/skepkv/skep/replication/consensus"
	"github.com/skepkv/skep/store/storetest"
	"github.com/skepkv/skep/tools/internal/command"
	"github.com/skepkv/skep/tools/internal/freeport"
	"github.com/skepkv/skep/tools/internal/self"
	"github.com/skepkv/skep/wire"
	"github.com/skepkv/skep/wire/auth"
)

// nodes are servers of a cluster, each a process of its own.
type nodes struct {
	t      *testing.T
	root   string // short: sockets lie there
	config string
	procs  map[string]*exec.Cmd
}

func newNodes(t *testing.T) *nodes {
	root, err := os.MkdirTemp("", "skep")
	require.NoError(t, err)
	n := &nodes{t: t, root: root, config: filepath.Join(root, "skep.yaml"), procs: map[string]*exec.Cmd{}}
	t.Cleanup(func() {
		for name := range n.procs {
			n.kill(name)
		}
		require.NoError(t, os.RemoveAll(root))
	})
	settings := "store: {io_bytes: 128MiB, block_bytes: 64KiB}\nlimits: {memory_bytes: 64MiB}\n"
	require.NoError(t, os.WriteFile(n.config, []byte(settings), 0o600))
	return n
}

func (n *nodes) dir(name string) string  { return filepath.Join(n.root, name) }
func (n *nodes) addr(name string) string { return "unix:" + filepath.Join(n.root, name+".s") }

// place are the flags of a new node.
func (n *nodes) place(name string) []string {
	return []string{"--dir", n.dir(name), "--addr", n.addr(name), "--peer", freeport.Addr(n.t)}
}

// add adds a node by way of another one.
func (n *nodes) add(name, by string) map[string]any {
	n.t.Helper()
	return skepRun(n.t, append([]string{"cluster", "add", name, "--server", n.addr(by), "--json"}, n.place(name)...)...).OK(n.t)
}

// serve starts a node's process, and waits until it answers.
func (n *nodes) serve(name string) {
	n.t.Helper()
	cmd, err := self.Command(context.Background(), nil, "serve", "--config", n.config, "--dir", n.dir(name),
		"--file-devices", "1", "--capacity", "256MiB", "--dram", "32MiB", "--resp", "none", "--http", "none",
		"--log", "error")
	require.NoError(n.t, err)
	cmd.Stderr = os.Stderr
	require.NoError(n.t, cmd.Start())
	n.procs[name] = cmd
	storetest.Eventually(n.t, name+" answers", func() bool { return n.ask(name) != nil })
}

// kill ends a node's process as a power cut would.
func (n *nodes) kill(name string) {
	_ = n.procs[name].Process.Kill()
	_ = n.procs[name].Wait()
	delete(n.procs, name)
}

// ask is how the cluster stands, as a node has it; nil where it does not answer.
func (n *nodes) ask(name string) *consensus.Status {
	ctx, cancel := context.WithTimeout(n.t.Context(), 10*time.Second)
	defer cancel()
	c, err := wire.Dial(ctx, wire.Options{Addr: n.addr(name), Strict: true})
	if err != nil {
		return nil
	}
	defer c.Close()
	b, err := c.Admin(ctx, "cluster", json.RawMessage("{}"))
	var s consensus.Status
	if err != nil || json.Unmarshal(b, &s) != nil {
		return nil
	}
	return &s
}

// mapOf is the map that a node tells clients.
func (n *nodes) mapOf(name string) *clustermap.Map {
	c, err := wire.Dial(n.t.Context(), wire.Options{Addr: n.addr(name), Strict: true})
	require.NoError(n.t, err)
	defer c.Close()
	b, err := c.ClusterMap(n.t.Context())
	require.NoError(n.t, err)
	m, err := clustermap.Parse(b)
	require.NoError(n.t, err)
	return m
}

// serves says whether a node serves: it knows that it missed nothing.
func (n *nodes) serves(name string) bool {
	c, err := wire.Dial(n.t.Context(), wire.Options{Addr: n.addr(name), Strict: true})
	if err != nil {
		return false
	}
	defer c.Close()
	_, err = c.Namespaces(n.t.Context())
	return err == nil
}

// whole waits until so many nodes vote, serve and have the map of an epoch, and gives the leader's name.
func (n *nodes) whole(names []string, epoch uint32) (leader string) {
	n.t.Helper()
	storetest.Eventually(n.t, fmt.Sprint("all vote and have epoch ", epoch), func() bool {
		leader = ""
		for _, name := range names {
			s := n.ask(name)
			if s == nil || s.Epoch != epoch || len(s.Nodes) != len(names) || !n.serves(name) {
				return false
			}
			for _, x := range s.Nodes {
				if !x.Voter || !x.Reached || x.Behind > 0 {
					return false
				}
				if x.ID == s.Leader {
					leader = x.Name
				}
			}
		}
		return leader != ""
	})
	return leader
}

// Three servers agree on a map. Their leader is killed: another one leads within seconds, the map is changed, and what
// the others have is read all the while. All three are killed: they come back with the same map.
//
// SKEP_TEST_KILLS says how often the leader is killed; how long it took is logged.
func TestThreeServersAgreeOnAMap(t *testing.T) {
	t.Parallel()
	kills := 1
	if s := os.Getenv("SKEP_TEST_KILLS"); s != "" {
		_, err := fmt.Sscan(s, &kills)
		require.NoError(t, err)
	}
	n := newNodes(t)
	three := []string{"a", "b", "c"}
	skepRun(t, append([]string{"cluster", "init", "--node", "a", "--json"}, n.place("a")...)...).OK(t)
	n.serve("a")
	for i, name := range three[1:] {
		r := n.add(name, "a")
		require.EqualValues(t, i+2, r["id"])
		n.serve(name)
	}
	epoch := uint32(3)
	leader := n.whole(three, epoch)

	ctx := t.Context()
	st, err := replication.Dial(ctx, wire.Options{Addr: n.addr("b")})
	require.NoError(t, err)
	defer func() { require.NoError(t, st.Close()) }()
	ns, err := skep.OpenNamespace(ctx, st, skep.NamespaceSpec{
		Tenant: auth.DefaultTenant, Name: "n", Shape: skep.Shape{Kind: skep.Opaque, BlockTokens: 1},
	})
	require.NoError(t, err)
	const blocks = 60
	value := func(i int) []byte { return fmt.Appendf(nil, "value %d", i) }
	for i := range blocks {
		res, err := ns.Put(ctx, []skep.Key{skep.KeyOf([]byte{byte(i)})}, 0, value(i))
		require.NoError(t, err)
		require.Equal(t, skep.Committed, res[0].Outcome)
	}
	require.NoError(t, st.Flush(ctx))
	// found reads all blocks, compares what is there, and counts it.
	found := func() (there int) {
		for i := range blocks {
			key := []skep.Key{skep.KeyOf([]byte{byte(i)})}
			var got []byte
			n, err := ns.Load(ctx, skep.Chain{Keys: key}, func(c *skep.Chunk) error {
				got = c.AppendTo(got)
				return nil
			})
			require.NoError(t, err)
			if n == 1 {
				require.Equal(t, string(value(i)), string(got), "block %d", i)
			}
			there += n
		}
		return there
	}
	require.Equal(t, blocks, found())

	var led, changed []time.Duration
	for round := range kills {
		other := three[(slices.Index(three, leader)+1)%3]
		killed := time.Now()
		n.kill(leader)
		there := found()
		require.Positive(t, there)
		require.Less(t, there, blocks)
		storetest.Eventually(t, "another one leads", func() bool {
			s := n.ask(other)
			return s != nil && s.Leader != 0 && s.Nodes[slices.Index(three, leader)].ID != s.Leader
		})
		led = append(led, time.Since(killed))
		extra := fmt.Sprint("x", round)
		n.add(extra, other)
		changed = append(changed, time.Since(killed))
		skepRun(t, "cluster", "remove", extra, "--yes", "--server", n.addr(other), "--json").OK(t)
		epoch += 2
		lost := leader
		n.serve(lost)
		leader = n.whole(three, epoch)
		storetest.Eventually(t, "all is found again", func() bool { return found() == blocks })
	}
	skepRun(t, "cluster", "set", leader, "--state", "out", "--weight", "3", "--server", n.addr(leader), "--json").OK(t)
	for _, n := range n.mapOf(leader).Nodes {
		require.Equal(t, n.Name == leader, n.State == clustermap.Out)
		require.Equal(t, n.Name == leader, n.Weight == 3)
	}
	storetest.Eventually(t, "what the others have is found, when they have the map", func() bool {
		there := found()
		return there > 0 && there < blocks
	})
	for _, bad := range [][]string{{}, {"--state", "away"}, {"--weight", "0"}, {"--resp", "0.0.0.0:1"}, {"--addr", "x"}} {
		o := skepRun(t, append([]string{"cluster", "set", leader, "--server", n.addr(leader)}, bad...)...)
		require.Equal(t, 2, o.Code, "%v: %s", bad, o.Stderr)
	}
	skepRun(t, "cluster", "set", leader, "--state", "up", "--weight", "1", "--server", n.addr(leader), "--json").OK(t)
	epoch += 4
	n.whole(three, epoch)
	storetest.Eventually(t, "all is found again", func() bool { return found() == blocks })

	slices.Sort(led)
	slices.Sort(changed)
	t.Logf("after the kill of a leader: another one leads after %v, and the map is changed after %v", led, changed)

	was := n.mapOf("a")
	require.Equal(t, epoch, was.Epoch)
	for _, name := range three {
		n.kill(name)
	}
	n.serve("b")
	require.Equal(t, was, n.mapOf("b"), "it knows the map by itself")
	n.serve("a")
	n.serve("c")
	n.whole(three, epoch)
	for _, name := range three {
		require.Equal(t, was, n.mapOf(name))
	}
	storetest.Eventually(t, "all is found again", func() bool { return found() == blocks })

	// One of them is gone for good: it is taken out, and the two that are left change the map.
	n.kill("b")
	asked := skepRun(t, "cluster", "remove", "b", "--server", n.addr("c"))
	require.Equal(t, command.Input, asked.Code, asked.Stderr)
	require.Contains(t, asked.Stderr, "remove node b with its blocks, of which it does not say how many there are?")
	require.Equal(t, epoch, n.mapOf("c").Epoch)
	r := skepRun(t, "cluster", "remove", "b", "--server", n.addr("c"), "--yes", "--json").OK(t)
	require.Equal(t, false, r["votes"], "nobody needs it")
	n.add("d", "c")
	storetest.Eventually(t, "the other one hears of it", func() bool { return n.mapOf("a").Epoch == epoch+2 })
}
