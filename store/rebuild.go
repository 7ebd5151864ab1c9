package store

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sort"
	"time"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/catalog"
	"github.com/skepkv/skep/store/device"
	"github.com/skepkv/skep/store/segment"
)

// Rebuilding: a new catalog from the devices alone.
//
//	superblocks   whose devices these are, the secret, the geometry
//	headers       which groups there are; one freed or overwritten header is enough to
//	              say that a group is gone
//	logs          every record, tombstone, purge and namespace, all devices at once
//	verify        the payload of what was written after the last mark: a crash may have
//	              left records without it
//	settle        of the records of a block the one written last wins, unless it was
//	              deleted or purged
//
// The root row is committed last, alone and synced. Until it is there the directory holds
// no catalog, and whoever opens the store next begins anew: a rebuild may be cut off at
// any point, any number of times.

// RebuildReport is what a rebuild found and did.
type RebuildReport struct {
	Store      string  `json:"store"`
	Devices    int     `json:"devices"`
	Segments   int     `json:"segments"`           // looked at
	Groups     int     `json:"groups"`             // that hold something
	Freed      int     `json:"freed"`              // groups that had been cleaned
	Namespaces int     `json:"namespaces"`         //
	Purges     int     `json:"purges"`             //
	Blocks     int64   `json:"blocks"`             // stored now
	BlockBytes int64   `json:"block_bytes"`        // their payload
	Older      int64   `json:"older"`              // records of blocks of which there was a newer one
	Deleted    int64   `json:"deleted"`            // records that tombstones covered
	Purged     int64   `json:"purged"`             // records of purged namespaces and salts
	Unnamed    int64   `json:"unnamed"`            // records of namespaces of which nothing is known
	Verified   int64   `json:"verified"`           // blocks whose payload was read
	Lost       int64   `json:"lost"`               // of these, not whole
	Missing    int     `json:"missing"`            // devices it went on without
	Unreadable int64   `json:"unreadable"`         // blocks of which these held all copies of something
	Durable    int64   `json:"unreadable_durable"` // of these, in Durable namespaces
	LogBytes   int64   `json:"log_bytes"`          // read of logs and headers
	ReadBytes  int64   `json:"read_bytes"`         // payload read
	Seconds    float64 `json:"seconds"`
	DryRun     bool    `json:"dry_run"`
	MayBeOld   int64   `json:"may_be_old"` // blocks kept of which a missing device may have held a newer version
	Faults     []Fault `json:"faults"`
	MoreFaults int64   `json:"more_faults"` // that were not listed

	// Reads is what of headers and logs had to be read, by device path: for those who
	// compare the time with a plain read of the same.
	Reads []RebuildRead `json:"-"`
}

// RebuildRead is one range of a device that a rebuild needs.
type RebuildRead struct {
	Path       string
	Off, Bytes int64
}

// RebuildProgress is told now and then.
type RebuildProgress struct {
	Stage    string // headers, logs, verify, settle
	Done, Of int    // segments, or blocks
	Records  int64
}

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
	o.ensureDefaults()
	if err := o.validate(); err != nil {
		return RebuildReport{}, err
	}
	o.ReadOnly = false
	s := newStore(o)
	rep, err := s.rebuildAlone(ctx, dryRun, progress)
	if cerr := s.abandon(); err == nil {
		err = cerr
	}
	return rep, err
}

func (s *Store) rebuildAlone(ctx context.Context, dryRun bool, progress func(RebuildProgress)) (RebuildReport, error) {
	o := &s.options
	if _, err := os.Stat(o.Dir); err != nil {
		return RebuildReport{}, &skep.Error{Op: "rebuild", Kind: skep.NotFound, Field: "dir", Value: o.Dir, Limit: "the directory of a store"}
	}
	lock, err := lockDir(o.Dir)
	if err != nil {
		return RebuildReport{}, err
	}
	s.lock = lock
	if err := s.findDrives(ctx); err != nil {
		return RebuildReport{}, err
	}
	dir := o.catalogDir()
	if dryRun {
		dir += ".dry-run"
		if err := o.CatalogFS.RemoveAll(dir); err != nil {
			return RebuildReport{}, err
		}
		defer o.CatalogFS.RemoveAll(dir)
	} else if err := s.setAside(dir); err != nil {
		return RebuildReport{}, err
	}
	return s.rebuildInto(ctx, dir, dryRun, progress)
}

