package lab

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/skepkv/skep/tools/internal/bench"
	"github.com/skepkv/skep/tools/internal/command"
	"github.com/skepkv/skep/tools/internal/units"
)

func (a *app) benchRebuild() *cobra.Command {
	o := bench.RebuildOptions{}
	cmd := &cobra.Command{Use: "rebuild", Short: "a new catalog from the devices, beside a plain read of what that needs"}
	a.common(cmd, &o.Common)
	cmd.Flags().IntVar(&o.Blocks, "blocks", 1_000_000, "blocks to put")
	units.SizeVar(cmd.Flags(), &o.BlockBytes, "block-size", 4096, "payload of a block", "block-bytes")
	cmd.Flags().IntVar(&o.ChainLen, "chain-blocks", 100, "blocks of a chain")
	cmd.Flags().IntVar(&o.Devices, "file-devices", 4, "file devices")
	units.Renamed(cmd.Flags(), "file-devices", "devices")
	cmd.Flags().Uint64Var(&o.Seed, "seed", 1, "of the chains")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := a.begin(&o.Common); err != nil {
			return err
		}
		r, err := bench.Rebuild(cmd.Context(), o)
		if err != nil {
			return err
		}
		return a.Print(r, func(w io.Writer) {
			command.Table(w,
				command.Row("blocks", fmt.Sprintf("%d of %d bytes in %d groups on %d devices", r.Blocks, r.BlockBytes, r.Groups, r.Devices)),
				command.Row("needed", command.Size(r.NeededBytes)+" of headers and logs"),
				command.Row("rebuild", fmt.Sprintf("%.3f s, %.0f blocks/s, %.2f s of CPU", r.RebuildSecs, r.BlocksPerS, r.CPUSecs)),
				command.Row("plain read", fmt.Sprintf("%.3f s", r.ReadSecs)),
				command.Row("ratio", fmt.Sprintf("%.2f (goal 1.25)", r.Ratio)),
				command.Row("backend", command.Backend(r.Backend, r.BackendReason, r.Simulated)),
			)
		})
	}
	return cmd
}
