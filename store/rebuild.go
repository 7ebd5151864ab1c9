package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/catalog"
	"github.com/skepkv/skep/store/device"
	"github.com/skepkv/skep/store/internal/aside"
	"github.com/skepkv/skep/store/internal/dirlock"
	"github.com/skepkv/skep/store/internal/members"
	"github.com/skepkv/skep/store/internal/namespaces"
	"github.com/skepkv/skep/store/internal/paths"
	"github.com/skepkv/skep/store/internal/rebuild"
	"github.com/skepkv/skep/store/internal/recovery"
	"github.com/skepkv/skep/store/internal/segio"
	"github.com/skepkv/skep/store/internal/space"
	"github.com/skepkv/skep/store/segment"
)

// Rebuild makes a new catalog for the store in o.Dir from its devices alone, which
// nobody may have open. A catalog that is there is set aside, not read and not removed,
// as catalog.old-TIME beside it. With dryRun nothing is changed.
//
// With Options.Degraded DegradedAlways it goes on without devices that are not there: blocks
// that can be read from the others are kept, the rest are named as lost, and the missing
// devices are given up: they cannot come back.
//
// Errors by kind: Locked, Missing (no device, or one that groups need), Foreign (devices
// of different stores), Version, DeviceFailed.
func Rebuild(ctx context.Context, o Options, dryRun bool, progress func(RebuildProgress)) (RebuildReport, error) {
	if err := o.prepare(); err != nil {
		return RebuildReport{}, err
	}
	o.ReadOnly = false
	if dryRun { // it says what there is without, and loses nothing
		o.Degraded, o.looking = DegradedAlways, true
	}
	s := newStore(o)
	rep, err := s.rebuildAlone(ctx, dryRun, progress)
	return rep, cmp.Or(err, s.abandon())
}

func (s *Store) rebuildAlone(ctx context.Context, dryRun bool, progress func(RebuildProgress)) (RebuildReport, error) {
	o := &s.options
	if _, err := os.Stat(o.Dir); err != nil {
		return RebuildReport{}, &skep.Error{Op: "rebuild", Kind: skep.NotFound, Field: "dir", Value: o.Dir, Limit: "the directory of a store"}
	}
	lock, err := dirlock.Take(o.Dir, dryRun)
	if err != nil {
		return RebuildReport{}, err
	}
	s.lock, lock.Remove = lock, lock.Made // nothing is left where no store is, nor by a dry run
	if err := s.findDrives(ctx); err != nil {
		return RebuildReport{}, err
	}
	lock.Remove = lock.Made && dryRun
	dir := o.catalogDir()
	if err := s.catalogPlace("rebuild").OtherFormat(); err != nil {
		return RebuildReport{}, err
	}
	if dryRun { // nothing is written where the store is: it may be a snapshot, or a disk that has no room
		if err := s.catalogPlace("rebuild").Check(); err != nil {
			return RebuildReport{}, err
		}
		if dir, err = os.MkdirTemp("", "skep-dry-run-"); err != nil {
			return RebuildReport{}, &skep.Error{Op: "rebuild", Kind: skep.Other, Field: "directory for temporary files", Value: os.TempDir(),
				Limit: "one that can be written to; set TMPDIR", Err: err}
		}
		defer os.RemoveAll(dir)
	} else if err := s.setAside("rebuild"); err != nil {
		return RebuildReport{}, err
	}
	rep, err := s.rebuildInto(ctx, dir, dryRun, progress)
	if err == nil && !dryRun {
		s.clearList()
	}
	return rep, err
}

// rebuildInto makes a catalog in dir, where none is. With dryRun nothing is written to the
// drives. REQUIRES: s.members.Opened.
func (s *Store) rebuildInto(ctx context.Context, dir string, dryRun bool, progress func(RebuildProgress)) (rep RebuildReport, err error) {
	start := time.Now()
	o := &s.options
	opt := catalog.Options{FS: o.CatalogFS, CacheBytes: o.CatalogCacheBytes, Logger: o.Logger, OnFailure: s.rows.Fail}
	if dryRun {
		opt.FS = vfs.Default
	} else if err := s.catalogRoom.Make(); err != nil {
		return rep, err
	}
	if s.catalog, err = catalog.Open(dir, opt); err != nil {
		if !dryRun {
			err = s.catalogRoom.Explain(err)
		}
		return rep, err
	}
	s.space.Catalog = s.catalog
	in := s.rebuildInput(progress)
	in.DryRun = dryRun
	rep, err = rebuild.Run(ctx, in)
	rep.Seconds = time.Since(start).Seconds()
	if err == nil {
		s.log.Warn("catalog rebuilt from the devices", "blocks", rep.Blocks, "groups", rep.Groups, "namespaces", rep.Namespaces,
			"lost", rep.Lost, "faults", len(rep.Faults), "seconds", rep.Seconds)
	}
	return rep, err
}

