package enginesbench

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/replication"
	"github.com/skepkv/skep/replication/clustermap"
	"github.com/skepkv/skep/replication/consensus"
	"github.com/skepkv/skep/tools/internal/bench"
	"github.com/skepkv/skep/tools/internal/command"
	"github.com/skepkv/skep/tools/internal/freeport"
	"github.com/skepkv/skep/tools/internal/member"
	"github.com/skepkv/skep/tools/internal/self"
	"github.com/skepkv/skep/wire"
)

// copiesOf are the ways that blocks are kept in a cluster: on so many nodes each.
var copiesOf = []int{1, 2}

const (
	tenant    = "default"
	patience  = time.Minute // for a cluster to be whole
	lookAgain = 50 * time.Millisecond
)

func (e *runner) methodOfNodes() string {
	how := fmt.Sprintf("%d blocks of %d bytes in batches of %d; %d nodes and the client, processes of this machine, "+
		"over TCP on loopback; ways in turns, every byte compared. each: Python, skep servers that agree on their "+
		"map, each of one file, with a DRAM tier; each key a chain of its own; put waits for drives, put to memory "+
		"does not. go: the same from this process. mooncake: Python, one mooncake_master with its defaults, "+
		"processes that mount a segment each, batch_put_from and batch_get_into with registered memory; a put is to "+
		"the segments' memory",
		e.Blocks, e.BlockBytes, e.Batch, e.Nodes)
	if e.Kill == "" {
		return how + ". Blocks are put, got from drives, read until they are in memory, and got from there"
	}
	return how + fmt.Sprintf(". One process is killed when the blocks are put: a node, or who leads. All blocks are "+
		"got again and again until none fails, for %[1]d s at most, as many new ones are put, and the process is "+
		"started again and has %[1]d s for the blocks to be back", e.Seconds)
}

// goalOfNodes says what is to become of a row of a cluster.
func (e *runner) goalOfNodes(r *Row) {
	switch {
	case r.Way == "each":
		r.Ratio = 0
	case r.Way == "mooncake" && r.Call != "put":
		r.Goal = "ratio at least 1.5"
	}
}

// startNodes starts clusters, with the ways that speak to them.
func (e *runner) startNodes(ctx context.Context, script string) (ways []*way, err error) {
	for _, copies := range copiesOf {
		c, err := e.cluster(ctx, copies)
		if err != nil {
			return nil, err
		}
		inGo, err := c.inGo(ctx)
		if err != nil {
			return nil, err
		}
		ways = append(ways, inGo)
		for _, p := range []struct {
			name, python string
			args         []string
		}{
			{"each", e.Python, []string{strings.Join(c.addrs(), ",")}},
			{"mooncake", cmp.Or(e.MooncakePython, e.Python), []string{strconv.Itoa(e.Nodes), strconv.Itoa(copies)}},
		} {
			client, why, err := e.python(ctx, p.python, script, p.name, p.args...)
			if err != nil {
				return nil, err
			}
			if client == nil {
				e.skip(why)
				continue
			}
			w := &way{name: p.name, copies: copies, lossy: c.lossy(client)}
			w.round = func(context.Context) (round, error) { return client.ask("round") }
			if p.name == "mooncake" {
				w.lossy = client
			}
			ways = append(ways, w)
		}
	}
	return ways, nil
}

// cluster is skep servers that agree on their map.
type cluster struct {
	*runner
	copies int
	nodes  []*node
}

type node struct {
	name, dir, addr, peer string
	cmd                   *exec.Cmd
	said                  *bench.Tail
}

// cluster starts one, and waits until it is whole.
func (e *runner) cluster(ctx context.Context, copies int) (*cluster, error) {
	c := &cluster{runner: e, copies: copies}
	for i := range e.Nodes {
		n := &node{name: string(rune('a' + i)), said: &bench.Tail{}}
		n.dir = filepath.Join(e.dir, fmt.Sprintf("%s-%d", n.name, copies))
		for _, addr := range []*string{&n.addr, &n.peer} {
			a, giveBack, err := freeport.Take()
			if err != nil {
				return nil, err
			}
			*addr = a
			e.ends = append(e.ends, func() error { giveBack(); return nil })
		}
		if i == 0 {
			if err := c.found(ctx, n); err != nil {
				return nil, err
			}
		}
		c.nodes = append(c.nodes, n)
		e.ends = append(e.ends, n.kill)
		if err := c.serve(ctx, n); err != nil {
			return nil, err
		}
	}
	if _, err := c.whole(ctx); err != nil {
		return nil, err
	}
	st, err := wire.Dial(ctx, c.to(0))
	if err != nil {
		return nil, err
	}
	defer st.Close()
	stats, err := st.Stats(ctx)
	e.res.About = bench.AboutStats(stats)
	return c, err
}

