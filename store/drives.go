package store

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/catalog"
	"github.com/skepkv/skep/store/internal/members"
	"github.com/skepkv/skep/store/internal/paths"
	"github.com/skepkv/skep/store/internal/segio"
	"github.com/skepkv/skep/store/internal/space"
	"github.com/skepkv/skep/store/segment"
)

// A store's drives: which there are, where they are now, and what an open does without
// one of them.
//
// A drive is known by the id in its superblocks, not by its path. An open looks where it was named, or in the store's
// own directory, or where the catalog says that it lies outside (internal/places). A drive that is not found has a
// stand-in (device.Gone) that fails everything, so that the rest of the store need not know.

// What Options.Degraded says about opening without a drive.
const (
	DegradedAuto   = "auto"   // when no durable block is lost with it
	DegradedNever  = "never"  // refuse
	DegradedAlways = "always" // whatever is lost
)

// openDrives opens the devices the catalog names, wherever they are now.
func (s *Store) openDrives(ctx context.Context) error {
	rows, err := s.catalog.Devices(ctx)
	if err != nil {
		return err
	}
	if len(rows) == 0 {
		return &skep.Error{Op: "catalog", Kind: skep.Damaged, Field: "device rows", Value: 0, Limit: "at least 1"}
	}
	byID := map[[16]byte]catalog.DeviceState{}
	count := 0
	for _, r := range rows {
		count = max(count, int(r.Index)+1)
		if r.State != catalog.DeviceRemoved {
			byID[r.ID] = r
		}
	}
	if !s.options.customDevices {
		owner, known, err := s.catalog.Owner(ctx)
		if err != nil {
			return err
		}
		s.places = PlacesOf(s.options.Dir, s.id, owner, known)
	}
	if err := s.checkDeviceCount(len(byID)); err != nil {
		return err
	}
	s.members.Opened = make([]*space.Drive, count)
	lacks := map[uint16]lack{}
	var named []lack
	for i, path := range s.options.Devices {
		if err := s.openDrive(ctx, i, path, byID); goesOn(err) {
			named = append(named, lack{path, err})
		} else if err != nil {
			return err
		}
	}
	for _, r := range rows {
		if r.State == catalog.DeviceRemoved || s.members.Opened[r.Index] != nil {
			continue
		}
		path, err := s.locateDrive(r)
		if len(s.options.Devices) > 0 {
			if err == nil && !isAmong(path, named) && s.isThere(path) {
				return &skep.Error{Op: "open store", Kind: skep.Missing, Field: "device " + itoa(int(r.Index)), Value: path,
					Limit: "named; name every device of the store, in any order"}
			}
			lacks[r.Index], named = takeLack(path, named)
			continue
		}
		if i := s.openAt(path); err == nil && i >= 0 {
			err = &skep.Error{Op: "open device", Kind: skep.Missing, Field: path, Value: "device " + itoa(i), Limit: "device " + itoa(int(r.Index))}
		}
		if err == nil {
			err = s.openDrive(ctx, int(r.Index), path, byID)
		}
		if err != nil && !goesOn(err) {
			return err
		}
		if err != nil {
			lacks[r.Index] = lack{path, err}
		}
	}
	for _, l := range named { // no place is left for it
		if !s.leftUnused(ctx, l.path) {
			return l.why
		}
		s.leftByAdd(l.path)
	}
	return s.standIns(rows, lacks)
}

// leftUnused says whether the device at path is what an add that was cut short has left: the store's by its
// superblock, not in the catalog, and never written to. REQUIRES: every device of the catalog has its place.
func (s *Store) leftUnused(ctx context.Context, path string) bool {
	dev, err := s.options.OpenDevice(0, path, false, 0)
	if err != nil {
		return false
	}
	defer dev.Close()
	sb, err := segio.ReadSuperblock(ctx, dev, path)
	if err != nil || sb.Store != s.id || slices.ContainsFunc(s.members.Opened, func(d *space.Drive) bool { return d != nil && segment.DeviceID(d.ID) == sb.Device }) {
		return false
	}
	d := &space.Drive{Path: path, SegBytes: sb.SegmentBytes, Segments: layout.Segments(dev.Size(), sb.SegmentBytes)}
	d.Use(dev)
	return s.holdsNothing(ctx, d)
}

// openAt is which drive is open at path; -1: none.
func (s *Store) openAt(path string) int {
	return slices.IndexFunc(s.members.Opened, func(d *space.Drive) bool {
		return d != nil && d.Absent == nil && paths.Real(d.Path) == paths.Real(path)
	})
}

// lack is a device that cannot be opened.
type lack struct {
	path string
	why  error
}

// goesOn says whether a store may open without a device that gave err: one that is not there, fails,
// is somebody else's, or cannot be known any more. Not without one of another format, or that
// another process has: they are whole.
func goesOn(err error) bool {
	switch skep.KindOf(err) {
	case skep.Missing, skep.DeviceFailed, skep.Foreign, skep.Damaged, skep.Conflict:
		return err != nil
	}
	return false
}

func isAmong(path string, list []lack) bool {
	return slices.ContainsFunc(list, func(l lack) bool { return paths.Real(l.path) == paths.Real(path) })
}

// takeLack takes what was named out of list for the row of a device expected at path: that path, or
// else any.
func takeLack(path string, list []lack) (lack, []lack) {
	if len(list) == 0 {
		return lack{path, skep.Missing}, nil
	}
	i := max(0, slices.IndexFunc(list, func(l lack) bool { return paths.Real(l.path) == paths.Real(path) }))
	return list[i], slices.Delete(slices.Clone(list), i, i+1)
}