// rebuildInput is what a rebuild into s.catalog goes by. REQUIRES: s.members.Opened.
func (s *Store) rebuildInput(progress func(RebuildProgress)) rebuild.Input {
	s.names = namespaces.NewTable(s.secret)
	in := rebuild.Input{Store: rebuilding{s}, Catalog: s.catalog, Names: s.names, ID: s.id, Secret: s.secret, SegmentBytes: s.space.SegmentBytes,
		Limits: s.limits.Limits, Partial: s.options.Degraded == DegradedAlways, Missing: s.limits.missing, Timeout: s.options.OpTimeout, Wall: s.options.Wall,
		Log: s.log, Progress: progress}
	for _, d := range s.members.Opened {
		in.Drives = append(in.Drives, driveFound(d))
	}
	return in
}

// found is the drive as a rebuild sees it.
func driveFound(d *space.Drive) *rebuild.Drive {
	out := &rebuild.Drive{IO: d.IO(), Path: d.Path, Segments: d.Segments, Absent: d.Absent != nil, Away: d.Away, Row: d.Row()}
	if d.Removed.Load() {
		out.Row.State = catalog.DeviceRemoved
	}
	return out
}

// rebuilding is the store whose catalog a rebuild makes: rebuild.Store.
type rebuilding struct{ s *Store }

func (r rebuilding) GiveUp(i int) *rebuild.Drive {
	d := r.s.givenUp(i)
	r.s.members.Opened = append(r.s.members.Opened, d)
	return driveFound(d)
}

func (r rebuilding) Found(groups []*catalog.GroupState) {
	for _, st := range groups {
		r.s.space.Add(r.groupOf(st))
	}
}

func (r rebuilding) groupOf(st *catalog.GroupState) *space.Group {
	g := space.Found(*st)
	for _, m := range st.Devices {
		g.Drives = append(g.Drives, r.s.members.Opened[m.Device])
		g.Segments = append(g.Segments, m.Segment)
	}
	return g
}

func (r rebuilding) Whole(ctx context.Context, at layout.Location, row []byte, buf *[]byte) (bool, error) {
	_, ok, err := recovery.VerifyRow(ctx, r.s.names, r.s.space, at, row, buf)
	return ok, err
}

func (r rebuilding) WriteHeader(ctx context.Context, st *catalog.GroupState, i int) error {
	g := r.groupOf(st)
	h := r.s.space.HeaderOf(g, i)
	return r.s.space.WriteHeader(ctx, g.Drives[i], &h)
}

func (r rebuilding) Claim(b *catalog.Batch) error { return r.s.claim(b) }

// catalogDir is where the catalog is.
func (o *Options) catalogDir() string {
	if o.CatalogDir != "" {
		return o.CatalogDir
	}
	return filepath.Join(o.Dir, "catalog")
}

// catalogPlace is where the catalog is, for who opens it or sets it aside.
func (s *Store) catalogPlace(op string) *aside.Place {
	o := &s.options
	devices := slices.Concat(o.Devices, s.drivePaths(), s.opening.known)
	id := s.id
	if id == (segment.StoreID{}) { // the drives are not open yet
		at, _ := s.devicePaths()
		if id = storeOfMost(at); id == (segment.StoreID{}) {
			id = storeOfMost(s.opening.known)
		}
	}
	return &aside.Place{Op: op, FS: o.CatalogFS, Dir: o.catalogDir(), Named: o.CatalogDir != "", Home: o.Dir, Store: id,
		Devices: devices,
		Timeout: o.OpTimeout, Log: s.log}
}

// setAside moves what is left of a catalog out of the way.
func (s *Store) setAside(op string) error {
	// nothing is opened there any more
	_, err := s.catalogPlace(op).SetAside(s.options.Wall(), func() { s.catalogRoom.Drop() })
	return err
}

// devicePaths are where the store's devices may be when no catalog says so.
func (s *Store) devicePaths() ([]string, error) {
	if len(s.options.Devices) > 0 {
		return s.options.Devices, nil
	}
	paths, err := filepath.Glob(filepath.Join(s.options.Dir, "device-*"))
	sort.Strings(paths)
	return paths, err
}

