package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store"
	"github.com/skepkv/skep/tools/internal/inspect"
)

// moveFlags are what all commands that move blocks have.
type moveFlags struct {
	dir      string
	rate     int64
	capacity int64
	dryRun   bool
}

func (f *moveFlags) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.dir, "dir", "", "directory of the store (required)")
	cmd.Flags().Int64Var(&f.rate, "rate", 0, "bytes a second to move at most; 0: as fast as the drives go")
	cmd.Flags().Int64Var(&f.capacity, "capacity-bytes", 0, "how large all file devices together may become; 0: they stay as they are")
	cmd.Flags().BoolVar(&f.dryRun, "dry-run", false, "say what would be done, and change nothing")
}

// options are those of a store opened to have blocks moved: nothing else is asked of it.
func (f *moveFlags) options(a *app) (store.Options, error) {
	log, err := a.logger()
	if err != nil {
		return store.Options{}, err
	}
	if f.dir == "" {
		return store.Options{}, skep.Invalidf("skep", "--dir", "empty", "the directory of a store")
	}
	if f.rate < 0 {
		return store.Options{}, skep.Invalidf("skep", "--rate", f.rate, "0 or more")
	}
	o := store.Options{Dir: f.dir, CapacityBytes: max(1, f.capacity), LeasedBytes: 64 << 30, CacheBytes: -1, Logger: log, NoRebalance: true, MustExist: true}
	return o, nil
}

// progress prints how far a task is, at most once a second.
func (a *app) progress() func(store.Progress) {
	var last time.Time
	return func(p store.Progress) {
		if time.Since(last) < time.Second {
			return
		}
		last = time.Now()
		of := ""
		if p.Groups > 0 {
			of = fmt.Sprintf(" of %d", p.Groups)
		}
		fmt.Fprintf(a.err, "%s: %d%s groups, %d blocks, %s, %.0f s\n", p.Task, p.GroupsDone, of, p.Blocks, size(p.Bytes), p.Seconds)
	}
}

func (f *moveFlags) moves(a *app) store.MoveOptions {
	return store.MoveOptions{Rate: f.rate, DryRun: f.dryRun, Progress: a.progress()}
}

func (a *app) compactCommand() *cobra.Command {
	f := moveFlags{}
	cmd := &cobra.Command{
		Use:   "compact",
		Short: "write groups with holes and scattered chains again, in order",
		Long: `Chooses the groups of which most is gained for what is moved, writes what lives in them again in the
order of its chains, and frees them. Nothing is dropped. A store does as much of it by itself as pays.
Nobody else may have the store open.`,
		Args: noArgs,
	}
	f.add(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) (err error) {
		o, err := f.options(a)
		if err != nil {
			return err
		}
		s, err := store.Open(cmd.Context(), o)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, s.Close()) }()
		r, err := s.Compact(cmd.Context(), f.moves(a))
		if err != nil {
			return err
		}
		return a.print(r, func(w io.Writer) {
			done := "moved"
			if r.DryRun {
				done = "would move"
			}
			table(w,
				row("groups chosen", fmt.Sprintf("%d, %.0f %% of them alive, %.0f %% of their links between blocks broken", r.Groups, 100*r.LiveShare, 100*r.Disorder)),
				row(done, fmt.Sprintf("%d blocks, %s in %.1f s", r.Blocks, size(r.Bytes), r.Seconds)),
				row("groups freed", r.GroupsFreed),
				row("free groups", fmt.Sprintf("%d before, %d after", r.FreeBefore, r.FreeAfter)),
				row("broken links left", fmt.Sprintf("%.0f %%", 100*r.DisorderLeft)),
			)
			if r.OutOfRoom {
				fmt.Fprintln(w, "\nended early: no free group to write to; delete something, or give the store more room")
			}
		})
	}
	return cmd
}

// deviceResult is what skep device add, remove, replace and drain print.
type deviceResult struct {
	Action     string         `json:"action"`
	Device     string         `json:"device"` // that was drained or removed
	Added      string         `json:"added"`  // path of the device that was added
	DryRun     bool           `json:"dry_run"`
	Served     bool           `json:"served"`     // it was changed while it was in use
	Moved      store.Progress `json:"moved"`      // off the device
	Rebalanced store.Progress `json:"rebalanced"` // onto the one added
}

