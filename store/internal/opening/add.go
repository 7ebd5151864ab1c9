package opening

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/catalog"
	"github.com/skepkv/skep/store/internal/segio"
	"github.com/skepkv/skep/store/internal/space"
	"github.com/skepkv/skep/store/segment"
)

// MaxDevices is how many devices one store may have; a group names its devices in a
// page and a location in eight bits.
const MaxDevices = 64

// Has says whether the device at path is one of the store's.
func (p *Opening) Has(path string) bool {
	sb, err := segio.PeekSuperblock(path)
	return err == nil && sb.Store == p.ID && p.Members.Knows(sb.Device)
}

// CheckRoom refuses one more drive of so many segments where all together would hold less than they do: each counts as
// much as the smallest, for a group has a segment on each. Drives that grow as their file systems have room are not
// reckoned.
func (p *Opening) CheckRoom(path string, segments int) error {
	n, least := 0, segments
	for _, d := range p.Members.All() {
		if d.Retired.Load() || d.Absent != nil { // of one that a rebuild went on without the size is not known
			continue
		}
		if d.Limit == space.Unlimited || segments == space.Unlimited {
			return nil
		}
		if n++; n == 1 || d.Limit < least {
			least = d.Limit
		}
	}
	if n == 0 || (n+1)*segments >= n*least {
		return nil
	}
	bytes := func(segments int) int64 { return int64(segments) * int64(p.Space.SegmentBytes) }
	return skep.Invalidf("add device", "size of "+path, layout.SegmentOffset(segments, p.Space.SegmentBytes),
		fmt.Sprintf("at least %d: each drive counts as much as the smallest, so all would hold %d bytes in place of %d; "+
			"--smaller (NewDevice.Smaller) takes it all the same", layout.SegmentOffset((n*least+n)/(n+1), p.Space.SegmentBytes),
			bytes((n+1)*segments), bytes(n*least)))
}

// Add makes a device and its row; smaller says that all drives may hold less then. The superblock comes before the row:
// a crash between the two leaves a device that is not the store's, and may be added again.
func (p *Opening) Add(ctx context.Context, path string, bytes int64, smaller bool) (*space.Drive, error) {
	const op = "add device"
	list, n := p.Members.All(), p.Space.UsableDrives()
	if n >= MaxDevices {
		return nil, skep.Invalidf(op, "devices", n+1, fmt.Sprintf("at most %d", MaxDevices))
	}
	if len(list)+1 >= segment.MaxDevices {
		return nil, skep.Invalidf(op, "device index", len(list),
			fmt.Sprintf("below %d; indices of removed devices are not used again", segment.MaxDevices))
	}
	segments, err := p.SegmentsOf(bytes)
	if err != nil {
		return nil, err
	}
	limit := layout.SegmentOffset(segments, p.Space.SegmentBytes)
	if p.Limits.Capacity == 0 && bytes == 0 {
		limit = 0
	}
	if sb, err := segio.PeekSuperblock(path); err == nil && sb.Store == p.ID && !p.Members.Knows(sb.Device) {
		if err := p.Disown(ctx, path, &sb); err != nil { // an add that a crash cut short
			return nil, err
		}
	}
	_, err = os.Lstat(path)
	absent := errors.Is(err, fs.ErrNotExist)
	d, err := p.CreateDrive(ctx, len(list), n+1, path, layout.SegmentOffset(segments, p.Space.SegmentBytes), limit)
	if err == nil && !smaller {
		if err = p.CheckRoom(path, d.Limit); err != nil {
			if !absent {
				err = errors.Join(err, p.takeBackName(d))
			}
			err = errors.Join(err, d.Dev.Close())
		}
	}
	if err != nil {
		if absent { // what is left of it would keep the next try from it
			err = errors.Join(err, p.unmake(path))
		}
		return nil, err
	}
	row := d.Row()
	b := p.Catalog.NewBatch()
	b.PutDevice(&row)
	disclaim := p.claimAdded(b, d)
	if err := p.Rows.Unsure(p.Catalog.Commit(p.Context, b, true)); err != nil {
		disclaim()
		if !catalog.Refused(err) { // the row may be there, and an open asks for the device
			return nil, errors.Join(err, d.Dev.Close())
		}
		if absent {
			return nil, errors.Join(err, d.Dev.Close(), p.unmake(path))
		}
		return nil, errors.Join(err, p.takeBackName(d), d.Dev.Close())
	}
	p.Log.Info("device added", "device", d.Index, "path", d.Path, "serial", d.Serial, "bytes", d.Dev.Size())
	return d, nil
}

// SegmentsOf is how many segments a file is made for.
func (p *Opening) SegmentsOf(size int64) (int, error) {
	if size == 0 {
		for _, d := range p.Members.All() {
			if !d.Removed.Load() && d.Absent == nil && (size == 0 || d.Dev.Size() < size) {
				size = d.Dev.Size()
			}
		}
	}
	segments := layout.Segments(size, p.Space.SegmentBytes)
	if segments < 3 {
		return 0, skep.Invalidf("add device", "size", size,
			fmt.Sprintf("at least %d: three segments of %d", layout.SegmentOffset(3, p.Space.SegmentBytes),
				p.Space.SegmentBytes))
	}
	return segments, nil
}

// unmake removes the file of a device that is not the store's after all.
func (p *Opening) unmake(path string) error {
	if p.Own {
		return nil
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// takeBackName makes a device that was there before nobody's again: two with one number would be met by a rebuild. Not
// under a caller's context, which may be over.
func (p *Opening) takeBackName(d *space.Drive) error {
	ctx, cancel := context.WithTimeout(p.Context, p.Timeout)
	defer cancel()
	return segio.Wipe(ctx, p.Space.Durably(d))
}

// Disown takes a device that has this store's superblock and is not in its catalog out of the way, as an add that was
// cut short leaves one: a file is removed, a block device's first pages are cleared. One on which something was ever
// written is left alone: a catalog that was made without it does not know it, and a rebuild can use it.
func (p *Opening) Disown(ctx context.Context, path string, sb *segment.Superblock) error {
	dev, err := p.OpenDevice(0, path, false, 0)
	if err != nil {
		return err
	}
	d := &space.Drive{Path: path, ID: sb.Device, SegBytes: sb.SegmentBytes,
		Segments: layout.Segments(dev.Size(), sb.SegmentBytes)}
	d.Use(dev)
	if !p.holdsNothing(ctx, d) {
		return errors.Join(&skep.Error{Op: "add device", Kind: skep.Conflict, Field: "path", Value: path,
			Limit: "blank; it holds blocks of this store that its catalog does not know: " +
				"a rebuild with it takes them in, unless it was given up; or remove it first"}, dev.Close())
	}
	if st, err := os.Stat(path); err == nil && st.Mode().IsRegular() {
		return errors.Join(dev.Close(), os.Remove(path))
	}
	return errors.Join(segio.Wipe(ctx, p.Space.Durably(d)), dev.Close())
}
