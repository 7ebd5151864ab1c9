package remote

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/replication/consensus"
	"github.com/skepkv/skep/tools/internal/command"
	"github.com/skepkv/skep/tools/internal/member"
)

// RecoverResult is what cluster recover prints: the node as it is now, or as it would be.
type RecoverResult struct {
	Dir    string   `json:"dir"`     // --dir
	ID     uint64   `json:"id"`      // the node's number
	Name   string   `json:"name"`    // its name
	From   uint32   `json:"from"`    // epoch of the newest map that the node knew
	Epoch  uint32   `json:"epoch"`   // of the map that it goes on by
	Nodes  []string `json:"nodes"`   // of that map, by name
	Lost   []string `json:"lost"`    // nodes that were taken out of it, by name
	DryRun bool     `json:"dry_run"` // --dry-run: nothing was changed
}

func (r *RecoverResult) text(w io.Writer) {
	without := ""
	if len(r.Lost) > 0 {
		without = "without " + strings.Join(r.Lost, ", ") + ", "
	}
	fmt.Fprintf(w, "node %s goes on %sby the map of epoch %d, with %s; it knew that of epoch %d\n",
		r.Name, without, r.Epoch, strings.Join(r.Nodes, ", "), r.From)
	if r.DryRun {
		fmt.Fprintln(w, "nothing was changed")
		return
	}
	fmt.Fprintf(w, "next: skep serve --dir %s\n", r.Dir)
	if len(r.Lost) > 0 && len(r.Nodes) > 1 {
		fmt.Fprintln(w, "then, on each other node of these: skep cluster recover --dir D --from SERVER, this node's")
	}
}

// recoverFlags are those of cluster recover.
type recoverFlags struct {
	dir         string
	lost        []string
	target      Target
	dryRun, yes bool
}

func clusterRecoverCommand(a *command.App) *cobra.Command {
	f := recoverFlags{target: Target{Flag: "--from"}}
	cmd := &cobra.Command{
		Use:   "recover",
		Short: "have a cluster go on without most of its nodes, which are lost for good",
		Long: `Makes the node of --dir, which does not run, the only voter of the cluster, with the newest map that it knows,
without the nodes that --lost names. Changes of the map that only those had agreed on, blocks that only they had, and
deletions that only they remember are given up. The cluster gets another identity: a lost node that comes back after all
is not listened to, and says so. Run it once, on the node that knows the highest
term and, of these, the highest epoch (skep cluster status --dir D).
The other nodes that are left come to it with --from: they keep their number, name and blocks. Run it as the user that
serves. Cut off, it may be run again.`,
		Example: "  skep cluster recover --dir /var/lib/skep --lost b,c --dry-run\n" +
			"  skep cluster recover --dir /var/lib/skep --from skep://10.0.0.1:7420 --token-file operator",
		Args: command.NoArgs,
	}
	fl := cmd.Flags()
	fl.StringVar(&f.dir, "dir", "", "directory of the store of a node that does not run (required)")
	fl.StringSliceVar(&f.lost, "lost", nil, "names of the nodes that are lost for good, separated by commas")
	fl.StringVar(&f.target.Server, "from", "",
		"a server of the recovered cluster, which this node is to come to: "+forms)
	f.target.RegisterToken(fl)
	fl.BoolVar(&f.dryRun, "dry-run", false, "say what would be, and change nothing")
	fl.BoolVar(&f.yes, "yes", false, "do not ask")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if f.dir == "" {
			return skep.Invalidf("cluster", "--dir", "empty", "the directory of a node's store")
		}
		if (len(f.lost) > 0) == (f.target.Server != "") {
			return command.WithNext(skep.Invalidf("cluster", "--lost and --from", "both or none", "one of them"),
				"--lost names the nodes that are gone, once, on the node that goes on; --from names that node, on the others")
		}
		run := f.recover
		if f.target.Server != "" {
			run = f.rejoin
		}
		got, err := run(cmd.Context(), a, cmd.CommandPath())
		if err != nil {
			return f.explained(err)
		}
		r := &RecoverResult{f.dir, got.Node.ID, got.Node.Name, got.From, got.Map.Epoch, []string{}, []string{}, f.dryRun}
		for i := range got.Map.Nodes {
			r.Nodes = append(r.Nodes, got.Map.Nodes[i].Name)
		}
		r.Lost = append(r.Lost, f.lost...)
		return a.Print(r, r.text)
	}
	return cmd
}

