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
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := a.begin(&o.Common); err != nil {
			return err
		}
		r, err := enginesbench.Run(cmd.Context(), o)
		if err != nil {
			return err
		}
		return a.Print(r, func(w io.Writer) {
			rows := [][]string{command.Row("call", "way", "GB/s", "client CPU s/GB", "µs", "ratio", "goal")}
			for _, r := range r.Rows {
				rows = append(rows, command.Row(r.Call, r.Way, r.GBps, r.CPU, r.Us, r.Ratio, r.Goal))
			}
			command.Table(w, rows...)
			said := strings.Join(append(r.Versions, r.Skipped...), "; ")
			benchFoot(w, r.About, "skepkv's GB/s ÷ those of the row; "+said, r.Method, r.Rounds)
		})
	}
	return cmd
}