// allDevicePaths are devicePaths and, where no devices are named, whatever else in the directory is a
// device of that store, such as one that was added under a name of its own, and those that the catalog
// named before it was set aside.
func (s *Store) allDevicePaths(ctx context.Context) ([]string, error) {
	paths, err := s.devicePaths()
	if err != nil || len(s.options.Devices) > 0 || s.options.customDevices {
		return paths, err
	}
	paths = slices.DeleteFunc(paths, s.anothers)
	id := storeOfMost(paths)
	list, err := os.ReadDir(s.options.Dir)
	if err != nil {
		return nil, err
	}
	others := append(slices.Clone(s.opening.known), s.pathsSetAside(ctx)...)
	for _, e := range list {
		if path := filepath.Join(s.options.Dir, e.Name()); !s.anothers(path) {
			others = append(others, path)
		}
	}
	var met []fs.FileInfo // a device may have several names
	for _, path := range paths {
		if info, err := os.Stat(path); err == nil {
			met = append(met, info)
		}
	}
	for _, path := range others {
		info, err := os.Stat(path)
		if err != nil || !info.Mode().IsRegular() && info.Mode()&os.ModeDevice == 0 ||
			slices.ContainsFunc(met, func(o fs.FileInfo) bool { return os.SameFile(o, info) }) {
			continue
		}
		met = append(met, info)
		if sb, err := segio.PeekSuperblock(path); err == nil && (sb.Store == id || id == segment.StoreID{}) {
			id = sb.Store
			paths = append(paths, path)
		}
	}
	return paths, nil
}

// anothers says whether a name in the directory leads out of it, to a device that says that another directory owns it:
// a copy of a directory has its links.
func (s *Store) anothers(path string) bool {
	dir := paths.Real(s.options.Dir)
	if _, in := paths.Within(dir, paths.Real(path)); in {
		return false
	}
	o, ok := segio.PeekOwner(path)
	if !ok || o.Path == dir {
		return false
	}
	s.log.Warn("a link leads to a device of another directory: it is not this store's unless it is named (--device)", "path", path, "directory", o.Path)
	return true
}

// pathsSetAside is where devices were by the newest catalog that was set aside and can be read: a rebuild that was cut
// off has no other to ask.
func (s *Store) pathsSetAside(ctx context.Context) (paths []string) {
	for _, dir := range s.catalogPlace("rebuild").Older() {
		c, err := catalog.Inspect(dir, catalog.Options{FS: s.options.CatalogFS, Logger: s.log, OpenTimeout: s.options.OpTimeout})
		if err != nil {
			s.log.Warn("a catalog that was set aside does not say where devices are", "path", dir, "error", err)
			continue
		}
		root, err := c.Store(ctx)
		owner, known, err1 := c.Owner(ctx)
		rows, err2 := c.Devices(ctx)
		if errors.Join(err, err1, err2, c.Close()) != nil {
			continue
		}
		places := PlacesOf(s.options.Dir, root.StoreID, owner, known)
		for _, r := range rows {
			if path, err := places.Find(r); err == nil && r.State != catalog.DeviceRemoved {
				paths = append(paths, path)
			}
		}
		return paths
	}
	return nil
}

// findDrives opens the devices of a store that has no catalog, and takes from their
// superblocks what it must know.
func (s *Store) findDrives(ctx context.Context) error {
	const op = "rebuild"
	paths, err := s.allDevicePaths(ctx)
	if err != nil {
		return err
	}
	if s.options.customDevices {
		for i := len(paths); i < s.options.DeviceCount; i++ {
			paths = append(paths, filepath.Join(s.options.Dir, fmt.Sprintf("device-%d", i)))
		}
	}
	if len(paths) == 0 {
		return &skep.Error{Op: op, Kind: skep.Missing, Field: "devices", Value: s.options.Dir, Limit: "device files in it, or their paths"}
	}
	var count int
	var newest uint64
	s.id = storeOfMost(paths)
	var strange []error
	for i, path := range paths {
		d := &space.Drive{Path: path}
		sb, err := s.meetDrive(ctx, i, d)
		if errors.Is(err, fs.ErrPermission) { // it may be whole
			return err
		}
		if err != nil && goesOn(err) && (!s.options.customDevices || s.options.Degraded == DegradedAlways) {
			s.log.Error("not one of the store's devices that can be read", "path", path, "error", err)
			strange = append(strange, err)
			continue
		}
		if err != nil {
			return err
		}
		switch { // the newest knows how many there are since devices were added or removed, and the cap
		case sb.Sequence > newest:
			newest, count = sb.Sequence, sb.DeviceCount
			s.limits.Limits = catalog.Limits{Known: sb.MadeCount > 0, Capacity: uint64(sb.Capacity), Devices: uint32(sb.MadeCount)}
		case sb.Sequence == newest:
			count = max(count, sb.DeviceCount)
		}
	}
	if len(s.members.Opened) == 0 {
		return &skep.Error{Op: op, Kind: skep.Missing, Field: "devices", Value: 0, Limit: "at least one that can be read", Err: errors.Join(strange...)}
	}
	return s.orderDrives(ctx, count, strange)
}