// rebuildInto makes a catalog in dir, where none is. With dryRun nothing is written to the
// drives. REQUIRES: s.drives.
func (s *Store) rebuildInto(ctx context.Context, dir string, dryRun bool, progress func(RebuildProgress)) (rep RebuildReport, err error) {
	start := time.Now()
	o := &s.options
	opt := catalog.Options{FS: o.CatalogFS, CacheBytes: o.CatalogCacheBytes, Logger: o.Logger, OnFailure: s.fail}
	if s.catalog, err = catalog.Open(dir, opt); err != nil {
		return rep, err
	}
	r := newRebuilder(s, progress)
	r.rep.DryRun = dryRun
	err = r.run(ctx)
	r.rep.Seconds = time.Since(start).Seconds()
	if err == nil {
		s.log.Warn("catalog rebuilt from the devices", "blocks", r.rep.Blocks, "groups", r.rep.Groups, "namespaces", r.rep.Namespaces,
			"lost", r.rep.Lost, "faults", len(r.rep.Faults), "seconds", r.rep.Seconds)
	}
	return r.rep, err
}

// catalogDir is where the catalog is.
func (o *Options) catalogDir() string {
	if o.CatalogDir != "" {
		return o.CatalogDir
	}
	return filepath.Join(o.Dir, "catalog")
}

// setAside moves what is left of a catalog out of the way.
func (s *Store) setAside(dir string) error {
	fsys := s.options.CatalogFS
	names, err := fsys.List(dir)
	if errors.Is(err, fs.ErrNotExist) || err == nil && len(names) == 0 {
		return nil
	}
	if err != nil {
		return &skep.Error{Op: "rebuild", Kind: skep.Other, Field: "catalog", Value: dir, Err: err}
	}
	to := dir + ".old-" + s.now().UTC().Format("20060102T150405.000")
	if err := fsys.Rename(dir, to); err != nil {
		return &skep.Error{Op: "rebuild", Kind: skep.Other, Field: "catalog", Value: dir, Limit: "one that can be moved aside", Err: err}
	}
	s.log.Warn("what was left of the catalog is set aside; remove it once you are content", "path", to)
	parent, err := fsys.OpenDir(fsys.PathDir(dir))
	if err != nil {
		return err
	}
	return errors.Join(parent.Sync(), parent.Close())
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

// findDrives opens the devices of a store that has no catalog, and takes from their
// superblocks what it must know.
func (s *Store) findDrives(ctx context.Context) error {
	const op = "rebuild"
	paths, err := s.devicePaths()
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
	for i, path := range paths {
		d := &drive{path: path, down: make(chan struct{})}
		sb, err := s.meetDrive(ctx, i, d)
		if err != nil && s.goesWithout(err) {
			s.log.Error("a device is given up", "path", path, "error", err)
			continue
		}
		if err != nil {
			return err
		}
		switch { // the newest knows how many there are since devices were added or removed
		case sb.Sequence > newest:
			newest, count = sb.Sequence, sb.DeviceCount
		case sb.Sequence == newest:
			count = max(count, sb.DeviceCount)
		}
	}
	if len(s.drives) == 0 {
		return &skep.Error{Op: op, Kind: skep.Missing, Field: "devices", Value: 0, Limit: "at least one that can be read"}
	}
	return s.orderDrives(count)
}

// goesWithout says whether a rebuild does without a device that gave err.
func (s *Store) goesWithout(err error) bool {
	switch skep.KindOf(err) {
	case skep.Missing, skep.DeviceFailed, skep.Damaged:
		return s.options.Degraded == DegradedAlways
	}
	return false
}

// meetDrive opens the device at d.path and adds it to the store's, if it is one of them.
func (s *Store) meetDrive(ctx context.Context, i int, d *drive) (sb segment.Superblock, err error) {
	const op = "rebuild"
	dev, err := s.options.OpenDevice(i, d.path, false, 0)
	if err != nil {
		return sb, &skep.Error{Op: op, Kind: kindOfOpen(err), Field: d.path, Err: err}
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, dev.Close())
		}
	}()
	if sb, err = readSuperblock(ctx, dev, d.path); err != nil {
		return sb, err
	}
	if len(s.drives) > 0 && sb.Store != s.id {
		return sb, &skep.Error{Op: op, Kind: skep.Foreign, Field: d.path, Value: "store " + sb.Store.String(), Limit: "store " + s.id.String() + ", as the others"}
	}
	if len(s.drives) > 0 && sb.SegmentBytes != s.segBytes {
		return sb, &skep.Error{Op: op, Kind: skep.Damaged, Field: "segment bytes of " + d.path, Value: sb.SegmentBytes, Limit: s.segBytes}
	}
	if dev.Size() < sb.DeviceBytes {
		return sb, &skep.Error{Op: op, Kind: skep.Damaged, Field: "size of " + d.path, Value: dev.Size(), Limit: fmt.Sprintf("at least %d: it was cut short", sb.DeviceBytes)}
	}
	s.id, s.secret, s.segBytes = sb.Store, sb.HashSecret, sb.SegmentBytes
	d.dev, d.index, d.id, d.serial, d.segBytes = dev, uint16(sb.DeviceIndex), sb.Device, sb.Serial, sb.SegmentBytes
	d.segments = layout.Segments(dev.Size(), d.segBytes)
	d.limit = d.segments
	d.sequence, d.created = sb.Sequence, sb.Created
	s.drives = append(s.drives, d)
	return sb, nil
}

