package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/skepkv/skep/store"
	"github.com/skepkv/skep/tools/internal/command"
	"github.com/skepkv/skep/tools/internal/units"
)

func (a *app) scrubCommand() *cobra.Command {
	f := &storeFlags{}
	cmd := &cobra.Command{
		Use:   "scrub",
		Short: "read everything a store holds, and mend what is wrong from what is right",
		Long: `Reads every copy of every block, every header, superblock and log. A wrong copy is written again
from another; a block no copy of which is right is forgotten. Exit code 6 when something is lost, or
could not be read or mended. A store that is being served, or is open in another process with its admin
socket, is asked to do it while it is in use; by itself it does so at store.Options.ScrubRate.`,
		Args: command.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.scrub(cmd.Context(), f) },
	}
	f.register(cmd)
	cmd.Flags().BoolVar(&f.dryRun, "dry-run", false, "say what is wrong, change nothing")
	units.RateVar(cmd.Flags(), &f.rate, "rate", 0, "bytes read a second; 0: as fast as it goes")
	return cmd
}

func (a *app) scrub(ctx context.Context, f *storeFlags) (err error) {
	o, err := f.options(a, "scrub")
	if err != nil {
		return err
	}
	served, err := isServed(ctx, f.dir)
	if err != nil {
		return err
	}
	var r store.ScrubReport
	if served {
		r, err = store.AskScrub(ctx, f.dir, store.WorkRequest{Rate: f.rate, DryRun: f.dryRun})
	} else {
		r, err = a.scrubHere(ctx, f, o)
	}
	if err != nil && (ctx.Err() == nil || r.Blocks == 0) {
		return err
	}
	if r.Ill() || f.dryRun && !r.Sound() {
		a.Code = command.Faults
	}
	return errors.Join(err, a.Print(r, func(w io.Writer) {
		faultText(w, r.Faults, r.MoreFaults)
		lost, mended := "lost", "mended"
		if f.dryRun {
			lost, mended = "that would be forgotten", "to be mended"
		}
		fmt.Fprintf(w, "%d blocks in %d groups, %s read in %.1f s: %d repaired, %d with a bad copy left, %d %s, %d not "+
			"delivered, %d headers and %d log entries %s, %d other faults stay\n",
			r.Blocks, r.Groups, command.Size(r.Bytes), r.Seconds, r.Repaired, r.BadCopies, r.Lost, lost, r.Unread, r.Headers,
			r.LogsMended, mended, r.Unmended)
		if f.dryRun {
			fmt.Fprintln(w, "dry run: nothing was changed")
		}
	}))
}

// scrubHere scrubs a store that nobody has open.
func (a *app) scrubHere(ctx context.Context, f *storeFlags, o store.Options) (r store.ScrubReport, err error) {
	o.ReadOnly = f.dryRun
	st, err := store.Open(ctx, o)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, st.Close()) }()
	said := time.Now()
	return st.Scrub(ctx, store.ScrubOptions{Rate: f.rate, DryRun: f.dryRun, Progress: func(r store.ScrubReport) {
		if time.Since(said) > time.Second {
			said = time.Now()
			fmt.Fprintf(a.Err, "%d of %d groups, %d blocks, %s, %s/s\n",
				r.Groups, r.OfGroups, r.Blocks, command.Size(r.Bytes), command.Size(int64(r.BytesPerSec)))
		}
	}})
}