// storeOfMost is the store of most of the devices: what else lies among them is not its.
func storeOfMost(paths []string) (id segment.StoreID) {
	most, of := 0, map[segment.StoreID]int{}
	for _, p := range paths {
		sb, err := segio.PeekSuperblock(p)
		if err != nil {
			continue
		}
		if of[sb.Store]++; of[sb.Store] > most {
			id, most = sb.Store, of[sb.Store]
		}
	}
	return id
}

// meetDrive opens the device at d.path and adds it to the store's, if it is one of them.
func (s *Store) meetDrive(ctx context.Context, i int, d *space.Drive) (sb segment.Superblock, err error) {
	const op = "rebuild"
	dev, err := s.options.OpenDevice(i, d.Path, false, 0)
	if err != nil {
		return sb, &skep.Error{Op: op, Kind: kindOfOpen(err), Field: d.Path, Err: err}
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, dev.Close())
		}
	}()
	if sb, err = segio.ReadSuperblock(ctx, dev, d.Path); err != nil {
		return sb, err
	}
	if s.id != (segment.StoreID{}) && sb.Store != s.id {
		return sb, &skep.Error{Op: op, Kind: skep.Foreign, Field: d.Path, Value: "store " + sb.Store.String(), Limit: "store " + s.id.String() + ", as the others"}
	}
	if len(s.members.Opened) > 0 && sb.SegmentBytes != s.space.SegmentBytes {
		return sb, &skep.Error{Op: op, Kind: skep.Damaged, Field: "segment bytes of " + d.Path, Value: sb.SegmentBytes, Limit: s.space.SegmentBytes}
	}
	if dev.Size() < sb.DeviceBytes {
		return sb, &skep.Error{Op: op, Kind: skep.Damaged, Field: "size of " + d.Path, Value: dev.Size(), Limit: fmt.Sprintf("at least %d: it was cut short", sb.DeviceBytes)}
	}
	if err := s.identify(sb.Store, sb.HashSecret); err != nil {
		return sb, err
	}
	s.space.SegmentBytes = sb.SegmentBytes
	d.Use(dev)
	d.Index, d.ID, d.Serial, d.SegBytes = uint16(sb.DeviceIndex), sb.Device, sb.Serial, sb.SegmentBytes
	d.Segments = layout.Segments(dev.Size(), d.SegBytes)
	d.Limit = d.Segments
	d.Sequence, d.Created = sb.Sequence, sb.Created
	s.members.Opened = append(s.members.Opened, d)
	return sb, nil
}

// orderDrives puts the drives found where their numbers say.
func (s *Store) orderDrives(ctx context.Context, count int, strange []error) error {
	const op = "rebuild"
	byIndex := map[int]*space.Drive{}
	for _, d := range s.members.Opened {
		other := byIndex[int(d.Index)]
		if other == nil {
			byIndex[int(d.Index)] = d
			continue
		}
		left, err := s.leftByAdding(ctx, other, d)
		if err != nil {
			return err
		}
		if left == other {
			byIndex[int(d.Index)] = d
		}
		strange = append(strange, &skep.Error{Op: op, Kind: skep.Conflict, Field: "device " + itoa(int(d.Index)), Value: left.Path,
			Limit: "one, which is " + byIndex[int(d.Index)].Path, Err: left.Dev.Close()})
	}
	s.members.Opened = slices.Collect(maps.Values(byIndex))
	last := count
	for i := range byIndex {
		last = max(last, i+1)
	}
	for _, d := range s.outlasted(count) {
		s.log.Warn("this device was removed from the store: the rebuild leaves it alone", "path", d.Path, "device", d.Index)
		strange = append(strange, d.Dev.Close())
		delete(byIndex, int(d.Index))
	}
	s.members.Opened = slices.Collect(maps.Values(byIndex))
	found := s.members.Opened
	s.limits.missing = max(0, count-len(found))
	for i := range last {
		switch {
		case byIndex[i] != nil:
		case len(found) >= count: // all that are left are here: this one was removed
			s.members.Opened = append(s.members.Opened, members.Removed(i, s.space.SegmentBytes))
		case s.options.Degraded == DegradedAlways:
			s.members.Opened = append(s.members.Opened, s.givenUp(i))
		default:
			kind := skep.Missing
			if len(strange) > 0 && skep.KindOf(strange[0]) == skep.Foreign && len(s.options.Devices) > 0 {
				kind = skep.Foreign
			}
			return &skep.Error{Op: op, Kind: kind, Field: "device " + itoa(i), Value: "not among " + itoa(len(found)) + " found", Err: errors.Join(strange...),
				Limit: "present; name every device of the store, in any order, or have the rebuild go on without it (skep rebuild --without-missing)"}
		}
	}
	sort.Slice(s.members.Opened, func(i, j int) bool { return s.members.Opened[i].Index < s.members.Opened[j].Index })
	return nil
}

