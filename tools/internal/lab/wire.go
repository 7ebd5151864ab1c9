package lab

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/skepkv/skep/tools/internal/bench"
	"github.com/skepkv/skep/tools/internal/command"
	"github.com/skepkv/skep/tools/internal/units"
)

func (a *app) benchWire() *cobra.Command {
	o := bench.WireOptions{}
	cmd := &cobra.Command{Use: "wire", Short: "the network client beside the embedded store, iperf3 and overload"}
	a.common(cmd, &o.Common)
	units.SizeVar(cmd.Flags(), &o.ChainBytes, "chain-size", 2<<30, "payload of the chain that comes from drives; larger than every cache", "chain-bytes")
	units.SizeVar(cmd.Flags(), &o.DRAMBytes, "dram", 512<<20, "payload of the chain that comes from the server's memory", "dram-bytes")
	units.SizeVar(cmd.Flags(), &o.BlockBytes, "block-size", 2<<20, "payload of a block", "block-bytes")
	cmd.Flags().IntVar(&o.Devices, "file-devices", 2, "file devices")
	units.Renamed(cmd.Flags(), "file-devices", "devices")
	cmd.Flags().IntVar(&o.Keys, "keys", 2000, "keys of a lookup")
	cmd.Flags().IntVar(&o.Connections, "connections", 1000, "connections of the overload")
	cmd.Flags().Float64Var(&o.Seconds, "seconds", 1, "length of a run")
	cmd.Flags().StringSliceVar(&o.Only, "only", nil, "measure these alone: shared, tcp, tls, lookup, overload")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := a.begin(&o.Common); err != nil {
			return err
		}
		r, err := bench.Wire(cmd.Context(), o)
		if err != nil {
			return err
		}
		return a.Print(r, func(w io.Writer) {
			rows := [][]string{command.Row("what", "unit", "value", "limit", "of", "ratio", "goal", "CPU s/GB")}
			for _, r := range r.Rows {
				rows = append(rows, command.Row(r.What, r.Unit, r.Value, r.Limit, r.LimitName, r.Ratio, r.Goal, r.CPU))
			}
			command.Table(w, rows...)
			if v := r.Overload; v.Connections > 0 {
				fmt.Fprintf(w, "\noverload %d connections: %.2f GB/s asked, %.2f delivered (peak %.2f, ratio %.2f), %d served, %d refused in %.1f ms (p99 %.1f), memory %s before, %s at most, %s after\n",
					v.Connections, v.OfferedGBps, v.GoodputGBps, v.PeakGBps, v.Ratio, v.Served, v.Refused, v.RefusalMsP50, v.RefusalMsP99, command.Size(v.MemoryBefore), command.Size(v.MemoryPeak), command.Size(v.MemoryAfter))
			}
			benchFoot(w, r.About, "named in each row", r.Method, r.Rounds)
		})
	}
	return cmd
}
