package remote

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/replication/clustermap"
	"github.com/skepkv/skep/replication/consensus"
	"github.com/skepkv/skep/tools/internal/command"
	"github.com/skepkv/skep/tools/internal/member"
)

// NodeResult is what cluster init and add print: the node that there is now, and where its store is to be.
type NodeResult struct {
	Dir   string `json:"dir"`   // --dir
	ID    uint64 `json:"id"`    // the node's number, which no other node gets
	Name  string `json:"name"`  // its name
	Addr  string `json:"addr"`  // where clients reach it
	Peer  string `json:"peer"`  // where the other nodes reach it
	Epoch uint32 `json:"epoch"` // of the map that has it
	Nodes int    `json:"nodes"` // of that map
}

// NewNodeResult says what a map has of a node.
func NewNodeResult(dir, name string, m *clustermap.Map) (r NodeResult, err error) {
	n, err := m.Node(name)
	if err != nil {
		return r, err
	}
	return NodeResult{dir, n.ID, n.Name, n.Addr, n.Peer, m.Epoch, len(m.Nodes)}, nil
}

// Text prints it for a person, and what comes next.
func (r NodeResult) Text(w io.Writer) {
	command.Table(w, command.Row("node", fmt.Sprintf("%s, number %d, of %d", r.Name, r.ID, r.Nodes)),
		command.Row("clients reach it at", r.Addr),
		command.Row("nodes reach it at", r.Peer), command.Row("map", fmt.Sprintf("epoch %d", r.Epoch)))
	fmt.Fprintf(w, "next: skep serve --dir %s\n", r.Dir)
}

// NodeFlags are the flags that say what a node is.
type NodeFlags struct {
	Dir  string
	Node clustermap.Node
}

// Register makes the flags.
func (f *NodeFlags) Register(fl *pflag.FlagSet) {
	fl.StringVar(&f.Dir, "dir", "",
		"directory of the node's store on this machine; made when it is not there (required)")
	fl.StringVar(&f.Node.Addr, "addr", "",
		"where clients reach the node's binary protocol: HOST:PORT, or unix: and a path (required)")
	fl.StringVar(&f.Node.Peer, "peer", "", "where the other nodes reach it: HOST:PORT (required)")
	fl.StringVar(&f.Node.RESP, "resp", "", "where Redis clients in cluster mode reach it: HOST:PORT; empty: nowhere")
	fl.IntVar(&f.Node.Weight, "weight", 1, "its share of the blocks, beside the others' weights: 1 to 65535")
	fl.StringSliceVar(&f.Node.Domain, "domain", nil, "what may fail with it, the widest first: zone, rack, host")
}

// Check refuses what is missing.
func (f *NodeFlags) Check() error {
	for _, v := range []struct{ flag, value string }{
		{"--dir", f.Dir}, {"--addr", f.Node.Addr}, {"--peer", f.Node.Peer},
	} {
		if v.value == "" {
			return skep.Invalidf("cluster", v.flag, "empty", "given")
		}
	}
	if f.Node.Addr == f.Node.Peer {
		return skep.Invalidf("cluster", "--peer", f.Node.Peer, "another address than --addr, where clients are served")
	}
	if f.Node.Weight < 1 || f.Node.Weight > clustermap.MaxWeight {
		return skep.Invalidf("cluster", "--weight", f.Node.Weight, fmt.Sprintf("1 to %d", clustermap.MaxWeight))
	}
	return nil
}

// ClusterCommands are those that ask a node of a cluster that agrees on its map.
func ClusterCommands(a *command.App) []*cobra.Command {
	return []*cobra.Command{clusterAddCommand(a), clusterSetCommand(a), clusterRemoveCommand(a), clusterRepairCommand(a),
		clusterRecoverCommand(a), clusterStatusCommand(a)}
}

