package lab

import (
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/skepkv/skep/tools/internal/bench/enginesbench"
	"github.com/skepkv/skep/tools/internal/command"
	"github.com/skepkv/skep/tools/internal/units"
)

func (a *app) benchEngines() *cobra.Command {
	o := enginesbench.Options{}
	cmd := &cobra.Command{Use: "engines",
		Short: "the Python package as engines use it, beside the embedded store, fio and Mooncake Store"}
	a.common(cmd, &o.Common)
	cmd.Flags().IntVar(&o.Blocks, "blocks", 64, "blocks of a round")
	units.SizeVar(cmd.Flags(), &o.BlockBytes, "block-size", 4<<20, "payload of a block")
	cmd.Flags().IntVar(&o.Batch, "batch", 16, "blocks of a call")
	cmd.Flags().IntVar(&o.Keys, "keys", 2000, "keys of a lookup")
	cmd.Flags().StringVar(&o.Python, "python", "python3", "interpreter that has skepkv")
	cmd.Flags().StringVar(&o.MooncakePython, "mooncake-python", "",
		"interpreter that has Mooncake's package (default: that of --python)")
	cmd.Flags().IntVar(&o.Nodes, "nodes", 0, "a cluster of so many nodes, over TCP, 3 to 9; 0: one server")
	cmd.Flags().StringVar(&o.Kill, "kill", "", "what --nodes lose when one is killed: node or master")
	cmd.Flags().IntVar(&o.Seconds, "seconds", 60, "how long --kill waits for answers, and for what comes back")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := a.begin(&o.Common); err != nil {
			return err
		}
		r, err := enginesbench.Run(cmd.Context(), o)
		if err != nil {
			return err
		}
		return a.Print(r, func(w io.Writer) {
			ratio := "skepkv's GB/s ÷ those of the row; "
			rows := [][]string{command.Row("call", "way", "copies", "GB/s", "client CPU s/GB", "µs", "ratio", "goal")}
			for _, r := range r.Rows {
				rows = append(rows, command.Row(r.Call, r.Way, r.Copies, r.GBps, r.CPU, r.Us, r.Ratio, r.Goal))
			}
			if o.Kill != "" {
				rows, ratio = losses(r.Losses), ""
			}
			command.Table(w, rows...)
			said := strings.Join(append(r.Versions, r.Skipped...), "; ")
			benchFoot(w, r.About, ratio+said, r.Method, r.Rounds)
		})
	}
	return cmd
}

// losses are rows of kills.
func losses(of []enginesbench.Loss) [][]string {
	rows := [][]string{command.Row("way", "copies", "killed", "got", "missed", "failed", "slowest s",
		"answers s", "got then", "missed then", "stored then", "back", "back s")}
	for _, l := range of {
		rows = append(rows, command.Row(l.Way, l.Copies, l.Killed, l.First.Got, l.First.Missed, l.First.Failed,
			l.First.Slowest, l.Answers, l.Last.Got, l.Last.Missed, l.Put.Got,
			l.Back.Got, l.Returned))
	}
	return rows
}