// recover asks, unless it is told not to, and has the node go on without those that are lost.
func (f *recoverFlags) recover(ctx context.Context, a *command.App, _ string) (got member.Recovered, err error) {
	log, err := a.Logger()
	if err != nil {
		return got, err
	}
	r := member.Recovery{Dir: f.dir, Lost: f.lost, DryRun: true, Logger: log}
	if got, err = member.Recover(ctx, r); err != nil || f.dryRun {
		return got, err
	}
	if !f.yes {
		question := fmt.Sprintf("recover the cluster from node %s, which knows the map of epoch %d, without %s for good?",
			got.Node.Name, got.From, strings.Join(f.lost, ", "))
		if err := Confirm(ctx, a, question); err != nil {
			return got, err
		}
	}
	r.DryRun = false
	return member.Recover(ctx, r)
}

// rejoin has the node come to the recovered cluster.
func (f *recoverFlags) rejoin(ctx context.Context, a *command.App, name string) (got member.Recovered, err error) {
	log, err := a.Logger()
	if err != nil {
		return got, err
	}
	r := &remote{App: a, target: f.target}
	r.target.Err = a.Err
	if r.c, err = r.target.Dial(ctx, name); err != nil {
		return got, err
	}
	defer r.close()
	ask := func(ctx context.Context, q member.AskRejoin) (to member.Rejoined, err error) {
		err = r.ask(ctx, "cluster rejoin", q, &to)
		switch skep.KindOf(err) {
		case skep.NotFound:
			err = command.WithNext(err, "it was taken out as lost, or removed: remove --dir, wipe its drives, and add it "+
				"again (skep cluster add)")
		case skep.Conflict:
			err = command.WithNext(err, "name a server of the cluster that was recovered from this node's with --from")
		}
		return to, err
	}
	got, err = member.Rejoin(ctx, f.dir, log, f.dryRun, ask)
	if skep.KindOf(err) == skep.Conflict && !command.HasNext(err) {
		err = command.WithNext(err, "the recovered cluster lacks changes that this node knows, deletions among them: "+
			"recover it from this node, or have this one removed, and add it again without its blocks")
	}
	return got, r.target.Explain(err)
}

// explained says what to do next.
func (f *recoverFlags) explained(err error) error {
	if command.HasNext(err) {
		return err
	}
	switch skep.KindOf(err) {
	case skep.Locked:
		return command.WithNext(err, "stop the node's server first; while it runs: skep cluster status")
	case skep.NotFound, skep.Invalid:
		return command.WithNext(err, "skep cluster status --dir "+f.dir+" names the nodes that it knows")
	case skep.Conflict:
		return command.WithNext(err, "start the nodes that are not lost: where most of those that vote run, skep cluster "+
			"remove takes a lost node out")
	}
	return err
}

// stoppedStatus is what a node that does not run knows of its cluster.
func stoppedStatus(a *command.App, dir string) (*consensus.Status, error) {
	log, err := a.Logger()
	if err != nil {
		return nil, err
	}
	n, err := member.Look(dir, log)
	switch skep.KindOf(err) {
	case skep.Locked:
		return nil, command.WithNext(err, "it runs: ask its server (--server)")
	case skep.NotFound:
		return nil, command.WithNext(err, "name the directory of a node's store with --dir")
	}
	if err != nil {
		return nil, err
	}
	s := n.Kept.Status(n.ID)
	return &s, nil
}

// stoppedText prints it for a person.
func stoppedText(w io.Writer, s *consensus.Status) {
	rows := [][]string{command.Row("node", "id", "clients", "nodes", "weight", "state", "part")}
	name := ""
	for _, n := range s.Nodes {
		part := "hears"
		if n.Voter {
			part = "votes"
		}
		if n.ID == s.Node {
			name = n.Name
		}
		rows = append(rows, command.Row(n.Name, n.ID, n.Addr, n.Peer, n.Weight, n.State, part))
	}
	command.Table(w, command.Row("node", name+", which does not run"), command.Row("term", s.Term),
		command.Row("epoch", s.Epoch))
	fmt.Fprintln(w)
	command.Table(w, rows...)
}