// ask makes a call on the cluster.
func (r *remote) ask(ctx context.Context, name string, in, out any) error {
	b, err := json.Marshal(in)
	if err == nil {
		b, err = r.c.Admin(ctx, name, b)
	}
	if err == nil {
		err = json.Unmarshal(b, out)
	}
	switch skep.KindOf(err) {
	case skep.Unsupported:
		err = &skep.Error{Op: "cluster", Kind: skep.Invalid, Field: "--server", Value: r.target.String(),
			Limit: "a node of a cluster", Err: err}
		err = command.WithNext(err, "that server agrees with nobody on a map: name a node of the cluster with --server; "+
			"skep cluster init makes a cluster")
	case skep.Unavailable, skep.Deadline, skep.Closed:
		err = command.WithNext(err, "most of the nodes that vote do not reach each other, or the answer was lost: "+
			"see skep cluster status, and what of the change is made")
	}
	return err
}

func clusterAddCommand(a *command.App) *cobra.Command {
	f := NodeFlags{}
	cmd := &cobra.Command{
		Use:   "add NAME",
		Short: "add a node to a cluster, on the machine of the new node",
		Long: `Has the nodes of a cluster agree that there is one more, and makes --dir its directory: skep serve --dir D
is that node then. Run it on the new node's machine; --server is any node of the cluster. A --dir that has a store is
refused, and so are its drives under another node: the cluster may have deleted since what a node that is in no map has
stored. Blocks that the map places on the new node now are a miss until the other nodes have sent them, or they are put
again (skep cluster repair).`,
		Args: takes("the new node's NAME", 1),
	}
	f.Register(cmd.Flags())
	cmd = newCommand(a, cmd, func(ctx context.Context, r *remote, args []string) error {
		f.Node.Name = args[0]
		asked, in := false, false
		log, err := r.Logger()
		if err != nil {
			return err
		}
		m, err := member.Join(ctx, f.Dir, args[0], log, func(ctx context.Context) (member.Added, error) {
			added, err := member.Add(ctx, f.Dir, &f.Node, r.ask)
			if skep.KindOf(err) == skep.Conflict {
				err = command.WithNext(err, "choose another name; where a node of that name is gone for good: "+
					"skep cluster remove, then add it in an empty directory")
			}
			in = err == nil
			asked = true
			return added, err
		})
		if skep.KindOf(err) == skep.Conflict && !asked {
			err = command.WithNext(err, "give another --dir, or empty it: a node that an add left unfinished, or that was "+
				"removed, begins anew, for what it has the cluster may have deleted since. A node that is to keep it is not "+
				"removed: have it be down (skep cluster set NAME --state down) and start it again")
		}
		if err != nil && in {
			err = command.WithNext(err, "the map has the node, and its directory was not made: give the same command again")
		}
		if err != nil {
			return err
		}
		res, err := NewNodeResult(f.Dir, args[0], m)
		if err != nil {
			return err
		}
		return r.Print(res, func(w io.Writer) {
			res.Text(w)
			fmt.Fprintln(w, "once it serves, the other nodes send it the blocks that are its own now, each at its "+
				"peers.repair_rate: skep cluster repair waits for it and says what is missing yet")
		})
	})
	return checkedFirst(cmd, f.Check)
}

// checkedFirst has a command look at its flags before it connects.
func checkedFirst(cmd *cobra.Command, check func() error) *cobra.Command {
	run := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := check(); err != nil {
			return err
		}
		return run(cmd, args)
	}
	return cmd
}

// RemovedResult is what cluster remove prints.
type RemovedResult struct {
	Name  string `json:"name"`  // the node that is out
	Epoch uint32 `json:"epoch"` // of the map without it
	Votes bool   `json:"votes"` // it may still be one of the voters that the others need
}

// SetResult is what cluster set prints.
type SetResult struct {
	Node  string `json:"node"`  // its name; empty: something of the cluster was set
	Epoch uint32 `json:"epoch"` // of the map that has it as it was set
}

