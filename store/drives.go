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
	"github.com/skepkv/skep/store/device"
	"github.com/skepkv/skep/store/internal/health"
	"github.com/skepkv/skep/store/internal/paths"
	"github.com/skepkv/skep/store/internal/segio"
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
	s.drives = make([]*drive, count)
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
		if r.State == catalog.DeviceRemoved || s.drives[r.Index] != nil {
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
	if err != nil || sb.Store != s.id || slices.ContainsFunc(s.drives, func(d *drive) bool { return d != nil && segment.DeviceID(d.id) == sb.Device }) {
		return false
	}
	d := &drive{path: path, segBytes: sb.SegmentBytes, segments: layout.Segments(dev.Size(), sb.SegmentBytes), down: make(chan struct{})}
	d.use(dev)
	return s.holdsNothing(ctx, d)
}

// openAt is which drive is open at path; -1: none.
func (s *Store) openAt(path string) int {
	return slices.IndexFunc(s.drives, func(d *drive) bool {
		return d != nil && d.absent == nil && paths.Real(d.path) == paths.Real(path)
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
	d := &drive{path: path, down: make(chan struct{})}
	d.use(dev)
	if err := s.adopt(ctx, d, byID); err != nil {
		return errors.Join(err, dev.Close())
	}
	if s.drives[d.index] != nil {
		return errors.Join(&skep.Error{Op: "open device", Kind: skep.Conflict, Field: path, Value: "device " + itoa(int(d.index)) + " a second time",
			Limit: "each device once"}, dev.Close())
	}
	s.drives[d.index] = d
	return nil
}

// standIns fills the places of drives that were removed or are missing.
func (s *Store) standIns(rows []catalog.DeviceState, lacks map[uint16]lack) error {
	missing, present := 0, 0
	var first catalog.DeviceState
	for _, r := range rows {
		switch {
		case s.drives[r.Index] != nil:
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
		if s.drives[r.Index] != nil {
			continue
		}
		if r.State == catalog.DeviceRemoved {
			d := removedDrive(int(r.Index), r.SegmentBytes)
			d.id, d.path, d.serial = r.ID, r.Path, r.Serial
			s.drives[r.Index] = d
			continue
		}
		s.drives[r.Index] = standIn(r, lacks[r.Index])
		s.log.Error("device missing or unreadable: the store goes on without it", "device", r.Index, "path", s.drives[r.Index].path, "serial", r.Serial, "error", lacks[r.Index].why)
		s.segBytes = r.SegmentBytes
	}
	return nil
}

// standIn keeps the place of a drive that cannot be opened.
func standIn(r catalog.DeviceState, l lack) *drive {
	d := &drive{index: r.Index, id: r.ID, path: l.path, serial: r.Serial, segBytes: r.SegmentBytes, segments: int(r.Segments), limit: int(r.Segments), down: make(chan struct{})}
	d.standing.Set(health.Dead)
	close(d.down)
	d.failed = &skep.Error{Op: "open device", Kind: skep.Missing, Field: l.path, Err: l.why}
	d.absent = l.why
	d.standing.Say(l.why.Error())
	d.use(device.NewGone(l.path, r.Serial, max(r.Size, layout.SegmentOffset(1, r.SegmentBytes)), d.failed))
	return d
}

var (
	errRemoved  = &skep.Error{Op: "drive", Kind: skep.Missing, Field: "state", Value: "removed"}
	errDraining = &skep.Error{Op: "drive", Kind: skep.Unsupported, Field: "state", Value: "being emptied"}
)

// someDrive is a drive that is there, for what all have in common.
func (s *Store) someDrive() *drive {
	for _, d := range s.allDrives() {
		if !d.removed.Load() && d.absent == nil {
			return d
		}
	}
	return s.allDrives()[0]
}

// usableDrives is how many drives may take new groups, fenced ones included.
func (s *Store) usableDrives() (n int) {
	for _, d := range s.allDrives() {
		if !d.retired.Load() {
			n++
		}
	}
	return n
}

// adopt checks a device's superblocks against the catalog's rows.
func (s *Store) adopt(ctx context.Context, d *drive, byID map[[16]byte]catalog.DeviceState) error {
	const op = "open device"
	ctx, cancel := context.WithTimeout(ctx, s.options.OpTimeout)
	defer cancel()
	sb, err := segio.ReadSuperblock(ctx, d.dev, d.path)
	if err != nil {
		return err
	}
	row, known := byID[sb.Device]
	if sb.Store == s.id && !known {
		return &skep.Error{Op: op, Kind: skep.Foreign, Field: d.path, Value: fmt.Sprintf("device %d of this store, which the catalog does not know", sb.DeviceIndex),
			Limit: "one that the store has: this one was removed, or an add was cut short (skep device add makes it anew)"}
	}
	if sb.Store != s.id {
		return &skep.Error{Op: op, Kind: skep.Foreign, Field: d.path, Value: "store " + sb.Store.String(), Limit: "store " + s.id.String()}
	}
	if s.places != nil {
		if err := s.places.Taken(d.path, sb.Device); err != nil {
			return err
		}
	}
	if d.dev.Size() < sb.DeviceBytes {
		return &skep.Error{Op: op, Kind: skep.Damaged, Field: "size of " + d.path, Value: d.dev.Size(), Limit: fmt.Sprintf("at least %d: it was cut short", sb.DeviceBytes)}
	}
	d.index, d.id, d.serial, d.segBytes = row.Index, sb.Device, sb.Serial, sb.SegmentBytes
	d.sequence, d.created = sb.Sequence, sb.Created
	s.segBytes = sb.SegmentBytes
	d.segments = layout.Segments(d.dev.Size(), d.segBytes)
	d.limit = d.segments
	s.limits.restamp = s.limits.restamp || sb.Capacity != int64(s.limits.Capacity) || sb.MadeCount != int(s.limits.Devices)
	if c := s.options.CapacityBytes; c > 0 {
		// A larger cap lets the device grow; a smaller one does not shrink it.
		d.limit = max(d.segments, layout.Segments(c/int64(len(byID)), d.segBytes))
	} else {
		d.limit = unlimitedSegments
	}
	if d.dev.Info().Raw || s.options.ReadOnly {
		d.limit = d.segments
	}
	if row.State == catalog.DeviceDraining {
		d.failed = errDraining
		d.retired.Store(true)
	}
	return nil
}

// absentDrives are the drives that are not there though they should be.
func (s *Store) absentDrives() (out []*drive) {
	for _, d := range s.allDrives() {
		if d.absent != nil {
			out = append(out, d)
		}
	}
	return out
}

// checkDegraded refuses an open that would lose durable blocks with a missing drive. It
// changes nothing.
func (s *Store) checkDegraded(ctx context.Context) error {
	absent := s.absentDrives()
	if len(absent) == 0 {
		return nil
	}
	var hit, lost, once int64
	for _, g := range s.groupList() {
		if !slices.ContainsFunc(absent, g.has) {
			continue
		}
		err := s.catalog.ScanGroup(ctx, g.num, func(l layout.Location, row []byte) error {
			var rec segment.Record
			if segment.DecodeRecord(row, &rec) != nil || len(rec.Copies) == 0 {
				return nil
			}
			readable, whole := segio.RecordUnits(&rec, len(g.drives)).Survive(func(i int) bool { return g.drives[i].absent == nil })
			switch {
			case !readable && rec.Flags&segment.RecordDurable != 0:
				lost++
			case !readable:
				hit++
			case !whole:
				once++
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	d := absent[0]
	if lost > 0 && s.options.Degraded != DegradedAlways {
		return &skep.Error{Op: "open store", Kind: skep.Missing, Field: "device " + itoa(int(d.index)), Value: d.path, Err: d.absent,
			Limit: fmt.Sprintf("present: %d durable blocks have no other copy; bring it back, or open with Degraded %q to go on without them", lost, DegradedAlways)}
	}
	s.log.Warn("store opened without a device", "devices", len(absent), "path", d.path,
		"durable_blocks_lost", lost, "cache_blocks_unreadable", hit, "blocks_with_copies_to_make_again", once)
	return nil
}

// groupList is every group, lowest number first.
func (s *Store) groupList() []*group {
	s.space.mu.Lock()
	defer s.space.mu.Unlock()
	out := make([]*group, 0, s.space.mu.groups.Len())
	for g := range s.space.mu.groups.Each() {
		out = append(out, g)
	}
	sortBy(out, func(a, b *group) bool { return a.num < b.num })
	return out
}

// allDrives are the store's drives by index, those that were removed included, and those
// that were added since the open. Who asks twice may be told of more.
func (s *Store) allDrives() []*drive {
	if list := s.tasks.grown.Load(); list != nil {
		return *list
	}
	return s.drives
}

// restamp writes into the superblocks of all drives how many there are now, so that a
// rebuild from the devices alone knows whether it has found them all. The catalog has said so
// already: what a drive does not take is written when it does, and fails nobody. REQUIRES:
// tasks.members, or that nobody else has the store yet.
func (s *Store) restamp() {
	ctx, cancel := context.WithTimeout(s.ctx, s.options.OpTimeout)
	defer cancel()
	n, sequence := 0, uint64(0)
	for _, d := range s.allDrives() {
		if !d.removed.Load() {
			n++
		}
		sequence = max(sequence, d.sequence)
	}
	failed := false
	for _, d := range s.allDrives() {
		if d.removed.Load() || d.condition() == health.Dead || d.stamped == n {
			continue
		}
		if d.condition() == health.Fenced {
			failed = true // until it is well again
			continue
		}
		err := s.writeSuperblocks(ctx, d, n, sequence+1)
		if err == nil {
			d.stamped = n
		} else {
			failed = true
			if !s.tasks.unstamped.Load() {
				s.log.Warn("superblock does not say how many devices there are now; it is written again", "device", d.path, "devices", n, "error", err)
			}
		}
	}
	s.tasks.unstamped.Store(failed)
}

// restampAgain does what restamp could not.
func (t *tasks) restampAgain() {
	if !t.unstamped.Load() {
		return
	}
	select {
	case t.members <- struct{}{}:
		t.s.restamp()
		<-t.members
	default: // a device is being added or removed
	}
}

// removedDrive keeps the place of a drive that was removed.
func removedDrive(i int, segBytes int64) *drive {
	d := &drive{index: uint16(i), path: "removed", segBytes: segBytes, down: make(chan struct{}), failed: errRemoved}
	d.standing.Set(health.Dead)
	close(d.down)
	d.removed.Store(true)
	d.retired.Store(true)
	d.use(device.NewGone("", "", layout.SegmentOffset(1, segBytes), errRemoved))
	return d
}

func (s *Store) knows(id segment.DeviceID) bool {
	return slices.ContainsFunc(s.allDrives(), func(d *drive) bool { return segment.DeviceID(d.id) == id })
}

// groupsOf are the groups a drive is in.
func (s *Store) groupsOf(d *drive) (out []*group) {
	for _, g := range s.groupList() {
		if g.has(d) {
			out = append(out, g)
		}
	}
	return out
}