func (s *Store) isThere(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// openDrive opens what is at path and gives it its place.
func (s *Store) openDrive(ctx context.Context, i int, path string, byID map[[16]byte]catalog.DeviceState) error {
	dev, err := s.options.OpenDevice(i, path, false, 0)
	if err != nil {
		return &skep.Error{Op: "open device", Kind: kindOfOpen(err), Field: path, Err: err}
	}
	d := &space.Drive{Path: path}
	d.Use(dev)
	if err := s.adopt(ctx, d, byID); err != nil {
		return errors.Join(err, dev.Close())
	}
	if s.members.Opened[d.Index] != nil {
		return errors.Join(&skep.Error{Op: "open device", Kind: skep.Conflict, Field: path, Value: "device " + itoa(int(d.Index)) + " a second time",
			Limit: "each device once"}, dev.Close())
	}
	s.members.Opened[d.Index] = d
	return nil
}

// standIns fills the places of drives that were removed or are missing.
func (s *Store) standIns(rows []catalog.DeviceState, lacks map[uint16]lack) error {
	missing, present := 0, 0
	var first catalog.DeviceState
	for _, r := range rows {
		switch {
		case s.members.Opened[r.Index] != nil:
			present++
		case r.State != catalog.DeviceRemoved:
			if missing++; missing == 1 {
				first = r
			}
		}
	}
	if missing > 0 && (present == 0 || s.options.Degraded == DegradedNever) {
		if why := lacks[first.Index].why; why != nil && why != skep.Missing {
			return why
		}
		return &skep.Error{Op: "open store", Kind: skep.Missing, Field: "device " + itoa(int(first.Index)), Value: lacks[first.Index].path,
			Limit: "present; name every device of the store, in any order"}
	}
	for _, r := range rows {
		if s.members.Opened[r.Index] != nil {
			continue
		}
		if r.State == catalog.DeviceRemoved {
			d := members.Removed(int(r.Index), r.SegmentBytes)
			d.ID, d.Path, d.Serial = r.ID, r.Path, r.Serial
			s.members.Opened[r.Index] = d
			continue
		}
		s.members.Opened[r.Index] = members.StandIn(r, lacks[r.Index].path, lacks[r.Index].why)
		s.log.Error("device missing or unreadable: the store goes on without it", "device", r.Index, "path", s.members.Opened[r.Index].Path, "serial", r.Serial, "error", lacks[r.Index].why)
		s.space.SegmentBytes = r.SegmentBytes
	}
	return nil
}

// adopt checks a device's superblocks against the catalog's rows.
func (s *Store) adopt(ctx context.Context, d *space.Drive, byID map[[16]byte]catalog.DeviceState) error {
	const op = "open device"
	ctx, cancel := context.WithTimeout(ctx, s.options.OpTimeout)
	defer cancel()
	sb, err := segio.ReadSuperblock(ctx, d.Dev, d.Path)
	if err != nil {
		return err
	}
	row, known := byID[sb.Device]
	if sb.Store == s.id && !known {
		return &skep.Error{Op: op, Kind: skep.Foreign, Field: d.Path, Value: fmt.Sprintf("device %d of this store, which the catalog does not know", sb.DeviceIndex),
			Limit: "one that the store has: this one was removed, or an add was cut short (skep device add makes it anew)"}
	}
	if sb.Store != s.id {
		return &skep.Error{Op: op, Kind: skep.Foreign, Field: d.Path, Value: "store " + sb.Store.String(), Limit: "store " + s.id.String()}
	}
	if s.places != nil {
		if err := s.places.Taken(d.Path, sb.Device); err != nil {
			return err
		}
	}
	if d.Dev.Size() < sb.DeviceBytes {
		return &skep.Error{Op: op, Kind: skep.Damaged, Field: "size of " + d.Path, Value: d.Dev.Size(), Limit: fmt.Sprintf("at least %d: it was cut short", sb.DeviceBytes)}
	}
	d.Index, d.ID, d.Serial, d.SegBytes = row.Index, sb.Device, sb.Serial, sb.SegmentBytes
	d.Sequence, d.Created = sb.Sequence, sb.Created
	s.space.SegmentBytes = sb.SegmentBytes
	d.Segments = layout.Segments(d.Dev.Size(), d.SegBytes)
	d.Limit = d.Segments
	s.limits.restamp = s.limits.restamp || sb.Capacity != int64(s.limits.Capacity) || sb.MadeCount != int(s.limits.Devices)
	if c := s.options.CapacityBytes; c > 0 {
		// A larger cap lets the device grow; a smaller one does not shrink it.
		d.Limit = max(d.Segments, layout.Segments(c/int64(len(byID)), d.SegBytes))
	} else {
		d.Limit = space.Unlimited
	}
	if d.Dev.Info().Raw && s.options.CapacityBytes > 0 { // of its size the store has what the cap gave it, or an add
		share := layout.Segments(s.options.CapacityBytes/int64(len(byID)), d.SegBytes)
		d.Segments = min(d.Segments, max(sb.Segments(), share))
	}
	if d.Dev.Info().Raw || s.options.ReadOnly {
		d.Limit = d.Segments
	}
	if row.State == catalog.DeviceDraining {
		d.Failed = space.ErrDraining
		d.Retired.Store(true)
	}
	return nil
}