func clusterSetCommand(a *command.App) *cobra.Command {
	var c member.Change
	var state, downAfter string
	cmd := &cobra.Command{
		Use:   "set [NAME]",
		Short: "change a node's weight, state or addresses, or when one is down by itself",
		Long: `Has the nodes of a cluster agree on another weight, state or address of a node. A node of another weight gets
another share of the blocks, and one that is out gets none and is asked for none: what is placed elsewhere by the new
map is a miss until the node that has it has sent it, or it is put again (skep cluster repair). An address says where
a node is reached: have its server listen there. Without a NAME, --down-after is set of the cluster: a node from which
who leads has not heard for that long is down, and a node that most voters have not heard for half of it serves nothing
until they do. Nor has --unencrypted one: it ends that nodes without a tenant's encryption key decline its blocks, once
no node has a key of it any more.`,
		Example: "  skep cluster set b --weight 2\n  skep cluster set b --state out\n  skep cluster set b --resp 10.0.0.2:7421\n" +
			"  skep cluster set --down-after 1m\n  skep cluster set --unencrypted prod",
		Args: takes("a node's NAME, --down-after or --unencrypted", 0, 1),
	}
	fl := cmd.Flags()
	fl.IntVar(&c.Weight, "weight", 0, "its share of the blocks, beside the others' weights: 1 to 65535")
	fl.StringVar(&state, "state", "", "up; out: nothing is placed on it; or down: it does not run, and nothing waits for it")
	fl.StringVar(&downAfter, "down-after", "", "silence after which a node is down by itself: 10s to 24h, or never")
	fl.StringVar(&c.Unencrypted, "unencrypted", "",
		"a tenant that no node encrypts any more; *: those without a key of their own")
	fl.StringVar(&c.Addr, "addr", "", "where clients reach its binary protocol: HOST:PORT, or unix: and a path")
	fl.StringVar(&c.Peer, "peer", "", "where the other nodes reach it: HOST:PORT")
	fl.StringVar(&c.RESP, "resp", "", "where Redis clients in cluster mode reach it: HOST:PORT")
	cmd = newCommand(a, cmd, func(ctx context.Context, r *remote, args []string) error {
		var changed member.Changed
		err := r.ask(ctx, "cluster set", &c, &changed)
		switch kind := skep.KindOf(err); {
		case c.Unencrypted != "" && kind == skep.Conflict:
			err = command.WithNext(err, "take the key out of that node's settings and restart it, then give the "+
				"same command again")
		case kind == skep.NotFound:
			err = command.WithNext(err, "skep cluster status names the nodes, and the tenants that are encrypted")
		}
		if err != nil {
			return err
		}
		return r.Print(SetResult{c.Name, changed.Epoch}, func(w io.Writer) {
			switch {
			case c.Unencrypted != "":
				fmt.Fprintf(w, "every node takes blocks of tenant %s in the clear by the map of epoch %d\n", c.Unencrypted,
					changed.Epoch)
			case c.DownAfter != nil:
				fmt.Fprintf(w, "a node is down %s by the map of epoch %d\n", silenceText(*c.DownAfter), changed.Epoch)
			default:
				fmt.Fprintf(w, "node %s is so in the map of epoch %d\n", c.Name, changed.Epoch)
			}
		})
	})
	ask := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) (err error) {
		if len(args) == 1 {
			c.Name = args[0]
		}
		if cmd.Flags().Changed("down-after") {
			if c.DownAfter, err = ParseSilence(downAfter); err != nil {
				return err
			}
		}
		switch all := c.DownAfter != nil || c.Unencrypted != ""; {
		case all && c.Name != "":
			return skep.Invalidf("cluster", "NAME with --down-after or --unencrypted", c.Name, "none: it is the cluster's")
		case !all && c.Name == "":
			return skep.Invalidf("cluster", "NAME", "none", "that of a node, for all but --down-after and --unencrypted")
		}
		switch state {
		case "":
		case "up", "out", "down":
			s := clustermap.State(state)
			if state == "up" {
				s = clustermap.Up
			}
			c.State = &s
		default:
			return skep.Invalidf("cluster", "--state", state, "up, out or down")
		}
		if cmd.Flags().Changed("weight") && (c.Weight < 1 || c.Weight > clustermap.MaxWeight) {
			return skep.Invalidf("cluster", "--weight", c.Weight, fmt.Sprintf("1 to %d", clustermap.MaxWeight))
		}
		switch n := len(c.Commands()); {
		case n == 0 && c.Unencrypted == "":
			return skep.Invalidf("cluster", "what is set", "nothing",
				"--weight, --state, --addr, --peer, --resp, --down-after or --unencrypted")
		case n > 1 && c.DownAfter != nil:
			return skep.Invalidf("cluster", "--down-after", downAfter, "without what is set of a node")
		case n > 0 && c.Unencrypted != "":
			return skep.Invalidf("cluster", "--unencrypted", c.Unencrypted, "without what else is set")
		}
		return ask(cmd, args)
	}
	return cmd
}

