package store

import (
	"context"
	"errors"
	"os"
	"slices"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/internal/making"
	"github.com/skepkv/skep/store/internal/rebuild"
	"github.com/skepkv/skep/store/internal/segio"
	"github.com/skepkv/skep/store/internal/space"
)

// What an open finds where there is no catalog: nothing, the beginnings of a store whose
// making was cut off, or a store that has lost its catalog.

// makingList is the list of the device files that a store is made with; nil for devices of the caller's own.
func (s *Store) makingList() *making.List {
	if s.options.customDevices {
		return nil
	}
	return making.New(s.options.Dir, s.options.removeList)
}

// clearList takes away the list of a store that is there: it says nothing about it.
func (s *Store) clearList() {
	if err := s.makingList().End(); err != nil {
		s.log.Warn("left behind: it says nothing about the store; remove it", "path", s.makingList().Path(), "error", err)
	}
}

// undoMaking removes what a making that was cut off has made. It says whether one was.
func (s *Store) undoMaking(ctx context.Context) (bool, error) {
	l := s.makingList()
	if there, err := l.There(); err != nil || !there {
		return false, err
	}
	paths, err := s.devicePaths()
	if err != nil {
		return false, err
	}
	return l.Undo(ctx, paths, s.log)
}

// resume deals with what is there although there is no catalog. It says whether the
// catalog was rebuilt; else a store is to be made.
func (s *Store) resume(ctx context.Context) (rebuilt bool, err error) {
	o := &s.options
	if o.customDevices {
		return false, nil
	}
	cut, err := s.undoMaking(ctx)
	if err != nil {
		return false, &skep.Error{Op: "open store", Kind: skep.Other, Field: "what was left of its making", Value: s.makingList().Path(), Err: err}
	}
	paths, err := s.allDevicePaths(ctx)
	if err != nil {
		return false, err
	}
	ours := 0
	for _, p := range paths {
		if _, err := segio.PeekSuperblock(p); err == nil || skep.KindOf(err) == skep.Version {
			ours++
		}
	}
	if ours == 0 {
		return false, s.wasHere() // whether what is there is in the way, create says
	}
	if o.NoRebuild {
		return false, &skep.Error{Op: "open store", Kind: skep.Missing, Field: "catalog", Value: o.catalogDir(),
			Limit: "present: the devices hold a store; bring it back, or have it rebuilt from them"}
	}
	if cut {
		if vacated, err := s.vacateSome(ctx, paths); vacated || err != nil {
			return false, err
		}
	}
	if err := s.findDrives(ctx); err != nil {
		return false, err
	}
	if cut {
		if empty, err := s.unused(ctx); empty || err != nil {
			return false, errors.Join(err, s.vacate(ctx))
		}
	}
	s.log.Error("the catalog is lost; rebuilding it from the devices", "catalog", o.catalogDir(), "devices", len(s.members.Opened))
	rep, err := rebuild.Run(ctx, s.rebuildInput(func(p RebuildProgress) {
		s.log.Info("rebuilding the catalog", "stage", p.Stage, "done", p.Done, "of", p.Of, "records", p.Records)
	}))
	if err != nil {
		return false, err
	}
	s.log.Warn("the catalog is rebuilt", "blocks", rep.Blocks, "lost", rep.Lost, "faults", len(rep.Faults))
	for _, f := range rep.Faults {
		s.log.Warn("found while rebuilding", "fault", f.String())
	}
	s.forgetLoaded()
	return true, nil
}

// otherFormat is the error of a device in another format than this program reads: the catalog that belongs to it
// stays where it is.
func (s *Store) otherFormat() error {
	paths, err := s.devicePaths()
	if err != nil {
		return err
	}
	for _, path := range append(slices.Clone(paths), s.opening.known...) {
		if _, err := segio.PeekSuperblock(path); skep.KindOf(err) == skep.Version {
			return &skep.Error{Op: "open device", Kind: skep.Version, Field: path, Err: err}
		}
	}
	return nil
}

// wasHere refuses to make a store where one was whose devices are not found.
func (s *Store) wasHere() error {
	list := s.catalogPlace("open store").Older()
	if len(list) == 0 {
		return nil
	}
	return &skep.Error{Op: "open store", Kind: skep.Missing, Field: "devices of the store whose catalog was set aside as " + list[0],
		Limit: "in " + s.options.Dir + ", or each named with --device: skep rebuild makes the catalog anew from them. Where they are not wanted, remove " + list[0]}
}

// forgetLoaded closes what a rebuild used, so that the open that follows begins anew.
func (s *Store) forgetLoaded() {
	for _, d := range s.members.Opened {
		_ = d.Dev.Close()
	}
	s.members.Opened = nil
	s.space.Reset()
	s.root.Reset()
}

// unused says whether the drives are block devices of a store whose making was cut off: their
// superblocks are as it wrote them, and no segment was ever opened.
func (s *Store) unused(ctx context.Context) (bool, error) {
	for _, d := range s.members.Opened {
		if st, err := os.Stat(d.Path); err != nil || st.Mode().IsRegular() || d.Sequence > 1 {
			return false, nil
		}
		if !s.holdsNothing(ctx, d) {
			return false, nil
		}
	}
	return true, nil
}

// vacateSome is vacate where the making of a store was cut off before all of its block devices had their superblocks:
// of those at paths, as many as it was to have, some hold nothing but these, and all others are blank. False: it is
// not so, and nothing was changed.
func (s *Store) vacateSome(ctx context.Context, paths []string) (bool, error) {
	defer s.forgetLoaded()
	blank := 0
	for i, path := range paths {
		sb, err := s.meetDrive(ctx, i, &space.Drive{Path: path})
		switch {
		case err == nil && sb.DeviceCount == len(paths):
		case err != nil && s.isBlank(ctx, i, path):
			blank++
		default:
			return false, nil
		}
	}
	if blank == 0 || len(s.members.Opened) == 0 {
		return false, nil
	}
	if empty, err := s.unused(ctx); !empty || err != nil {
		return false, err
	}
	return true, s.vacate(ctx)
}

// isBlank says whether a new store takes the block device at path.
func (s *Store) isBlank(ctx context.Context, i int, path string) bool {
	dev, err := s.options.OpenDevice(i, path, false, 0)
	if err != nil {
		return false
	}
	defer dev.Close()
	return segio.CheckBlank(ctx, dev, path) == nil
}

// vacate takes the superblocks off drives of a store whose making was cut off, and closes them.
func (s *Store) vacate(ctx context.Context) error {
	var errs []error
	for _, d := range s.members.Opened {
		errs = append(errs, segio.Wipe(ctx, s.space.Durably(d)), d.Dev.Close())
	}
	s.log.Warn("the making of a store was cut off here: its devices are used anew", "devices", len(s.members.Opened))
	s.members.Opened = nil
	return errors.Join(errs...)
}

// damagedCatalog says whether err tells of damage in the catalog's own files, which the
// devices can make good.
func damagedCatalog(err error) bool {
	var e *skep.Error
	if !errors.As(err, &e) || e.Kind != skep.Damaged {
		return false
	}
	ops := []string{"catalog", "open catalog", "read store row", "read owner row", "list rows", "scan blocks", "scan group", "read block row", "read block rows"}
	return slices.Contains(ops, e.Op) || e.Field == "catalog"
}
