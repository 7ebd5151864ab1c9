package store

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/device"
	"github.com/skepkv/skep/store/segment"
)

// What an open finds where there is no catalog: nothing, the beginnings of a store whose
// making was cut off, or a store that has lost its catalog.

// creating is the file that lists, while a store is made, the device files made for it.
// Who finds it beside no catalog may remove them: nothing was ever put.
const creatingName = "CREATING"

func (s *Store) creatingPath() string { return filepath.Join(s.options.Dir, creatingName) }

// beginCreating notes which of paths are about to be made.
func (s *Store) beginCreating(paths []string) error {
	if s.options.customDevices {
		return nil
	}
	var fresh []string
	for _, p := range paths {
		if _, err := os.Stat(p); errors.Is(err, fs.ErrNotExist) {
			abs, err := filepath.Abs(p)
			if err != nil {
				return err
			}
			fresh = append(fresh, abs)
		}
	}
	b, err := json.Marshal(fresh)
	if err != nil {
		return err
	}
	s.made = append(s.made, s.creatingPath())
	f, err := os.Create(s.creatingPath())
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	return errors.Join(err, f.Sync(), f.Close(), syncPath(s.options.Dir))
}

// syncPath makes a directory's entries durable; not every system can.
func syncPath(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	_ = d.Sync()
	return d.Close()
}

func (s *Store) endCreating() {
	if err := os.Remove(s.creatingPath()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		s.log.Warn("left behind", "path", s.creatingPath(), "error", err)
	}
}

// undoCreating removes what a making that was cut off has made.
func (s *Store) undoCreating() error {
	b, err := os.ReadFile(s.creatingPath())
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var paths []string
	if json.Unmarshal(b, &paths) != nil {
		paths = nil // cut off itself: nothing was made yet
	}
	for _, p := range paths {
		st, err := os.Lstat(p)
		if err != nil || !st.Mode().IsRegular() {
			continue
		}
		s.log.Warn("the making of a store was cut off here; its device file is removed and made anew", "path", p)
		if err := os.Remove(p); err != nil {
			return err
		}
	}
	s.endCreating()
	return nil
}

// resume deals with what is there although there is no catalog. It says whether the
// catalog was rebuilt; else a store is to be made.
func (s *Store) resume(ctx context.Context) (rebuilt bool, err error) {
	o := &s.options
	if o.customDevices {
		return false, nil
	}
	if err := s.undoCreating(); err != nil {
		return false, &skep.Error{Op: "open store", Kind: skep.Other, Field: "what was left of its making", Value: s.creatingPath(), Err: err}
	}
	paths, err := s.devicePaths()
	if err != nil {
		return false, err
	}
	ours := 0
	for _, p := range paths {
		if _, err := peekSuperblock(p); err == nil || skep.KindOf(err) == skep.Version {
			ours++
		}
	}
	if ours == 0 {
		return false, nil // whether what is there is in the way, create says
	}
	if o.NoRebuild {
		return false, &skep.Error{Op: "open store", Kind: skep.Missing, Field: "catalog", Value: o.catalogDir(),
			Limit: "present: the devices hold a store; bring it back, or have it rebuilt from them"}
	}
	if err := s.findDrives(ctx); err != nil {
		return false, err
	}
	if empty, err := s.unused(ctx); empty || err != nil {
		return false, errors.Join(err, s.vacate(ctx))
	}
	s.log.Error("the catalog is lost; rebuilding it from the devices", "catalog", o.catalogDir(), "devices", len(s.drives))
	r := newRebuilder(s, func(p RebuildProgress) {
		s.log.Info("rebuilding the catalog", "stage", p.Stage, "done", p.Done, "of", p.Of, "records", p.Records)
	})
	if err := r.run(ctx); err != nil {
		return false, err
	}
	s.log.Warn("the catalog is rebuilt", "blocks", r.rep.Blocks, "lost", r.rep.Lost, "faults", len(r.rep.Faults))
	for _, f := range r.rep.Faults {
		s.log.Warn("found while rebuilding", "fault", f.String())
	}
	s.forgetLoaded()
	return true, nil
}

// forgetLoaded closes what a rebuild used, so that the open that follows begins anew.
func (s *Store) forgetLoaded() {
	for _, d := range s.drives {
		_ = d.dev.Close()
	}
	s.drives = nil
	s.space.mu.groups = map[uint32]*group{}
	s.seq.Store(0)
}

// unused says whether no segment of the drives was ever opened.
func (s *Store) unused(ctx context.Context) (bool, error) {
	for _, d := range s.drives {
		all := make([]uint32, d.segments)
		for i := range all {
			all[i] = uint32(i)
		}
		used := make(chan error, d.segments)
		s.readHeaders(ctx, d, all, func(_ uint32, _ *segment.Header, err error) {
			if skep.KindOf(err) != skep.Foreign || err == nil {
				used <- err
			}
		})
		if len(used) > 0 {
			return false, nil
		}
	}
	return true, nil
}

// vacate takes the superblocks off drives that hold a store nothing was ever put in, and
// closes them.
func (s *Store) vacate(ctx context.Context) error {
	var errs []error
	for _, d := range s.drives {
		st, err := os.Lstat(d.path)
		if err == nil && st.Mode().IsRegular() && len(s.options.Devices) == 0 {
			errs = append(errs, d.dev.Close(), os.Remove(d.path))
			continue
		}
		zero := device.AlignedBuffer(layout.SuperblockPages * layout.PageSize)
		errs = append(errs, device.WriteAt(ctx, d.dev, zero, 0), device.Sync(ctx, d.dev), d.dev.Close())
	}
	s.log.Warn("the devices held a store in which nothing was ever put, and no catalog: they are used anew", "devices", len(s.drives))
	s.drives = nil
	return errors.Join(errs...)
}

// damagedCatalog says whether err tells of damage in the catalog's own files, which the
// devices can make good.
func damagedCatalog(err error) bool {
	var e *skep.Error
	if !errors.As(err, &e) || e.Kind != skep.Damaged {
		return false
	}
	ops := []string{"catalog", "open catalog", "read store row", "list rows", "scan blocks", "scan group", "read block row", "read block rows"}
	return slices.Contains(ops, e.Op) || e.Field == "catalog"
}
