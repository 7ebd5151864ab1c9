package cli

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/gpu/loan"
	"github.com/skepkv/skep/tools/internal/command"
)

// gpuStatusResult is how lenders of GPU memory stand.
type gpuStatusResult struct {
	Lenders []loan.Status `json:"lenders"` // a socket each
}

func (a *app) gpuCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "gpu", Short: "GPU memory lent between processes", Args: command.NoArgs}
	cmd.AddCommand(a.gpuStatusCommand())
	return cmd
}

func (a *app) gpuStatusCommand() *cobra.Command {
	var sockets []string
	cmd := &cobra.Command{
		Use:   "status",
		Short: "arenas, borders, who lends to whom, and under which agreement",
		Long:  "Asks each lender at its socket (skep-gpu lend --socket). Who may not open the socket may not ask.",
		Args:  command.NoArgs,
	}
	cmd.Flags().StringArrayVar(&sockets, "socket", nil, "a lender's socket; can be given several times (required)")
	cmd.RunE = func(*cobra.Command, []string) error {
		if len(sockets) == 0 {
			return skep.Invalidf("gpu status", "--socket", "missing", "a lender's socket")
		}
		r := gpuStatusResult{Lenders: []loan.Status{}}
		for _, s := range sockets {
			st, err := loan.Ask(s)
			if err != nil {
				return command.WithNext(err, "check that skep-gpu lend runs, with this --socket and as this user")
			}
			r.Lenders = append(r.Lenders, st)
		}
		return a.Print(r, func(w io.Writer) { printGPUStatus(w, r.Lenders) })
	}
	return cmd
}

func printGPUStatus(w io.Writer, lenders []loan.Status) {
	lines := [][]string{command.Row("lender", "pid", "GPU", "units", "of MiB", "floor", "border", "offered from", "own blocks", "moves", "reclaims", "longest ms", "ended", "died")}
	loans := [][]string{command.Row("lender", "borrower", "pid", "state", "units", "agreement", "lease ms")}
	for _, s := range lenders {
		lines = append(lines, command.Row(s.Name, s.PID, s.Device, s.Units, s.UnitBytes>>20, s.Floor, s.Border, s.Offer, s.Used, s.Epoch,
			s.Counts.Reclaims, fmt.Sprintf("%.1f", s.Counts.ReclaimMost), s.Counts.Ended, s.Counts.Died))
		for _, b := range s.Borrowers {
			units := fmt.Sprintf("%d to %d", b.From, b.To)
			if b.Keeps != b.From {
				units += fmt.Sprintf(", gives back up to %d", b.Keeps)
			}
			loans = append(loans, command.Row(s.Name, b.Name, b.PID, b.State, units, b.Epoch, fmt.Sprintf("%.0f", b.LeaseMs)))
		}
	}
	command.Table(w, lines...)
	if len(loans) > 1 {
		fmt.Fprintln(w)
		command.Table(w, loans...)
	}
}