// orderDrives puts the drives found where their numbers say.
func (s *Store) orderDrives(count int) error {
	const op = "rebuild"
	found := s.drives
	byIndex := map[int]*drive{}
	for _, d := range found {
		if other := byIndex[int(d.index)]; other != nil {
			return &skep.Error{Op: op, Kind: skep.Conflict, Field: "device " + itoa(int(d.index)), Value: d.path, Limit: "one, and " + other.path + " is it too"}
		}
		byIndex[int(d.index)] = d
	}
	last := count
	for i := range byIndex {
		last = max(last, i+1)
	}
	for i := range last {
		switch {
		case byIndex[i] != nil:
		case len(found) >= count: // all that are left are here: this one was removed
			s.drives = append(s.drives, removedDrive(i, s.segBytes))
		case s.options.Degraded == DegradedAlways:
			s.drives = append(s.drives, s.givenUp(i))
		default:
			return &skep.Error{Op: op, Kind: skep.Missing, Field: "device " + itoa(i), Value: "not among " + itoa(len(found)) + " found",
				Limit: "present; name every device of the store, in any order, or have the rebuild go on without it"}
		}
	}
	sort.Slice(s.drives, func(i, j int) bool { return s.drives[i].index < s.drives[j].index })
	return nil
}

// givenUp keeps the place of a drive that a rebuild went on without. Nothing is known of it
// but its number, so that whatever comes back is not taken for it: what its logs say may
// have been overtaken.
func (s *Store) givenUp(i int) *drive {
	why := &skep.Error{Op: "drive", Kind: skep.Missing, Field: "state", Value: "given up by a rebuild"}
	path := filepath.Join(s.options.Dir, "given-up-"+itoa(i))
	d := &drive{index: uint16(i), path: path, segBytes: s.segBytes, segments: 1, limit: 1, down: make(chan struct{}), failed: why, absent: why}
	key := skep.KeyOf([]byte(path + s.id.String()))
	d.id = segment.DeviceID(key[:16])
	d.mode.Store(int32(dead))
	close(d.down)
	d.dev = device.NewGone(path, "", layout.SegmentOffset(1, s.segBytes), why)
	return d
}

// readSuperblock reads a device's two superblocks and gives the one that counts.
func readSuperblock(ctx context.Context, dev device.Device, path string) (segment.Superblock, error) {
	const op = "open device"
	if dev.Size() < 2*layout.PageSize {
		return segment.Superblock{}, &skep.Error{Op: op, Kind: skep.Foreign, Field: path, Value: fmt.Sprintf("%d bytes", dev.Size()), Limit: "a device of a store"}
	}
	buf := device.AlignedBuffer(2 * layout.PageSize)
	if err := device.ReadAt(ctx, dev, buf, 0); err != nil {
		return segment.Superblock{}, &skep.Error{Op: op, Kind: skep.DeviceFailed, Field: path, Err: err}
	}
	sb, _, err := segment.ChooseSuperblock(buf[:layout.PageSize], buf[layout.PageSize:])
	if err != nil {
		return sb, &skep.Error{Op: op, Kind: skep.KindOf(err), Field: path, Err: err}
	}
	return sb, nil
}
