package lab

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/skepkv/skep/tools/internal/bench"
	"github.com/skepkv/skep/tools/internal/command"
	"github.com/skepkv/skep/tools/internal/units"
)

func (a *app) benchOverload() *cobra.Command {
	o := bench.OverloadOptions{}
	cmd := &cobra.Command{Use: "overload", Short: "ten times the requests the store can serve: memory, goodput, refusals"}
	a.common(cmd, &o.Common)
	fl := cmd.Flags()
	fl.IntVar(&o.Devices, "file-devices", 4, "file devices")
	units.Renamed(fl, "file-devices", "devices")
	units.SizeVar(fl, &o.BlockBytes, "block-size", 128<<10, "payload of a block", "block-bytes")
	fl.IntVar(&o.ChainLen, "chain-blocks", 16, "blocks of a request")
	fl.IntVar(&o.Chains, "chains", 4000, "different requests; half of them fit on the devices")
	fl.IntVar(&o.Clients, "clients", 16, "that make the peak")
	fl.Float64Var(&o.Times, "times", 10, "what is offered, × the peak")
	fl.Float64Var(&o.Seconds, "seconds", 60, "length of the overload")
	fl.Float64Var(&o.PeakSeconds, "peak-seconds", 10, "length of the peak's measurement")
	units.SizeVar(fl, &o.MemoryBytes, "memory", 512<<20, "cap on the store's memory", "memory-bytes")
	fl.Uint64Var(&o.Seed, "seed", 1, "of the payload and of what is asked")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := a.begin(&o.Common); err != nil {
			return err
		}
		r, err := bench.Overload(cmd.Context(), o)
		if err != nil {
			return err
		}
		return a.Print(r, func(w io.Writer) {
			command.Table(w,
				command.Row("peak", fmt.Sprintf("%.0f requests/s", r.Peak)),
				command.Row("offered", fmt.Sprintf("%.0f requests/s for %.0f s", r.Offered, r.Seconds)),
				command.Row("goodput", fmt.Sprintf("%.0f requests/s, %.3f of the peak", r.Goodput, r.GoodputRatio)),
				command.Row("refused", fmt.Sprintf("%d, 99 %% within %.3f ms, all within %.3f ms", r.Refused, r.RefusalP99, r.RefusalMax)),
				command.Row("failed", command.Counts(r.Failed)),
				command.Row("under way", fmt.Sprintf("%d requests at most", r.MostUnderway)),
				command.Row("memory", fmt.Sprintf("%s at most, %.3f of the cap of %s", command.Size(r.MemoryPeak), r.MemoryRatio, command.Size(r.MemoryCap))),
				command.Row("normal again", fmt.Sprintf("after %.1f s", r.NormalAfter)),
			)
			fmt.Fprintf(w, "\nlimit    %s\nbackend  %s\nmethod   %s\n", r.Limit, command.Backend(r.Backend, r.BackendReason, r.Simulated), r.Method)
		})
	}
	return cmd
}