// ParseSilence reads what --down-after is given: whole seconds, or never.
func ParseSilence(text string) (*uint32, error) {
	after := uint32(0)
	if text == "never" {
		return &after, nil
	}
	d, err := time.ParseDuration(text)
	if err != nil || d < clustermap.MinSilence*time.Second || d > clustermap.MaxSilence*time.Second || d%time.Second != 0 {
		return nil, skep.Invalidf("cluster", "--down-after", text, "10s to 24h in whole seconds, or never")
	}
	after = uint32(d / time.Second)
	return &after, nil
}

// silenceText says when a node is down by itself.
func silenceText(after uint32) string {
	if after == 0 {
		return "where an operator says so,"
	}
	return "after a silence of " + (time.Duration(after) * time.Second).String()
}

func clusterRemoveCommand(a *command.App) *cobra.Command {
	yes := false
	cmd := &cobra.Command{
		Use:   "remove NAME",
		Short: "take a node out of a cluster, and give up what it has",
		Long: `Has the nodes of a cluster agree on a map without a node. The blocks that only it has are given up: nothing
moves them, and they are a miss until they are put again. To have it send them first: skep cluster set NAME --state
out, then skep cluster repair, until nothing is missing. Its server goes on and is asked by nobody: stop it. Its
directory is that of no node any more: remove it, and wipe its drives, before the machine is added again. A node that is
to keep what it has, as one that is away for repairs, is not removed: skep cluster set NAME --state down. It says how many
blocks the node has and asks first, unless --yes is given.`,
		Args: takes("a node's NAME", 1),
	}
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask")
	return newCommand(a, cmd, func(ctx context.Context, r *remote, args []string) error {
		if !yes {
			if err := r.confirmRemoval(ctx, args[0]); err != nil {
				return err
			}
		}
		var removed member.Removed
		err := r.ask(ctx, "cluster remove", clustermap.Node{Name: args[0]}, &removed)
		if skep.KindOf(err) == skep.NotFound {
			err = command.WithNext(err, "skep cluster status names the nodes there are")
		}
		if err != nil {
			return err
		}
		return r.Print(RemovedResult{args[0], removed.Epoch, removed.Votes}, func(w io.Writer) {
			next := "stop its server"
			if removed.Votes {
				next = "it may still vote: where its server runs, leave it so until skep cluster status names it no more"
			}
			fmt.Fprintf(w, "node %s is out of the map of epoch %d: %s\n", args[0], removed.Epoch, next)
		})
	})
}

// confirmRemoval asks whether a node is to go with what it has. One that is in no map is nobody's to ask about.
func (r *remote) confirmRemoval(ctx context.Context, name string) error {
	var s consensus.Status
	if err := r.ask(ctx, "cluster", struct{}{}, &s); err != nil {
		return err
	}
	i := slices.IndexFunc(s.Nodes, func(n consensus.NodeStatus) bool { return n.Name == name })
	if i < 0 {
		return nil
	}
	blocks := "blocks, of which it does not say how many there are"
	if l := s.Nodes[i].Load; l != nil {
		blocks = fmt.Sprintf("%d blocks (%s)", l.Blocks, command.Size(l.Bytes))
	}
	return Confirm(ctx, r.App, fmt.Sprintf("remove node %s with its %s?", name, blocks))
}

