package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store"
	"github.com/skepkv/skep/tools/internal/command"
	"github.com/skepkv/skep/tools/internal/inspect"
	"github.com/skepkv/skep/tools/internal/units"
)

// moveFlags are what all commands that move blocks have.
type moveFlags struct {
	dir      string
	rate     int64
	capacity int64
	dryRun   bool
	force    bool // a drive that is missing is given up with what only it holds
	smaller  bool // with a drive that is added all may hold less
}

func (f *moveFlags) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.dir, "dir", "", "directory of the store (required)")
	units.RateVar(cmd.Flags(), &f.rate, "rate", 0, "bytes a second to move at most; 0: as fast as the drives go")
	units.SizeVar(cmd.Flags(), &f.capacity, "capacity", 0, "cap on all file devices together, from now on; 0: the one that the store has", "capacity-bytes")
	cmd.Flags().BoolVar(&f.dryRun, "dry-run", false, "say what would be done, and change nothing")
}

// addNew is for commands that add a drive.
func (f *moveFlags) addNew(cmd *cobra.Command, bytes *int64, what string) {
	units.SizeVar(cmd.Flags(), bytes, "size", 0, "size of "+what+" file device; 0: as large as the store's smallest", "bytes")
	cmd.Flags().BoolVar(&f.smaller, "smaller", false, "take a drive with which all together hold less: "+
		"each counts as much as the smallest")
}

