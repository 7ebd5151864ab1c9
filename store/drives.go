package store

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/catalog"
	"github.com/skepkv/skep/store/device"
	"github.com/skepkv/skep/store/segment"
)

// A store's drives: which there are, where they are now, and what an open does without
// one of them.
//
// A drive is known by the id in its superblocks, not by its path. An open looks where it
// was named or last seen; failing that, in the store's own directory and beside where it
// last was. A drive that is not found has a stand-in (device.Gone) that fails everything,
// so that the rest of the store need not know.

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
	s.drives = make([]*drive, count)
	var problems []error
	note := func(err error) error {
		switch skep.KindOf(err) {
		case skep.Missing, skep.DeviceFailed:
			problems = append(problems, err)
			return nil
		}
		return err
	}
	for i, path := range s.options.Devices {
		if err := note(s.openDrive(ctx, i, path, byID)); err != nil {
			return err
		}
	}
	for _, r := range rows {
		if r.State == catalog.DeviceRemoved || s.drives[r.Index] != nil {
			continue
		}
		path := s.locateDrive(r)
		if len(s.options.Devices) > 0 {
			if _, err := os.Stat(path); err == nil {
				return &skep.Error{Op: "open store", Kind: skep.Missing, Field: "device " + itoa(int(r.Index)), Value: path,
					Limit: "named; name every device of the store, in any order"}
			}
			continue
		}
		if err := note(s.openDrive(ctx, int(r.Index), path, byID)); err != nil {
			return err
		}
	}
	return s.standIns(rows, problems)
}

// openDrive opens what is at path and gives it its place.
func (s *Store) openDrive(ctx context.Context, i int, path string, byID map[[16]byte]catalog.DeviceState) error {
	dev, err := s.options.OpenDevice(i, path, false, 0)
	if err != nil {
		return &skep.Error{Op: "open device", Kind: kindOfOpen(err), Field: path, Err: err}
	}
	d := &drive{dev: dev, path: path, down: make(chan struct{})}
	if err := s.adopt(ctx, d, byID); err != nil {
		return errors.Join(err, dev.Close())
	}
	if s.drives[d.index] != nil {
		return errors.Join(skep.Invalidf("open device", path, "device "+itoa(int(d.index))+" a second time", "each device once"), dev.Close())
	}
	s.drives[d.index] = d
	return nil
}

