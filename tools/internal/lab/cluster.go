package lab

import (
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/skepkv/skep/tools/internal/bench/scalebench"
	"github.com/skepkv/skep/tools/internal/command"
	"github.com/skepkv/skep/tools/internal/units"
)

func (a *app) benchCluster() *cobra.Command {
	o := scalebench.Options{}
	cmd := &cobra.Command{Use: "cluster", Args: command.NoArgs,
		Short: "a cluster of up to 1,000 nodes: balance, and what is moved when nodes are lost; simulated",
		Long: `Makes a cluster of --nodes by the product's own map and placement, and loses nodes, racks and a zone of it.
Blocks are counts, and the time of a repair is reckoned from --rate: nothing is stored.`}
	f := cmd.Flags()
	f.IntVar(&o.Nodes, "nodes", 1000, "nodes, 4 to 1000")
	f.IntVar(&o.Zones, "zones", 4, "zones that they lie in")
	f.IntVar(&o.Racks, "racks", 40, "racks of all zones together")
	f.IntVar(&o.Replicas, "replicas", 2, "nodes that have each block, 1 to 4")
	f.Int64Var(&o.Blocks, "blocks", 1e9, "blocks of chains")
	units.SizeVar(f, &o.BlockBytes, "block-size", 1<<20, "payload of a block")
	units.SizeVar(f, &o.Rate, "rate", 64<<20, "bytes a second that a node sends, and receives, in a repair")
	f.DurationVar(&o.Silence, "down-after", time.Minute, "silence after which a node is down by itself")
	f.IntVar(&o.Chain, "chain", 2000, "blocks of the chains that are looked up")
	f.Uint64Var(&o.Seed, "seed", 1, "of what is drawn")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		o.Note = a.Note
		r, err := scalebench.Run(cmd.Context(), o)
		if err != nil {
			return err
		}
		return a.Print(r, func(w io.Writer) { clusterTable(w, r) })
	}
	return cmd
}

func clusterTable(w io.Writer, r *scalebench.Result) {
	fmt.Fprintf(w, "%d nodes, %d blocks on %d each; %s\n\n", r.Nodes, r.Blocks, r.Replicas, r.Method)
	command.Table(w,
		command.Row("map", fmt.Sprintf("%d bytes", r.MapBytes)),
		command.Row("the last node is added", fmt.Sprintf("in %.2f ms", r.AddMs)),
		command.Row("table of the map", fmt.Sprintf("in %.0f ms; after one node was lost in %.1f ms", r.TableMs, r.NextMs)),
		command.Row("fullest node ÷ mean", fmt.Sprintf("%.3f", r.Balance)),
		command.Row(fmt.Sprintf("lookup of %d blocks", r.ChainLen),
			fmt.Sprintf("asks %.1f nodes, the busiest for %.1f times the mean", r.Asked, r.AskedShare)))
	fmt.Fprintln(w)
	rows := [][]string{command.Row("change", "nodes", "down by themselves", "copies sent", "÷ least", "blocks lost",
		"busiest sender ÷ mean", "seconds until all is there")}
	for _, x := range r.Changes {
		rows = append(rows, command.Row(x.Change, x.Nodes, x.Down, fmt.Sprintf("%.2f %%", 100*x.Moved),
			fmt.Sprintf("%.3f", x.Least), fmt.Sprintf("%.4f %%", 100*x.Lost), fmt.Sprintf("%.2f", x.Balance),
			fmt.Sprintf("%.0f", x.FullSecs)))
	}
	command.Table(w, rows...)
}