func clusterStatusCommand(a *command.App) *cobra.Command {
	dir := ""
	cmd := &cobra.Command{
		Use:   "status",
		Short: "say how a cluster stands: nodes, epoch, who leads, who is behind",
		Long: `Asks a node how the cluster stands, and it asks the others. Exit code 6: nobody leads, so that the map
cannot be changed, or a node did not answer. With --dir it asks nobody: it says what a node knows that does not run.`,
		Args: command.NoArgs,
	}
	cmd.Flags().StringVar(&dir, "dir", "", "directory of the store of a node that does not run: nobody is asked")
	cmd = newCommand(a, cmd, func(ctx context.Context, r *remote, _ []string) error {
		var s consensus.Status
		if err := r.ask(ctx, "cluster", struct{}{}, &s); err != nil {
			return err
		}
		bad := s.Leader == 0 || s.Error != ""
		for _, n := range s.Nodes {
			bad = bad || !n.Reached
		}
		if bad {
			r.Code = command.Faults
		}
		return r.Print(s, func(w io.Writer) { clusterText(w, &s) })
	})
	ask := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if dir == "" {
			return ask(cmd, args)
		}
		s, err := stoppedStatus(a, dir)
		if err != nil {
			return err
		}
		return a.Print(s, func(w io.Writer) { stoppedText(w, s) })
	}
	return cmd
}

// loadRow is what a node has, and what its last repair could not send.
func loadRow(l *consensus.Load) []string {
	if l == nil {
		return command.Row("not known", "-", "-", "-")
	}
	missing := fmt.Sprint(l.Missing)
	switch {
	case l.Repairing:
		if missing = "sending, " + command.Size(l.Sent); l.Rate > 0 {
			missing += " at " + command.Size(l.Rate) + "/s at most"
		}
	case l.Missing < 0:
		missing = "not looked at"
	}
	return command.Row(l.Blocks, command.Size(l.Bytes), command.Size(l.Capacity), missing)
}

func clusterText(w io.Writer, s *consensus.Status) {
	var lacking []string
	leader := "nobody: the map cannot be changed until most of the nodes that vote reach each other"
	rows := [][]string{command.Row("node", "id", "clients", "nodes", "weight", "state", "part", "epoch", "behind", "blocks", "stored",
		"of", "missing on others")}
	for _, n := range s.Nodes {
		part := "hears"
		switch {
		case n.ID == s.Leader:
			part, leader = "leads", n.Name
		case n.Voter:
			part = "votes"
		}
		epoch, behind := fmt.Sprint(n.Epoch), fmt.Sprint(n.Behind)
		if !n.Reached {
			epoch, behind = "-", "does not answer"
		}
		if n.State == "removed" {
			n.Name, n.Addr = "-", "-"
		}
		if len(n.LacksKeys) > 0 {
			lacking = append(lacking, fmt.Sprintf("node %s has no encryption key of %s: it takes none of their blocks; name "+
				"the file in its settings and reload them (docs/howto/secure.md)", n.Name, strings.Join(n.LacksKeys, ", ")))
		}
		if len(s.Encrypted) > 0 && n.Load != nil && n.Load.Keys == nil {
			lacking = append(lacking, fmt.Sprintf("node %s does not say which keys it has: a version that does not takes "+
				"blocks in the clear where it has none", n.Name))
		}
		row := command.Row(n.Name, n.ID, n.Addr, n.Peer, n.Weight, n.State, part, epoch, behind)
		rows = append(rows, append(row, loadRow(n.Load)...))
	}
	command.Table(w, command.Row("leader", leader), command.Row("epoch", s.Epoch),
		command.Row("a node is down", strings.TrimSuffix(silenceText(s.DownAfter), ",")),
		command.Row("encrypted tenants", cmp.Or(strings.Join(s.Encrypted, ", "), "none")))
	if s.Error != "" {
		fmt.Fprintf(w, "the node that was asked takes no part any more: %s\n", s.Error)
	}
	fmt.Fprintln(w)
	command.Table(w, rows...)
	for _, text := range lacking {
		fmt.Fprintln(w, text)
	}
}
