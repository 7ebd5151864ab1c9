package lab

import (
	"context"
	"io"
	"os/exec"

	"github.com/spf13/cobra"

	"github.com/skepkv/skep/gpu"
	"github.com/skepkv/skep/gpu/sim"
	"github.com/skepkv/skep/tools/internal/command"
	"github.com/skepkv/skep/tools/internal/reclaim"
	"github.com/skepkv/skep/tools/internal/self"
)

// simulated opens GPUs of one simulated server.
func simulated() (reclaim.Open, error) {
	o := sim.H20()
	o.Devices, o.MemoryBytes = 2, 256<<20
	w, err := sim.New(o)
	return func(n int) (gpu.Device, error) { return w.Device(n), nil }, err
}

func (a *app) benchReclaim() *cobra.Command {
	o := reclaim.Options{}
	cmd := &cobra.Command{
		Use:   "reclaim",
		Short: "take lent GPU memory back from borrowers at work, and kill borrowers and lenders",
		Args:  command.NoArgs,
	}
	cmd.Flags().IntVar(&o.Moves, "moves", 1000, "units taken back, one after the other, from a borrower that restores from them all the time")
	cmd.Flags().IntVar(&o.Kills, "kills", 50, "borrowers that are killed, and as many lenders")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		o.Machine = simulated
		o.Child = func(ctx context.Context, role, socket string) (*exec.Cmd, error) {
			return self.Command(ctx, nil, "reclaim-"+role, "--socket", socket)
		}
		o.Note = a.Note
		r, err := reclaim.Measure(cmd.Context(), o)
		if err != nil {
			return err
		}
		if r.Wrong > 0 {
			a.Code = command.Failed
		}
		return a.Print(r, func(w io.Writer) { reclaim.Print(w, r) })
	}
	return cmd
}

// benchReclaimRole is one of the processes bench reclaim starts.
func (a *app) benchReclaimRole(role string) *cobra.Command {
	socket := ""
	cmd := &cobra.Command{Use: "reclaim-" + role, Hidden: true, Args: command.NoArgs}
	cmd.Flags().StringVar(&socket, "socket", "", "")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		open, err := simulated()
		if err != nil {
			return err
		}
		return reclaim.Run(cmd.Context(), role, socket, open, a.In, a.Out)
	}
	return cmd
}