// standIns fills the places of drives that were removed or are missing.
func (s *Store) standIns(rows []catalog.DeviceState, problems []error) error {
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
		if len(problems) > 0 {
			return problems[0]
		}
		return &skep.Error{Op: "open store", Kind: skep.Missing, Field: "device " + itoa(int(first.Index)), Value: first.Path,
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
		d := &drive{index: r.Index, id: r.ID, path: r.Path, serial: r.Serial, segBytes: r.SegmentBytes, segments: int(r.Segments), limit: int(r.Segments), down: make(chan struct{})}
		d.mode.Store(int32(dead))
		close(d.down)
		var why error = skep.Missing
		for _, p := range problems {
			var e *skep.Error
			if errors.As(p, &e) && filepath.Base(e.Field) == filepath.Base(r.Path) {
				why = p
			}
		}
		d.failed = &skep.Error{Op: "open device", Kind: skep.Missing, Field: r.Path, Err: why}
		d.absent = why
		text := why.Error()
		d.why.Store(&text)
		s.log.Error("device missing: the store goes on without it", "device", r.Index, "path", r.Path, "serial", r.Serial, "error", why)
		d.dev = device.NewGone(r.Path, r.Serial, max(r.Size, layout.SegmentOffset(1, r.SegmentBytes)), d.failed)
		s.segBytes = r.SegmentBytes
		s.drives[r.Index] = d
	}
	return nil
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

// locateDrive says where a drive is now. What lies in the store's own directory goes
// before where it was last seen: a copy of a store must not open the original's devices.
func (s *Store) locateDrive(r catalog.DeviceState) string {
	here := filepath.Join(s.options.Dir, filepath.Base(r.Path))
	for _, p := range append([]string{here, r.Path}, s.beside(r.Path)...) {
		if sb, err := peekSuperblock(p); err == nil && sb.Store == s.id && sb.Device == segment.DeviceID(r.ID) {
			return p
		}
	}
	if _, err := os.Stat(here); err == nil {
		return here
	}
	return r.Path
}

// beside are files in the store's directory, and block devices of the kind last seen,
// that may be a drive whose name has changed.
func (s *Store) beside(path string) []string {
	out, _ := filepath.Glob(filepath.Join(s.options.Dir, "device-*"))
	if dir := filepath.Dir(path); strings.HasPrefix(dir, "/dev") {
		kind := strings.TrimRightFunc(filepath.Base(path), func(r rune) bool { return r >= '0' && r <= '9' })
		if i := strings.IndexAny(kind, "0123456789"); i > 0 {
			kind = kind[:i] // nvme0n1: nvme
		} else if len(kind) > 2 {
			kind = kind[:2] // sda: sd
		}
		more, _ := filepath.Glob(filepath.Join(dir, kind+"*"))
		out = append(out, more...)
	}
	return out
}

// adopt checks a device's superblocks against the catalog's rows.
func (s *Store) adopt(ctx context.Context, d *drive, byID map[[16]byte]catalog.DeviceState) error {
	const op = "open device"
	if d.dev.Size() < 2*layout.PageSize {
		return &skep.Error{Op: op, Kind: skep.Foreign, Field: d.path, Value: fmt.Sprintf("%d bytes", d.dev.Size()), Limit: "a device of this store"}
	}
	buf := device.AlignedBuffer(2 * layout.PageSize)
	ctx, cancel := context.WithTimeout(ctx, s.options.OpTimeout)
	defer cancel()
	if err := device.ReadAt(ctx, d.dev, buf, 0); err != nil {
		return &skep.Error{Op: op, Kind: skep.DeviceFailed, Field: d.path, Err: err}
	}
	sb, _, err := segment.ChooseSuperblock(buf[:layout.PageSize], buf[layout.PageSize:])
	if err != nil {
		return &skep.Error{Op: op, Kind: skep.KindOf(err), Field: d.path, Err: err}
	}
	row, known := byID[sb.Device]
	if sb.Store != s.id || !known {
		return &skep.Error{Op: op, Kind: skep.Foreign, Field: d.path, Value: "store " + sb.Store.String(), Limit: "store " + s.id.String()}
	}
	if d.dev.Size() < sb.DeviceBytes {
		return &skep.Error{Op: op, Kind: skep.Damaged, Field: "size of " + d.path, Value: d.dev.Size(), Limit: fmt.Sprintf("at least %d: it was cut short", sb.DeviceBytes)}
	}
	d.index, d.id, d.serial, d.segBytes = row.Index, sb.Device, sb.Serial, sb.SegmentBytes
	d.sequence, d.created = sb.Sequence, sb.Created
	s.segBytes = sb.SegmentBytes
	d.segments = layout.Segments(d.dev.Size(), d.segBytes)
	d.limit = d.segments
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
		err := s.catalog.ScanGroup(ctx, g.num, func(l catalog.Loc, row []byte) error {
			var rec segment.Record
			if segment.DecodeRecord(row, &rec) != nil || len(rec.Copies) == 0 {
				return nil
			}
			readable, whole := survives(unitsOf(rec.Copies, int64(rec.Pages)*layout.PageSize, len(g.drives)), func(i int) bool { return g.drives[i].absent == nil })
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
	out := make([]*group, 0, len(s.space.mu.groups))
	for _, g := range s.space.mu.groups {
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

// NewDevice is a device to be added to a store.
type NewDevice struct {
	Path  string // of a file that is not there, or a blank block device
	Bytes int64  // of a file; 0: as large as the store's smallest device
}

// AddDevices opens the store in o.Dir with more devices. They take part in groups opened
// from then on; what is stored already is spread over them in the background, or by
// Rebalance.
func AddDevices(ctx context.Context, o Options, list ...NewDevice) (*Store, error) {
	if len(list) == 0 {
		return nil, skep.Invalidf("add device", "devices", 0, "at least 1")
	}
	if o.ReadOnly {
		return nil, &skep.Error{Op: "add device", Kind: skep.ReadOnly}
	}
	o.add = list
	return Open(ctx, o)
}

// addDrives makes o.add devices of the store that is being opened.
func (s *Store) addDrives(ctx context.Context) error {
	for _, a := range s.options.add {
		d, err := s.addDrive(ctx, a)
		if err != nil {
			return err
		}
		s.drives = append(s.drives, d)
		if err := s.restamp(ctx); err != nil {
			return err
		}
	}
	return nil
}

// addDrive makes a device and its row. The superblock comes before the row: a crash between
// the two leaves a device that is not the store's, and may be added again.
func (s *Store) addDrive(ctx context.Context, a NewDevice) (*drive, error) {
	const op = "add device"
	list, n := s.allDrives(), s.usableDrives()
	if n >= maxDevices {
		return nil, skep.Invalidf(op, "devices", n+1, fmt.Sprintf("at most %d", maxDevices))
	}
	if len(list)+1 >= segment.MaxDevices {
		return nil, skep.Invalidf(op, "device index", len(list), fmt.Sprintf("below %d; indices of removed devices are not used again", segment.MaxDevices))
	}
	size := a.Bytes
	if size == 0 {
		for _, d := range list {
			if !d.removed.Load() && (size == 0 || d.dev.Size() < size) {
				size = d.dev.Size()
			}
		}
	}
	segments := layout.Segments(size, s.segBytes)
	if segments < 3 {
		return nil, skep.Invalidf(op, "size", size, fmt.Sprintf("at least %d: three segments of %d", layout.SegmentOffset(3, s.segBytes), s.segBytes))
	}
	limit := layout.SegmentOffset(segments, s.segBytes)
	if s.options.CapacityBytes == 0 && a.Bytes == 0 {
		limit = 0
	}
	if sb, err := peekSuperblock(a.Path); err == nil && sb.Store == s.id && !s.knows(sb.Device) {
		if err := s.disown(ctx, a.Path); err != nil { // an add that a crash cut short
			return nil, err
		}
	}
	d, err := s.createDrive(ctx, len(list), n+1, a.Path, layout.SegmentOffset(segments, s.segBytes), limit)
	if err != nil {
		return nil, err
	}
	row := d.row()
	b := s.catalog.NewBatch()
	b.PutDevice(&row)
	if err := s.catalog.Commit(s.ctx, b, true); err != nil {
		return nil, errors.Join(err, d.dev.Close())
	}
	s.log.Info("device added", "device", d.index, "path", d.path, "serial", d.serial, "bytes", d.dev.Size())
	return d, nil
}

// AddDevice adds a device to the store while it is in use. It takes part in groups opened
// from then on, and what is stored already is spread over it in the background, or by
// Rebalance. A device that could not be added may be tried again.
func (s *Store) AddDevice(ctx context.Context, a NewDevice) error {
	const op = "add device"
	if err := s.enterWrite(ctx, op); err != nil {
		return err
	}
	defer s.leave()
	ctx, cancel := s.untilClosing(ctx)
	defer cancel()
	t := &s.tasks
	select {
	case t.members <- struct{}{}:
		defer func() { <-t.members }()
	case <-ctx.Done():
		return &skep.Error{Op: op, Kind: skep.Deadline, Err: ctx.Err()}
	}
	a.Path = filepath.Clean(a.Path)
	d, err := s.addDrive(ctx, a)
	if err != nil {
		return err
	}
	d.fence = func(err error) { s.fence(d, err) }
	s.registerArena(d)
	list := append(slices.Clone(s.allDrives()), d)
	sp := &s.space
	sp.mu.Lock()
	for n := d.segments - 1; n >= 0; n-- {
		d.free = append(d.free, uint32(n))
	}
	t.grown.Store(&list)
	close(sp.mu.freed)
	sp.mu.freed = make(chan struct{})
	sp.mu.Unlock()
	s.reroom()
	t.kick()
	return s.restamp(ctx)
}

// restamp writes into the superblocks of all drives how many there are now, so that a
// rebuild from the devices alone knows whether it has found them all.
func (s *Store) restamp(ctx context.Context) error {
	n, sequence := 0, uint64(0)
	for _, d := range s.allDrives() {
		if !d.removed.Load() {
			n++
		}
		sequence = max(sequence, d.sequence)
	}
	for _, d := range s.allDrives() {
		if d.removed.Load() || d.condition() >= fenced {
			continue
		}
		if err := s.writeSuperblocks(ctx, d, n, sequence+1); err != nil {
			return err
		}
	}
	return nil
}

// removedDrive keeps the place of a drive that was removed.
func removedDrive(i int, segBytes int64) *drive {
	d := &drive{index: uint16(i), path: "removed", segBytes: segBytes, down: make(chan struct{}), failed: errRemoved}
	d.mode.Store(int32(dead))
	close(d.down)
	d.removed.Store(true)
	d.retired.Store(true)
	d.dev = device.NewGone("", "", layout.SegmentOffset(1, segBytes), errRemoved)
	return d
}

func (s *Store) knows(id segment.DeviceID) bool {
	return slices.ContainsFunc(s.allDrives(), func(d *drive) bool { return segment.DeviceID(d.id) == id })
}

// disown takes a device that has this store's superblock and is not in its catalog out
// of the way: a file is removed, a block device's first pages are cleared.
func (s *Store) disown(ctx context.Context, path string) error {
	st, err := os.Stat(path)
	if err == nil && st.Mode().IsRegular() {
		return os.Remove(path)
	}
	dev, err := s.options.OpenDevice(0, path, false, 0)
	if err != nil {
		return err
	}
	return errors.Join(wipe(ctx, dev), dev.Close())
}

// wipe makes a device nobody's.
func wipe(ctx context.Context, dev device.Device) error {
	if err := device.WriteAt(ctx, dev, device.AlignedBuffer(layout.SuperblockPages*layout.PageSize), 0); err != nil {
		return err
	}
	return device.Sync(ctx, dev)
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
