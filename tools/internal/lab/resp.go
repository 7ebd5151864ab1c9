package lab

import (
	"io"

	"github.com/spf13/cobra"

	"github.com/skepkv/skep/tools/internal/bench"
	"github.com/skepkv/skep/tools/internal/command"
	"github.com/skepkv/skep/tools/internal/units"
)

func (a *app) benchRESP() *cobra.Command {
	o := bench.RESPOptions{}
	cmd := &cobra.Command{Use: "resp", Short: "GET and SET over RESP, beside Redis, loopback and the drives"}
	a.common(cmd, &o.Common)
	cmd.Flags().Int64SliceVar(&o.Sizes, "sizes", []int64{1 << 20, 4 << 20}, "sizes of a value")
	cmd.Flags().IntVar(&o.Connections, "connections", 4, "of the one client")
	units.SizeVar(cmd.Flags(), &o.TotalBytes, "total-size", 512<<20, "of all values", "total-bytes")
	cmd.Flags().IntVar(&o.Devices, "file-devices", 2, "file devices")
	units.Renamed(cmd.Flags(), "file-devices", "devices")
	cmd.Flags().Float64Var(&o.Seconds, "seconds", 1, "length of a run")
	cmd.Flags().StringSliceVar(&o.Only, "only", nil, "measure these alone: set, get, drives, tls")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := a.begin(&o.Common); err != nil {
			return err
		}
		r, err := bench.RESP(cmd.Context(), o)
		if err != nil {
			return err
		}
		return a.Print(r, func(w io.Writer) {
			rows := [][]string{command.Row("command", "value", "from", "TLS", "GB/s", "Redis", "limit", "ratio", "CPU s/GB", "Redis", "ratio", "lasting Redis", "CPU s/GB", "drives")}
			for _, r := range r.Rows {
				tls := "no"
				if r.TLS {
					tls = "1.3"
				}
				rows = append(rows, command.Row(r.Command, command.Size(r.ValueBytes), r.From, tls, r.GBps, r.RedisGBps, r.LimitGBps, r.Ratio, r.CPU, r.RedisCPU, r.CPURatio, r.LastingGBps, r.LastingCPU, r.WriteGBps))
			}
			command.Table(w, rows...)
			benchFoot(w, r.About, "the lower of Redis "+r.Redis+" and loopback; for drives, the same drives", r.Method, r.Rounds)
		})
	}
	return cmd
}