// leftByAdding is which of two drives with one number is not the store's. An add that was cut short has left a drive
// that holds nothing; the next one that was added got its number. Where both hold something, or neither, the one under
// its own name counts; where both hold something and none is, or each was named, it is for a person to say.
func (s *Store) leftByAdding(ctx context.Context, a, b *space.Drive) (*space.Drive, error) {
	emptyA, emptyB := s.holdsNothing(ctx, a), s.holdsNothing(ctx, b)
	name := "device-" + itoa(int(a.Index))
	ownA, ownB := filepath.Base(a.Path) == name, filepath.Base(b.Path) == name
	if !emptyA && !emptyB && (!ownA && !ownB || len(s.options.Devices) > 0 || s.options.customDevices) {
		return nil, &skep.Error{Op: "rebuild", Kind: skep.Conflict, Field: "device " + itoa(int(a.Index)), Value: b.Path,
			Limit: "one, and " + a.Path + " is it too"}
	}
	left := b
	if emptyA && !emptyB || emptyA == emptyB && (ownB && !ownA || !ownA && b.Sequence > a.Sequence) {
		left = a
	}
	if emptyA || emptyB {
		s.leftByAdd(left.Path)
	}
	return left, nil
}

func (s *Store) leftByAdd(path string) {
	s.log.Warn("an add that was cut short has left this device, which holds nothing: it is not the store's; it may be removed, or added again", "path", path)
}

// holdsNothing says whether none of a drive's segments was ever opened. One that cannot be read may have been.
func (s *Store) holdsNothing(ctx context.Context, d *space.Drive) bool {
	all := make([]uint32, d.Segments)
	for i := range all {
		all[i] = uint32(i)
	}
	used := make(chan error, d.Segments)
	s.space.ReadHeaders(ctx, d, all, func(_ uint32, _ *segment.Header, err error) {
		if skep.KindOf(err) != skep.Foreign || err == nil {
			used <- err
		}
	})
	return len(used) == 0
}

// outlasted are drives that were removed and still lie among the others: when one is removed all that stay are stamped
// anew. Where fewer than count are, some could not be, and nobody knows which were removed: all count.
func (s *Store) outlasted(count int) (list []*space.Drive) {
	newest := uint64(0)
	for _, d := range s.members.Opened {
		newest = max(newest, d.Sequence)
	}
	for _, d := range s.members.Opened {
		if d.Sequence < newest {
			list = append(list, d)
		}
	}
	if len(s.members.Opened)-len(list) != count {
		return nil
	}
	return list
}

// givenUp keeps the place of a drive that a rebuild went on without. Nothing is known of it
// but its number, so that whatever comes back is not taken for it: what its logs say may
// have been overtaken.
func (s *Store) givenUp(i int) *space.Drive {
	why := &skep.Error{Op: "drive", Kind: skep.Missing, Field: "state", Value: "given up by a rebuild"}
	path := filepath.Join(s.options.Dir, "given-up-"+itoa(i))
	d := &space.Drive{Index: uint16(i), Path: path, SegBytes: s.space.SegmentBytes, Segments: 1, Limit: 1, Absent: why}
	key := skep.KeyOf([]byte(path + s.id.String()))
	d.ID = segment.DeviceID(key[:16])
	d.Gone(device.NewGone(path, "", layout.SegmentOffset(1, s.space.SegmentBytes), why), why)
	return d
}

// drivePaths is where the drives are that could be opened.
func (s *Store) drivePaths() (paths []string) {
	for _, d := range s.members.All() {
		if d.Absent == nil && d.Dev != nil {
			paths = append(paths, d.Path)
		}
	}
	return paths
}