func (a *app) deviceCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "device",
		Short: "list a store's drives, add one, take one out",
		Long: `A store knows its drives by what is written on them, not by their names. A store that is being served, or is
open in another process with its admin socket, is changed while it is in use; no other process may have one
without. What a command began goes on by itself, or at the next open, if it is interrupted.`,
		Args: noArgs,
		RunE: needsSubcommand,
	}
	cmd.AddCommand(a.deviceList(), a.deviceAdd(), a.deviceTake("remove NAME", "drain a drive and take it out for good", 1),
		a.deviceTake("replace OLD NEW", "add a drive, drain another and take it out", 2), a.deviceTake("drain NAME", "move everything off a drive; it stays, and takes nothing new", 1))
	return cmd
}

func (a *app) deviceList() *cobra.Command {
	var dir string
	cmd := &cobra.Command{Use: "list", Short: "the drives: where they are, their serial numbers, how full", Args: noArgs}
	cmd.Flags().StringVar(&dir, "dir", "", "directory of the store (required)")
	cmd.RunE = func(cmd *cobra.Command, _ []string) (err error) {
		log, err := a.logger()
		if err != nil {
			return err
		}
		v, err := inspect.Open(dir, log)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, v.Close()) }()
		r, err := v.Devices(cmd.Context())
		if err != nil {
			return err
		}
		return a.print(r, func(w io.Writer) {
			rows := [][]string{row("device", "id", "serial", "state", "size", "in use", "path", "problem")}
			for _, d := range r.Devices {
				state := d.State
				if !d.Present && d.State != "removed" {
					state = "MISSING"
				}
				rows = append(rows, row(d.Index, d.ID[:min(12, len(d.ID))], d.Serial, state, size(d.SizeBytes), fmt.Sprintf("%d of %d", d.InUse, d.Segments), d.Path, d.Problem))
			}
			table(w, rows...)
		})
	}
	return cmd
}

func (a *app) deviceAdd() *cobra.Command {
	f := moveFlags{}
	var bytes int64
	wait := true
	cmd := &cobra.Command{Use: "add PATH", Short: "add a drive: a file to be made, or a blank block device", Args: exactly(1)}
	f.add(cmd)
	cmd.Flags().Int64Var(&bytes, "bytes", 0, "size of a file device; 0: as large as the store's smallest")
	cmd.Flags().BoolVar(&wait, "rebalance", true, "spread what is stored over the new drive before returning; otherwise the store does so while it is in use")
	cmd.RunE = func(cmd *cobra.Command, args []string) (err error) {
		r := deviceResult{Action: "add", Added: args[0], DryRun: f.dryRun}
		if f.served(cmd.Context()) && !f.dryRun {
			r.Served = true
			_, err := f.ask(cmd.Context(), store.DeviceRequest{Action: "add", Path: args[0], Bytes: bytes})
			if err == nil && wait {
				r.Rebalanced, err = f.ask(cmd.Context(), store.DeviceRequest{Action: "rebalance"})
			}
			if err != nil {
				return err
			}
			return a.printDevice(r)
		}
		if err := a.withAdded(cmd.Context(), &f, args[0], bytes, func(s *store.Store) (err error) {
			if wait {
				r.Rebalanced, err = s.Rebalance(cmd.Context(), f.moves(a))
			}
			return err
		}); err != nil {
			return err
		}
		return a.printDevice(r)
	}
	return cmd
}

// withAdded opens the store with one more device, unless it is a dry run, which only
// checks.
func (a *app) withAdded(ctx context.Context, f *moveFlags, path string, bytes int64, use func(s *store.Store) error) (err error) {
	o, err := f.options(a)
	if err != nil {
		return err
	}
	if f.dryRun {
		if st, err := os.Stat(path); err == nil && st.Mode().IsRegular() {
			return &skep.Error{Op: "add device", Kind: skep.Foreign, Field: path, Value: "a file that is there already", Limit: "absent"}
		}
		return nil
	}
	s, err := store.AddDevices(ctx, o, store.NewDevice{Path: path, Bytes: bytes})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	return use(s)
}

