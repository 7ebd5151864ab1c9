package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store"
	"github.com/skepkv/skep/tools/internal/command"
	"github.com/skepkv/skep/tools/internal/units"
)

// careFlags are those of the commands that look after a store nobody has open.
type careFlags struct {
	dir        string
	catalogDir string
	paths      []string
	dryRun     bool
	without    bool
	deep       bool
	rate       int64
}

func (f *careFlags) register(cmd *cobra.Command) {
	fl := cmd.Flags()
	fl.StringVar(&f.dir, "dir", "", "directory of the store (required)")
	fl.StringSliceVar(&f.paths, "device", nil, "where the store's devices are, in any order; default: where the catalog says, or device-* in --dir")
	fl.StringVar(&f.catalogDir, "catalog-dir", "", "directory of the catalog; default: catalog in --dir")
}

func (f *careFlags) options(a *app, op string) (store.Options, error) {
	log, err := a.Logger()
	if err != nil {
		return store.Options{}, err
	}
	if f.dir == "" {
		return store.Options{}, skep.Invalidf(op, "--dir", "empty", "the directory of a store")
	}
	if f.rate < 0 {
		return store.Options{}, skep.Invalidf(op, "--rate", f.rate, "0 or more")
	}
	return store.Options{Dir: f.dir, CatalogDir: f.catalogDir, Devices: f.paths, CacheBytes: -1, IOBytes: 64 << 20,
		MustExist: true, WithoutKeys: true, Logger: log}, nil
}

func (a *app) verifyCommand() *cobra.Command {
	f := &careFlags{}
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

func (a *app) verify(ctx context.Context, f *careFlags) error {
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
		fmt.Fprintf(w, "%s: %d blocks in %d groups on %d devices, %d namespaces, %s of payload read, %.1f s\n", verdict, r.Blocks, r.Groups, r.Devices, r.Namespaces, command.Size(r.BytesRead), r.Seconds)
		if r.Devices > 0 && !r.Clean {
			fmt.Fprintln(w, "not closed in order: the next open verifies what was written last")
		}
		if r.Leftovers+int64(r.Pending) > 0 {
			fmt.Fprintf(w, "%d records of blocks that are gone, %d log entries still to be written: the next open sees to them\n", r.Leftovers, r.Pending)
		}
		if r.TornLogs > 0 {
			fmt.Fprintf(w, "%d logs have pages that are damaged or were cut off by a crash: what is missing by that is named above\n", r.TornLogs)
		}
		if r.Sides+r.StaleSides > 0 {
			fmt.Fprintf(w, "%d layers of clustered contexts have rows in the catalog; %d sets of rows are stale: they are made anew from their blocks, or deleted\n", r.Sides, r.StaleSides)
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

func (a *app) rebuildCommand() *cobra.Command {
	f := &careFlags{}
	cmd := &cobra.Command{
		Use:   "rebuild",
		Short: "make a store's catalog anew from its devices",
		Long: `Reads headers and logs of all devices, and the payload of what was written last, and makes a new
catalog. Nothing that was deleted or purged comes back. A catalog that is there is not read; it is kept
beside the new one as catalog.old-TIME. May be cut off at any point and begun again.

A device that is missing or unreadable stops it, unless --without-missing says to go on (--dry-run says what there is
without, with exit code 6): blocks that can be read from
the other devices are kept, the rest are named as lost, and the device is given up for good.`,
		Args: command.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.rebuild(cmd.Context(), f) },
	}
	f.register(cmd)
	cmd.Flags().BoolVar(&f.dryRun, "dry-run", false, "say what would be found, change nothing")
	cmd.Flags().BoolVar(&f.without, "without-missing", false, "give up devices that are missing, and what only they hold")
	return cmd
}

func (a *app) rebuild(ctx context.Context, f *careFlags) error {
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
	if r.DryRun && r.Missing > 0 {
		a.Code = command.Faults
	}
	return a.Print(r, func(w io.Writer) {
		faultText(w, r.Faults, r.MoreFaults)
		what := "rebuilt"
		if r.DryRun {
			what = "would be rebuilt"
		}
		fmt.Fprintf(w, "%s: %d blocks (%s) in %d groups, %d namespaces, from %s of logs on %d devices, %.1f s\n", what, r.Blocks, command.Size(r.BlockBytes), r.Groups, r.Namespaces, command.Size(r.LogBytes), r.Devices, r.Seconds)
		fmt.Fprintf(w, "not taken: %d older, %d deleted, %d purged, %d not whole, %d of unknown namespaces\n", r.Older, r.Deleted, r.Purged, r.Lost, r.Unnamed)
		if r.Missing > 0 {
			switch {
			case r.DryRun && f.without:
				fmt.Fprintln(w, "devices are missing or unreadable: the rebuild goes on without them, and gives them up for good")
			case r.DryRun:
				fmt.Fprintln(w, "devices are missing or unreadable: bring them back, or have the rebuild go on with --without-missing")
			}
			fmt.Fprintf(w, "without %d missing devices: %d blocks known to be lost, %d of them durable; %d kept that may be older than what was lost\n", r.Missing, r.Unreadable, r.Durable, r.MayBeOld)
		}
	})
}

func (a *app) scrubCommand() *cobra.Command {
	f := &careFlags{}
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

func (a *app) scrub(ctx context.Context, f *careFlags) (err error) {
	o, err := f.options(a, "scrub")
	if err != nil {
		return err
	}
	var r store.ScrubReport
	if isServed(ctx, f.dir) {
		r, err = store.AskScrub(ctx, f.dir, store.WorkRequest{Rate: f.rate, DryRun: f.dryRun})
	} else {
		r, err = a.scrubHere(ctx, f, o)
	}
	if err != nil && ctx.Err() == nil {
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
		fmt.Fprintf(w, "%d blocks in %d groups, %s read in %.1f s: %d repaired, %d with a bad copy left, %d %s, %d not delivered, %d headers and %d log entries %s, %d other faults stay\n",
			r.Blocks, r.Groups, command.Size(r.Bytes), r.Seconds, r.Repaired, r.BadCopies, r.Lost, lost, r.Unread, r.Headers, r.LogsMended, mended, r.Unmended)
		if f.dryRun {
			fmt.Fprintln(w, "dry run: nothing was changed")
		}
	}))
}

// scrubHere scrubs a store that nobody has open.
func (a *app) scrubHere(ctx context.Context, f *careFlags, o store.Options) (r store.ScrubReport, err error) {
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
			fmt.Fprintf(a.Err, "%d of %d groups, %d blocks, %s, %s/s\n", r.Groups, r.OfGroups, r.Blocks, command.Size(r.Bytes), command.Size(int64(r.BytesPerSec)))
		}
	}})
}
