package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"

	"github.com/spf13/cobra"

	"github.com/skepkv/skep/gpu"
	"github.com/skepkv/skep/tools/internal/reclaim"
)

// benchCommand measures what skep bench reclaim does, on the GPUs this binary has.
func benchCommand(in io.Reader, out io.Writer) *cobra.Command {
	var b backend
	var o reclaim.Options
	var role, socket string
	lenders := 1
	asJSON := false
	bench := &cobra.Command{Use: "bench", Short: "measure", Args: cobra.NoArgs}
	cmd := &cobra.Command{
		Use: "reclaim", Args: cobra.NoArgs, Short: "take lent memory back from borrowers at work, and kill borrowers and lenders",
		Long: "What skep bench reclaim does on simulated GPUs, on GPU --gpu for the borrower and --lender-gpu for the lender.",
	}
	b.flags(cmd)
	f := cmd.Flags()
	f.IntVar(&lenders, "lender-gpu", 1, "number of the lender's GPU; the borrower's own where there is one only")
	f.IntVar(&o.Moves, "moves", 1000, "units taken back")
	f.IntVar(&o.Kills, "kills", 100, "borrowers that are killed, and as many lenders")
	f.BoolVar(&asJSON, "json", false, "print the result as JSON")
	f.StringVar(&role, "role", "", "")
	f.StringVar(&socket, "socket", "", "")
	_, _ = f.MarkHidden("role"), f.MarkHidden("socket")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		o.Machine = func() (reclaim.Open, error) {
			open, err := b.open()
			return func(n int) (gpu.Device, error) { return open([]int{b.number, lenders}[n]) }, err
		}
		if role != "" {
			open, err := o.Machine()
			if err != nil {
				return err
			}
			return reclaim.Run(cmd.Context(), role, socket, open, in, out)
		}
		self, err := os.Executable()
		if err != nil {
			return err
		}
		o.Child = func(ctx context.Context, role, socket string) (*exec.Cmd, error) {
			return exec.CommandContext(ctx, self, "bench", "reclaim", "--backend", b.name, "--gpu", fmt.Sprint(b.number), "--lender-gpu", fmt.Sprint(lenders),
				"--sim-size", fmt.Sprint(b.memory), "--role", role, "--socket", socket), nil
		}
		o.Note = func(format string, args ...any) { fmt.Fprintf(cmd.ErrOrStderr(), format+"\n", args...) }
		r, err := reclaim.Measure(cmd.Context(), o)
		if err != nil {
			return err
		}
		if asJSON {
			err = json.NewEncoder(out).Encode(r)
		} else {
			w := bufio.NewWriter(out) // which keeps the first error
			reclaim.Print(w, r)
			err = w.Flush()
		}
		if err == nil && r.Wrong > 0 {
			err = fmt.Errorf("%d blocks came back wrong", r.Wrong)
		}
		return err
	}
	bench.AddCommand(cmd)
	return bench
}
