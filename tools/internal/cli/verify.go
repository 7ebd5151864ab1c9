package cli

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/skepkv/skep/store"
	"github.com/skepkv/skep/tools/internal/command"
	"github.com/skepkv/skep/tools/internal/units"
)

func (a *app) verifyCommand() *cobra.Command {
	f := &storeFlags{}
	cmd := &cobra.Command{
		Use:   "verify",
		Short: "compare devices, catalog and index of a store, and name each fault",
		Long: `Compares superblocks, headers and logs on the devices with the catalog and with the index an open
makes of it, tries a rebuild on the side, and with --deep reads every copy of every block. Nothing is
changed. Exit code 0: all is sound; 6: it is not, and every fault is named with what to do.`,
		Args: command.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.verify(cmd.Context(), f) },
	}
	f.register(cmd)
	cmd.Flags().BoolVar(&f.deep, "deep", false, "read payload, too: every copy of every block")
	units.RateVar(cmd.Flags(), &f.rate, "rate", 0, "with --deep: bytes read a second; 0: as fast as it goes")
	return cmd
}

func (a *app) verify(ctx context.Context, f *storeFlags) error {
	o, err := f.options(a, "verify")
	if err != nil {
		return err
	}
	r, err := store.Verify(ctx, o, store.VerifyOptions{Deep: f.deep, Rate: f.rate})
	if err != nil && (ctx.Err() == nil || r.Blocks == 0) {
		return err
	}
	verdict := "sound"
	switch {
	case len(r.Faults) > 0:
		verdict, a.Code = "NOT SOUND", command.Faults
	case !r.Sound:
		verdict = "no fault until it was interrupted"
	}
	return errors.Join(err, a.Print(r, func(w io.Writer) {
		faultText(w, r.Faults, r.MoreFaults)
		fmt.Fprintf(w, "%s: %d blocks in %d groups on %d devices, %d namespaces, %s of payload read, %.1f s\n",
			verdict, r.Blocks, r.Groups, r.Devices, r.Namespaces, command.Size(r.BytesRead), r.Seconds)
		if r.Devices > 0 && !r.Clean {
			fmt.Fprintln(w, "not closed in order: the next open verifies what was written last")
		}
		if r.Leftovers+int64(r.Pending) > 0 {
			fmt.Fprintf(w, "%d records of blocks that are gone, %d log entries still to be written: the next open sees to "+
				"them\n", r.Leftovers, r.Pending)
		}
		if r.TornLogs > 0 {
			fmt.Fprintf(w, "%d logs have pages that are damaged or were cut off by a crash: what is missing by that is named "+
				"above\n", r.TornLogs)
		}
		if r.Sides+r.StaleSides > 0 {
			fmt.Fprintf(w, "%d layers of clustered contexts have rows in the catalog; %d sets of rows are stale: they are "+
				"made anew from their blocks, or deleted\n", r.Sides, r.StaleSides)
		}
	}))
}

// A cause, as a drive that is gone, has faults by the hundred: of one kind on one drive the first few are printed.
func faultText(w io.Writer, list []store.Fault, more int64) {
	type cause struct{ what, device, do string }
	const few = 3
	seen := map[cause]int{}
	var order []cause
	for i := range list {
		c := cause{list[i].What, list[i].Device, list[i].Do}
		if seen[c]++; seen[c] <= few {
			fmt.Fprintln(w, list[i].String())
		} else if seen[c] == few+1 {
			order = append(order, c)
		}
	}
	for _, c := range order {
		at := c.device
		if at != "" {
			at = " (" + at + ")"
		}
		fmt.Fprintf(w, "%s%s: %d more of these, which --json lists; %s\n", c.what, at, seen[c]-few, c.do)
	}
	if more > 0 {
		fmt.Fprintf(w, "… and %d more\n", more)
	}
}
