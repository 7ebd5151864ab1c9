package cli

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/skepkv/skep/store"
	"github.com/skepkv/skep/tools/internal/command"
)

func (a *app) rebuildCommand() *cobra.Command {
	f := &storeFlags{}
	cmd := &cobra.Command{
		Use:   "rebuild",
		Short: "make a store's catalog anew from its devices",
		Long: `Reads headers and logs of all devices, and the payload of what was written last, and makes a new
catalog. Nothing that was deleted or purged comes back. A catalog that is there is not read; it is kept
beside the new one as catalog.old-TIME. May be cut off at any point and begun again.

A device that is missing or unreadable stops it, unless --without-missing says to go on (--dry-run says what there is
without): blocks that can be read from the other devices are kept, the rest are named as lost, and the device is given
up for good. Exit code 6 of a --dry-run: a device is missing, or faults were found, and are named.`,
		Args: command.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.rebuild(cmd.Context(), f) },
	}
	f.register(cmd)
	cmd.Flags().BoolVar(&f.dryRun, "dry-run", false, "say what would be found, change nothing")
	cmd.Flags().BoolVar(&f.without, "without-missing", false, "give up devices that are missing, and what only they hold")
	return cmd
}

func (a *app) rebuild(ctx context.Context, f *storeFlags) error {
	o, err := f.options(a, "rebuild")
	if err != nil {
		return err
	}
	if f.without {
		o.Degraded = store.DegradedAlways
	}
	said := time.Now()
	r, err := store.Rebuild(ctx, o, f.dryRun, func(p store.RebuildProgress) {
		if time.Since(said) > time.Second {
			said = time.Now()
			fmt.Fprintf(a.Err, "%s: %d of %d, %d records\n", p.Stage, p.Done, p.Of, p.Records)
		}
	})
	if err != nil {
		return err
	}
	if r.DryRun && (r.Missing > 0 || len(r.Faults) > 0) {
		a.Code = command.Faults
	}
	return a.Print(r, func(w io.Writer) {
		faultText(w, r.Faults, r.MoreFaults)
		what := "rebuilt"
		if r.DryRun {
			what = "would be rebuilt"
		}
		fmt.Fprintf(w, "%s: %d blocks (%s) in %d groups, %d namespaces, from %s of logs on %d devices, %.1f s\n",
			what, r.Blocks, command.Size(r.BlockBytes), r.Groups, r.Namespaces, command.Size(r.LogBytes), r.Devices, r.Seconds)
		fmt.Fprintf(w, "not taken: %d older, %d deleted, %d purged, %d not whole, %d of unknown namespaces\n",
			r.Older, r.Deleted, r.Purged, r.Lost, r.Unnamed)
		if r.Missing > 0 {
			switch {
			case r.DryRun && f.without:
				fmt.Fprintln(w, "devices are missing or unreadable: the rebuild goes on without them, and gives them up for good")
			case r.DryRun:
				fmt.Fprintln(w, "devices are missing or unreadable: bring them back, or have the rebuild go on with "+
					"--without-missing")
			}
			fmt.Fprintf(w, "without %d missing devices: %d blocks known to be lost, %d of them durable; %d kept that may be "+
				"older than what was lost\n", r.Missing, r.Unreadable, r.Durable, r.MayBeOld)
		}
	})
}
