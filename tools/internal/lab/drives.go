package lab

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/skepkv/skep/tools/internal/bench"
	"github.com/skepkv/skep/tools/internal/command"
	"github.com/skepkv/skep/tools/internal/units"
)

// modelFlags are those of benchmarks on simulated drives.
func modelFlags(cmd *cobra.Command, devices *int, mbps, bytes, block *int64, chain *int) {
	cmd.Flags().IntVar(devices, "drives", 4, "simulated drives")
	units.Renamed(cmd.Flags(), "drives", "devices")
	cmd.Flags().Int64Var(mbps, "device-mbps", 100, "speed of each, reads and writes together, in 10^6 bytes a second")
	units.SizeVar(cmd.Flags(), bytes, "size", 256<<20, "payload stored", "bytes")
	units.SizeVar(cmd.Flags(), block, "block-size", 256<<10, "payload of a block", "block-bytes")
	cmd.Flags().IntVar(chain, "chain-blocks", 8, "blocks of a chain")
}

func (a *app) benchInterfere() *cobra.Command {
	o := bench.InterfereOptions{}
	cmd := &cobra.Command{Use: "interfere", Short: "how long restores take while blocks are moved in the background, on simulated drives"}
	a.common(cmd, &o.Common)
	modelFlags(cmd, &o.Devices, &o.DeviceMBps, &o.Bytes, &o.BlockBytes, &o.ChainLen)
	cmd.Flags().Float64Var(&o.Seconds, "seconds", 5, "length of a phase")
	cmd.Flags().Float64Var(&o.Share, "share", 0.2, "of the drives' bandwidth that the background is to move")
	cmd.Flags().StringSliceVar(&o.Works, "work", bench.InterfereWorks, "what moves: move, scrub")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := a.begin(&o.Common); err != nil {
			return err
		}
		r, err := bench.Interfere(cmd.Context(), o)
		if err != nil {
			return err
		}
		return a.Print(r, func(w io.Writer) {
			rows := [][]string{command.Row("work", "ms p50", "p99", "alone p50", "p99", "p99 ratio", "restores move", "work moves", "misses")}
			for _, x := range r.Rows {
				rows = append(rows, command.Row(x.Work, x.P50Ms, x.P99Ms, x.AloneP50Ms, x.AloneP99Ms, x.Ratio, percent(x.Foreground), percent(x.Background), x.Misses))
			}
			command.Table(w, rows...)
			fmt.Fprintf(w, "\ndrives   %d of %d MB/s, simulated\nrounds   %d\nmethod   %s\n", r.Devices, r.DeviceMBps, r.Rounds, r.Method)
		})
	}
	return cmd
}

func percent(x float64) string { return fmt.Sprintf("%.0f %%", 100*x) }

func (a *app) benchLoss() *cobra.Command {
	o := bench.LossOptions{}
	cmd := &cobra.Command{Use: "loss", Short: "what the loss of one drive costs a store with two copies, on simulated drives"}
	a.common(cmd, &o.Common)
	modelFlags(cmd, &o.Devices, &o.DeviceMBps, &o.Bytes, &o.BlockBytes, &o.ChainLen)
	cmd.Flags().StringSliceVar(&o.Faults, "fault", bench.LossFaults, "how the drive is lost: gone, eio, read-only, hung")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := a.begin(&o.Common); err != nil {
			return err
		}
		r, err := bench.Loss(cmd.Context(), o)
		if err != nil {
			return err
		}
		for _, x := range r.Rows {
			if x.Misses > 0 {
				a.Code = command.Failed
			}
		}
		return a.Print(r, func(w io.Writer) {
			rows := [][]string{command.Row("fault", "restores", "misses", "longest", "p99 ms before", "after", "copies lost", "made again in", "MB/s", "÷ a drive", "left")}
			for _, x := range r.Rows {
				rows = append(rows, command.Row(x.Fault, x.Restores, x.Misses, fmt.Sprintf("%.2f s", x.ServiceSeconds), x.BeforeP99Ms, x.AfterP99Ms, command.Size(x.LostBytes),
					fmt.Sprintf("%.2f s", x.HealSeconds), x.HealMBps, x.HealRatio, x.Degraded))
			}
			command.Table(w, rows...)
			fmt.Fprintf(w, "\ndrives   %d of %d MB/s, simulated; %d copies\nmethod   %s\n", r.Devices, r.DeviceMBps, r.Copies, r.Method)
		})
	}
	return cmd
}