// found makes a cluster of the first node, which takes the others in.
func (c *cluster) found(ctx context.Context, n *node) error {
	m := &clustermap.Map{Epoch: 1, Group: clustermap.DefaultGroup,
		Nodes: []clustermap.Node{{ID: 1, Name: n.name, Addr: n.addr, Peer: n.peer, Weight: 1}}}
	if c.copies > 1 {
		m.Replicas = c.copies
	}
	if _, err := rand.Read(m.Seed[:]); err != nil {
		return err
	}
	_, err := member.Found(ctx, n.dir, m, c.Log)
	return err
}

// to is how a node is reached.
func (c *cluster) to(i int) wire.Options {
	return wire.Options{Addr: c.nodes[i].addr, Strict: true, Name: "bench"}
}

func (c *cluster) addrs() (out []string) {
	for _, n := range c.nodes {
		out = append(out, n.addr)
	}
	return out
}

// serve starts a node's process, whose files have room for eight times its share of the blocks, and whose DRAM tier for
// four times.
func (c *cluster) serve(ctx context.Context, n *node) error {
	share := int64(c.Blocks) * c.BlockBytes * int64(c.copies) / int64(c.Nodes) &^ 4095
	args := []string{"serve", "--json", "--log", "error", "--dir", n.dir, "--file-devices", "1",
		"--capacity", strconv.FormatInt(1<<30+8*share, 10), "--dram", strconv.FormatInt(32<<20+4*share, 10),
		"--unix", "none", "--resp", "none", "--http", "none"}
	if n != c.nodes[0] {
		args = append(args, "--node", n.name, "--join", c.nodes[0].addr, "--join-addr", n.addr, "--join-peer", n.peer)
	}
	cmd, err := self.Command(ctx, c.Self, args...)
	if err != nil {
		return err
	}
	cmd.Env = append(cmd.Env, "SKEP_STORE_BACKEND="+c.Backend)
	cmd.Stderr = n.said
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	n.cmd = cmd
	var ready struct {
		Listeners []json.RawMessage   `json:"listeners"`
		Error     command.FailureBody `json:"error"` // of one that did not start
	}
	if err := json.NewDecoder(out).Decode(&ready); err != nil || len(ready.Listeners) == 0 {
		err = errors.Join(err, errors.New(n.said.String()))
		return fmt.Errorf("node %s did not start: %s: %w", n.name, ready.Error.Message, err)
	}
	return nil
}

// kill ends a node's process as a power cut would.
func (n *node) kill() error {
	if n.cmd != nil {
		_ = n.cmd.Process.Kill()
		_ = n.cmd.Wait()
		n.cmd = nil
	}
	return nil
}

// whole waits until all nodes vote and serve by the same map, and gives the one that leads.
func (c *cluster) whole(ctx context.Context) (leader *node, err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		leader, err = c.look(ctx)
		if err == nil {
			return leader, nil
		}
		select {
		case <-ctx.Done():
			var said []string
			for _, n := range c.nodes {
				said = append(said, n.name+": "+n.said.String())
			}
			return nil, fmt.Errorf("the cluster is not whole: %w; %s", err, strings.Join(said, "; "))
		case <-time.After(lookAgain):
		}
	}
}

func (c *cluster) look(ctx context.Context) (leader *node, err error) {
	for i, n := range c.nodes {
		s, err := c.ask(ctx, i)
		if err != nil {
			return nil, err
		}
		if len(s.Nodes) != len(c.nodes) {
			return nil, fmt.Errorf("node %s knows of %d nodes", n.name, len(s.Nodes))
		}
		for at, x := range s.Nodes {
			if !x.Voter || !x.Reached || x.Behind > 0 || x.State != "up" {
				return nil, fmt.Errorf("node %s has node %s as %+v", n.name, x.Name, x)
			}
			if x.ID == s.Leader {
				leader = c.nodes[at]
			}
		}
	}
	if leader == nil {
		err = errors.New("nobody leads")
	}
	return leader, err
}

// ask asks a node how the cluster stands, and whether it serves.
func (c *cluster) ask(ctx context.Context, i int) (s consensus.Status, err error) {
	st, err := wire.Dial(ctx, c.to(i))
	if err != nil {
		return s, err
	}
	defer st.Close()
	if _, err := st.Namespaces(ctx); err != nil {
		return s, err
	}
	b, err := st.Admin(ctx, "cluster", json.RawMessage("{}"))
	if err != nil {
		return s, err
	}
	return s, json.Unmarshal(b, &s)
}

// inGo is the way of a client in this process.
func (c *cluster) inGo(ctx context.Context) (*way, error) {
	o := c.to(0)
	o.Addr = strings.Join(c.addrs(), ",")
	st, err := replication.Dial(ctx, o)
	if err != nil {
		return nil, err
	}
	c.ends = append(c.ends, st.Close)
	ns, err := st.OpenNamespace(ctx, skep.NamespaceSpec{Tenant: tenant, Name: "bench/go", Chained: true,
		Shape: skep.Shape{BlockTokens: 1}})
	if err != nil {
		return nil, err
	}
	b := c.runner.inGo(st, ns, ns)
	b.alone = true
	return &way{name: "go", copies: c.copies, round: b.round, lossy: c.lossy(b)}, nil
}