// options are those of a store opened to have blocks moved: nothing else is asked of it.
func (f *moveFlags) options(a *app) (store.Options, error) {
	log, err := a.Logger()
	if err != nil {
		return store.Options{}, err
	}
	if f.dir == "" {
		return store.Options{}, skep.Invalidf("skep", "--dir", "empty", "the directory of a store")
	}
	if f.rate < 0 {
		return store.Options{}, skep.Invalidf("skep", "--rate", f.rate, "0 or more")
	}
	o := store.Options{Dir: f.dir, CapacityBytes: f.capacity, ChangeCapacity: f.capacity > 0, LeasedBytes: 64 << 30,
		CacheBytes: -1, Logger: log, NoRebalance: true, MustExist: true, WithoutKeys: true, ReadOnly: f.dryRun}
	if f.force {
		o.Degraded, o.NoRebuild = store.DegradedAlways, true // it would give up all drives that are away, and for good
	}
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
		fmt.Fprintf(a.Err, "%s: %d%s groups, %d blocks, %s, %.0f s\n", p.Task, p.GroupsDone, of, p.Blocks, command.Size(p.Bytes), p.Seconds)
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
One that is being served, or is open in another process with its admin socket, is asked to do it while it
is in use; nobody else may have a store open without.`,
		Args: command.NoArgs,
	}
	f.add(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) (err error) {
		r, err := a.compact(cmd.Context(), &f)
		if err != nil && (cmd.Context().Err() == nil || r.Groups == 0) {
			return err
		}
		return errors.Join(err, a.Print(r, func(w io.Writer) {
			done := "moved"
			if r.DryRun {
				done = "would move"
			}
			command.Table(w,
				command.Row("groups chosen", fmt.Sprintf("%d, %.0f %% of them alive, %.0f %% of their links between blocks broken", r.Groups, 100*r.LiveShare, 100*r.Disorder)),
				command.Row(done, fmt.Sprintf("%d blocks, %s in %.1f s", r.Blocks, command.Size(r.Bytes), r.Seconds)),
				command.Row("groups freed", r.GroupsFreed),
				command.Row("free groups", fmt.Sprintf("%d before, %d after", r.FreeBefore, r.FreeAfter)),
				command.Row("broken links left", fmt.Sprintf("%.0f %%", 100*r.DisorderLeft)),
			)
			if r.OutOfRoom {
				fmt.Fprintln(w, "\nended early: no free group to write to; delete something, or give the store more room")
			}
		}))
	}
	return cmd
}

// compact has a store compacted by who has it open, or opens it.
func (a *app) compact(ctx context.Context, f *moveFlags) (r store.CompactResult, err error) {
	o, err := f.options(a)
	if err != nil {
		return r, err
	}
	served, err := f.served(ctx)
	if err != nil {
		return r, err
	}
	if served {
		r, err = store.AskCompact(ctx, f.dir, store.WorkRequest{Rate: f.rate, DryRun: f.dryRun})
		if err != nil && ctx.Err() != nil {
			err = command.WithNext(err, "what is moved is moved, and the store in use gives up the rest until it is asked again")
		}
		return r, err
	}
	err = a.withStore(ctx, f, o, func(s *store.Store) (err error) {
		r, err = s.Compact(ctx, f.moves(a))
		return err
	})
	return r, err
}

// deviceResult is what skep device add, remove, replace and drain print.
type deviceResult struct {
	Action string `json:"action"` // add, drain, keep (drain --cancel), remove or replace
	Device string `json:"device"` // the drive that was emptied, as it was named
	Added  string `json:"added"`  // path of the drive that was added
	// what a dry run finds there: file, which is to be made, or block device; empty: it was not looked at
	Kind       string         `json:"kind"`
	Bytes      int64          `json:"bytes"`      // its size, of a dry run (bytes)
	Serial     string         `json:"serial"`     // its serial number, of a dry run, where the system knows it
	DryRun     bool           `json:"dry_run"`    // nothing was changed
	Served     bool           `json:"served"`     // the store was changed while it was in use
	Moved      store.Progress `json:"moved"`      // what was moved off the drive
	Rebalanced store.Progress `json:"rebalanced"` // what was moved onto the one added
	// of a store in use, whose settings name devices (--device, SKEP_DEVICES) that are not those it has now:
	// paths of those it has, to be named from now on where devices is not left out; empty: there is nothing to change
	Settings []string `json:"settings"`
}

// toName are the paths of the devices of the store that is open in dir, where it was told to open others.
func toName(ctx context.Context, dir string) []string {
	var has skep.Stats
	if store.AskAdmin(ctx, dir, "stats", &has) != nil || has.ToName == nil {
		return []string{} // what was done was done: the server's log tells it, too
	}
	return has.ToName
}

func (a *app) deviceCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "device",
		Short: "list a store's drives, add one, take one out",
		Long: `A store knows its drives by what is written on them, not by their names. A store that is being served, or is
open in another process with its admin socket, is changed while it is in use; no other process may have one
without. What a command began goes on by itself, or at the next open, if it is interrupted.`,
		Args: command.NoArgs,
		RunE: command.NeedsSubcommand,
	}
	cmd.AddCommand(a.deviceList(), a.deviceAdd(), a.deviceTake("remove NAME", "drain a drive and take it out for good", 1),
		a.deviceTake("replace OLD NEW", "add a drive, drain another and take it out", 2), a.deviceTake("drain NAME", "move everything off a drive; it stays, and takes nothing new", 1))
	return cmd
}

func (a *app) deviceList() *cobra.Command {
	var dir string
	cmd := &cobra.Command{Use: "list", Short: "the drives: where they are, their serial numbers, how full", Args: command.NoArgs}
	cmd.Flags().StringVar(&dir, "dir", "", "directory of the store (required)")
	cmd.RunE = func(cmd *cobra.Command, _ []string) (err error) {
		log, err := a.Logger()
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
		return a.Print(r, func(w io.Writer) {
			rows := [][]string{command.Row("device", "id", "serial", "state", "size", "in use", "path", "problem")}
			for _, d := range r.Devices {
				state := d.State
				if !d.Present && d.State != "removed" {
					state = "MISSING"
				}
				used := fmt.Sprintf("%d of %d", d.InUse, d.Segments)
				if d.State == "removed" {
					used = "" // nothing of it is the store's
				}
				rows = append(rows, command.Row(d.Index, d.ID[:min(12, len(d.ID))], d.Serial, state, command.Size(d.SizeBytes), used, d.Path, d.Problem))
			}
			command.Table(w, rows...)
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
	f.addNew(cmd, &bytes, "a")
	cmd.Flags().BoolVar(&wait, "rebalance", true, "spread what is stored over the new drive before returning; otherwise the store does so while it is in use")
	cmd.RunE = func(cmd *cobra.Command, args []string) (err error) {
		r := deviceResult{Action: "add", Added: args[0], DryRun: f.dryRun}
		served, err := f.served(cmd.Context())
		if err != nil {
			return err
		}
		if served && !f.dryRun {
			r.Served = true
			_, err := f.ask(cmd.Context(), store.DeviceRequest{Action: "add", Path: args[0], Bytes: bytes, Smaller: f.smaller})
			if err == nil && wait {
				r.Rebalanced, err = f.ask(cmd.Context(), store.DeviceRequest{Action: "rebalance"})
				err = wasAdded(err, args[0])
			}
			return a.deviceEnds(cmd.Context(), &f, r, err)
		}
		if err := a.withAdded(cmd.Context(), &f, args[0], bytes, &r, func(s *store.Store) (err error) {
			if wait && !f.dryRun {
				r.Rebalanced, err = s.Rebalance(cmd.Context(), f.moves(a))
			}
			return wasAdded(err, args[0])
		}); err != nil {
			return a.deviceEnds(cmd.Context(), &f, r, err)
		}
		return a.deviceEnds(cmd.Context(), &f, r, nil)
	}
	return cmd
}

// withAdded opens the store with one more device, unless it is a dry run, which only
// looks, and says in r what it is.
func (a *app) withAdded(ctx context.Context, f *moveFlags, path string, bytes int64, r *deviceResult, use func(s *store.Store) error) (err error) {
	o, err := f.options(a)
	if err != nil {
		return err
	}
	if f.dryRun {
		return a.withStore(ctx, f, o, func(s *store.Store) error {
			c, err := s.LookAtDevice(ctx, store.NewDevice{Path: path, Bytes: bytes, Smaller: f.smaller})
			if err != nil {
				return err
			}
			r.Kind, r.Bytes, r.Serial = c.Kind, c.Bytes, c.Serial
			return use(s)
		})
	}
	s, err := store.AddDevices(ctx, o, store.NewDevice{Path: path, Bytes: bytes, Smaller: f.smaller})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	return use(s)
}

// deviceTake makes the commands that empty a drive.
func (a *app) deviceTake(use, short string, args int) *cobra.Command {
	f := moveFlags{}
	var cancel bool
	var bytes int64
	cmd := &cobra.Command{Use: use, Short: short, Args: exactly(args)}
	f.add(cmd)
	action := cmd.Name()
	if action != "drain" {
		cmd.Flags().BoolVar(&f.force, "force", false, "give durable blocks up that no drive can give any more")
	}
	if action == "drain" {
		cmd.Flags().BoolVar(&cancel, "cancel", false, "take a drain back: the drive is used again")
	}
	if action == "replace" {
		f.addNew(cmd, &bytes, "a new")
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		ctx := cmd.Context()
		if cancel {
			if f.dryRun {
				return skep.Invalidf("drain device", "--cancel", "with --dry-run", "one of the two")
			}
			action = "keep"
		}
		r := deviceResult{Action: action, Device: args[0], DryRun: f.dryRun}
		take := func(s *store.Store) (err error) {
			m := f.moves(a)
			m.Force = f.force
			switch {
			case cancel:
				err = s.KeepDevice(ctx, args[0])
			case action == "drain":
				r.Moved, err = s.DrainDevice(ctx, args[0], m)
			case action == "replace":
				r.Moved, err = s.ReplaceDevice(ctx, args[0], store.NewDevice{Path: args[1], Bytes: bytes, Smaller: f.smaller}, m)
			default:
				r.Moved, err = s.RemoveDevice(ctx, args[0], m)
			}
			return err
		}
		if action == "replace" {
			r.Added = args[1]
		}
		served, err := f.served(ctx)
		if err != nil {
			return err
		}
		if served {
			return a.takeServed(ctx, &f, &r, bytes)
		}
		if action == "replace" && f.dryRun {
			return a.deviceEnds(ctx, &f, r, a.withAdded(ctx, &f, args[1], bytes, &r, take))
		}
		o, err := f.options(a)
		if err == nil {
			err = a.withStore(ctx, &f, o, take)
		}
		return a.deviceEnds(ctx, &f, r, err)
	}
	return cmd
}

// isServed says whether the store in dir is open with its admin socket. Error: who has it open does not answer.
func isServed(ctx context.Context, dir string) (bool, error) {
	if dir == "" {
		return false, nil
	}
	err := store.AskAdmin(ctx, dir, "options", &map[string]any{})
	if skep.KindOf(err) == skep.Deadline {
		return false, command.WithNext(err, "a process has the store open and does not answer: try again when it has less "+
			"to do, or end it")
	}
	return err == nil || skep.KindOf(err) == skep.Overloaded, nil // it is there, and busy: what is asked of it says so
}

// served is isServed, and refuses what only a store that is opened anew can be given.
func (f *moveFlags) served(ctx context.Context) (bool, error) {
	if is, err := isServed(ctx, f.dir); !is {
		return false, err
	}
	if f.capacity > 0 {
		err := skep.Invalidf("skep", "--capacity", command.Size(f.capacity), "unset: the store is in use")
		return true, command.WithNext(err,
			"stop the server and give it here then, or start the server with it and --change-capacity")
	}
	return true, nil
}

// ask has the process that has the store open do something. Paths are ours, not its.
func (f *moveFlags) ask(ctx context.Context, r store.DeviceRequest) (p store.Progress, err error) {
	r.Rate, r.DryRun = f.rate, f.dryRun
	if r.Path != "" {
		if r.Path, err = filepath.Abs(r.Path); err != nil {
			return p, err
		}
	}
	p, err = store.AskDevice(ctx, f.dir, r)
	if err != nil && ctx.Err() != nil {
		err = command.WithNext(err, "what was begun goes on in the store that is in use: skep device list --dir "+f.dir+
			" says how its drives stand")
	}
	return p, err
}

// wasAdded has an error say that the drive is the store's, though what was to follow failed.
func wasAdded(err error, path string) error {
	return command.WithNext(err, path+" was added, and is not to be added again; what is stored spreads over it while the "+
		"store is in use")
}

// takeServed is what deviceTake makes, for a store that is in use.
func (a *app) takeServed(ctx context.Context, f *moveFlags, r *deviceResult, bytes int64) (err error) {
	r.Served = true
	if r.Action == "replace" && f.dryRun { // a catalog is read beside the process that has it open
		if err := a.withAdded(ctx, f, r.Added, bytes, r, func(*store.Store) error { return nil }); err != nil {
			return err
		}
	}
	ask := store.DeviceRequest{Action: r.Action, Device: r.Device, Force: f.force}
	if r.Action == "replace" {
		ask.Path, ask.Bytes, ask.Smaller = r.Added, bytes, f.smaller
	}
	r.Moved, err = f.ask(ctx, ask)
	return a.deviceEnds(ctx, f, *r, err)
}

// deviceEnds prints what was done, of what was interrupted as far as it came.
func (a *app) deviceEnds(ctx context.Context, f *moveFlags, r deviceResult, err error) error {
	if err != nil && (ctx.Err() == nil || r.Moved.Task == "" && r.Rebalanced.Task == "") {
		return err
	}
	r.Settings = []string{}
	if r.Served && !r.DryRun {
		r.Settings = toName(ctx, f.dir)
	}
	return errors.Join(err, a.printDevice(r))
}

func (a *app) withStore(ctx context.Context, f *moveFlags, o store.Options, use func(s *store.Store) error) (err error) {
	s, err := store.Open(ctx, o)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	return use(s)
}

func (a *app) printDevice(r deviceResult) error {
	return a.Print(r, func(w io.Writer) {
		would := ""
		if r.DryRun {
			would = " (dry run: nothing was changed)"
		}
		if r.Served {
			would += " (of a store in use)"
		}
		rows := [][]string{command.Row("action", r.Action+would)}
		if r.Added != "" {
			rows = append(rows, command.Row("added", r.Added))
		}
		if r.Kind != "" {
			what := r.Kind + ", " + command.Size(r.Bytes)
			if r.Serial != "" {
				what += ", serial " + r.Serial
			}
			rows = append(rows, command.Row("which is a", what))
		}
		if r.Device != "" {
			rows = append(rows, command.Row("device", r.Device), command.Row("moved off it", movedText(r.Moved)))
		}
		if r.Rebalanced.Task != "" {
			rows = append(rows, command.Row("moved onto it", movedText(r.Rebalanced)))
		}
		command.Table(w, rows...)
		if len(r.Settings) > 0 {
			fmt.Fprintf(w, "\nthe server was told to open other devices: before it starts again, %s\n",
				command.NameDevices(r.Settings))
		}
	})
}

func movedText(p store.Progress) string {
	text := fmt.Sprintf("%d blocks, %s of %d groups in %.1f s", p.Blocks, command.Size(p.Bytes), max(p.Groups, p.GroupsDone), p.Seconds)
	if p.Unreadable > 0 {
		text += fmt.Sprintf("; %d blocks could not be read", p.Unreadable)
	}
	if p.GivenUp > 0 {
		text += fmt.Sprintf(", %d of them durable", p.GivenUp)
	}
	if p.Evicted > 0 {
		text += fmt.Sprintf("; %d Cache blocks were dropped meanwhile to make room", p.Evicted)
	}
	if rest := p.Found - p.Blocks - p.Unreadable - p.Evicted; rest > 0 {
		text += fmt.Sprintf("; %d more of the %d that were there were moved by garbage collection, or deleted, meanwhile",
			rest, p.Found)
	}
	return text
}

// exactly refuses another number of arguments.
func exactly(n int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) == n {
			return nil
		}
		return command.Usage(cmd, fmt.Errorf("%s needs %d arguments, not %d", cmd.CommandPath(), n, len(args)), cmd.CommandPath()+" --help")
	}
}