// deviceTake makes the commands that empty a drive.
func (a *app) deviceTake(use, short string, args int) *cobra.Command {
	f := moveFlags{}
	var force bool
	var bytes int64
	cmd := &cobra.Command{Use: use, Short: short, Args: exactly(args)}
	f.add(cmd)
	action := cmd.Name()
	if action != "drain" {
		cmd.Flags().BoolVar(&force, "force", false, "give durable blocks up that no drive can give any more")
	}
	if action == "replace" {
		cmd.Flags().Int64Var(&bytes, "bytes", 0, "size of a new file device; 0: as large as the store's smallest")
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		ctx := cmd.Context()
		r := deviceResult{Action: action, Device: args[0], DryRun: f.dryRun}
		take := func(s *store.Store) (err error) {
			m := f.moves(a)
			m.Force = force
			if action == "drain" {
				r.Moved, err = s.DrainDevice(ctx, args[0], m)
			} else {
				r.Moved, err = s.RemoveDevice(ctx, args[0], m)
			}
			return err
		}
		if action == "replace" {
			r.Added = args[1]
		}
		if f.served(ctx) {
			return a.takeServed(ctx, &f, &r, bytes, force)
		}
		if action == "replace" {
			if f.dryRun {
				if err := a.withAdded(ctx, &f, args[1], bytes, nil); err != nil {
					return err
				}
			} else if err := a.withAdded(ctx, &f, args[1], bytes, take); err != nil {
				return err
			} else {
				return a.printDevice(r)
			}
		}
		if err := a.withStore(ctx, &f, take); err != nil {
			return err
		}
		return a.printDevice(r)
	}
	return cmd
}

// served says whether the store is open with its admin socket.
func (f *moveFlags) served(ctx context.Context) bool {
	return f.dir != "" && store.AskAdmin(ctx, f.dir, "options", &map[string]any{}) == nil
}

// ask has the process that has the store open do something. Paths are ours, not its.
func (f *moveFlags) ask(ctx context.Context, r store.DeviceRequest) (p store.Progress, err error) {
	r.Rate, r.DryRun = f.rate, f.dryRun
	if r.Path != "" {
		if r.Path, err = filepath.Abs(r.Path); err != nil {
			return p, err
		}
	}
	return store.AskDevice(ctx, f.dir, r)
}

// takeServed is what deviceTake makes, for a store that is in use.
func (a *app) takeServed(ctx context.Context, f *moveFlags, r *deviceResult, bytes int64, force bool) (err error) {
	r.Served = true
	if r.Action == "replace" && !f.dryRun {
		if _, err := f.ask(ctx, store.DeviceRequest{Action: "add", Path: r.Added, Bytes: bytes}); err != nil {
			return err
		}
	}
	action := r.Action
	if action == "replace" {
		action = "remove"
	}
	if r.Moved, err = f.ask(ctx, store.DeviceRequest{Action: action, Device: r.Device, Force: force}); err != nil {
		return err
	}
	return a.printDevice(*r)
}

func (a *app) withStore(ctx context.Context, f *moveFlags, use func(s *store.Store) error) (err error) {
	o, err := f.options(a)
	if err != nil {
		return err
	}
	s, err := store.Open(ctx, o)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	return use(s)
}

func (a *app) printDevice(r deviceResult) error {
	return a.print(r, func(w io.Writer) {
		would := ""
		if r.DryRun {
			would = " (dry run: nothing was changed)"
		}
		if r.Served {
			would += " (of a store in use)"
		}
		rows := [][]string{row("action", r.Action+would)}
		if r.Added != "" {
			rows = append(rows, row("added", r.Added))
		}
		if r.Device != "" {
			rows = append(rows, row("device", r.Device), row("moved off it", movedText(r.Moved)))
		}
		if r.Rebalanced.Task != "" {
			rows = append(rows, row("moved onto it", movedText(r.Rebalanced)))
		}
		table(w, rows...)
	})
}

func movedText(p store.Progress) string {
	text := fmt.Sprintf("%d blocks, %s of %d groups in %.1f s", p.Blocks, size(p.Bytes), max(p.Groups, p.GroupsDone), p.Seconds)
	if p.Unreadable > 0 {
		text += fmt.Sprintf("; %d blocks could not be read", p.Unreadable)
	}
	return text
}

// exactly refuses another number of arguments.
func exactly(n int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) == n {
			return nil
		}
		return &usageError{fmt.Errorf("%s needs %d arguments, not %d", cmd.CommandPath(), n, len(args)), cmd.CommandPath() + " --help"}
	}
}
