package store

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/catalog"
	"github.com/skepkv/skep/store/internal/gate"
	"github.com/skepkv/skep/store/internal/segio"
	"github.com/skepkv/skep/store/internal/space"
	"github.com/skepkv/skep/store/segment"
)

// NewDevice is a device to be added to a store.
type NewDevice struct {
	Path  string // of a file that is not there, or a blank block device
	Bytes int64  // of a file; 0: as large as the store's smallest device
}

// AddDevices opens the store in o.Dir with more devices: those are made once it is open, so that an open that is
// refused has made none. They take part in groups opened from then on; what is stored already is spread over them in
// the background, or by Rebalance.
func AddDevices(ctx context.Context, o Options, list ...NewDevice) (*Store, error) {
	if len(list) == 0 {
		return nil, skep.Invalidf("add device", "devices", 0, "at least 1")
	}
	if o.ReadOnly {
		return nil, &skep.Error{Op: "add device", Kind: skep.ReadOnly}
	}
	s, err := Open(ctx, o)
	if err != nil {
		return nil, err
	}
	if rest := slices.DeleteFunc(slices.Clone(list), s.added); len(rest) > 0 {
		list = rest // the others were added by a call that did not get to these
	}
	for _, a := range list {
		if err := s.AddDevice(ctx, a); err != nil {
			return nil, errors.Join(err, s.Close())
		}
	}
	return s, nil
}

// added says whether a device is one of the store's already.
func (s *Store) added(a NewDevice) bool {
	sb, err := segio.PeekSuperblock(a.Path)
	return err == nil && sb.Store == s.id && s.members.Knows(sb.Device)
}

// addDrive makes a device and its row. The superblock comes before the row: a crash between
// the two leaves a device that is not the store's, and may be added again.
func (s *Store) addDrive(ctx context.Context, a NewDevice) (*space.Drive, error) {
	const op = "add device"
	list, n := s.members.All(), s.space.UsableDrives()
	if n >= maxDevices {
		return nil, skep.Invalidf(op, "devices", n+1, fmt.Sprintf("at most %d", maxDevices))
	}
	if len(list)+1 >= segment.MaxDevices {
		return nil, skep.Invalidf(op, "device index", len(list), fmt.Sprintf("below %d; indices of removed devices are not used again", segment.MaxDevices))
	}
	segments, err := s.segmentsOfNew(a)
	if err != nil {
		return nil, err
	}
	limit := layout.SegmentOffset(segments, s.space.SegmentBytes)
	if s.options.CapacityBytes == 0 && a.Bytes == 0 {
		limit = 0
	}
	if sb, err := segio.PeekSuperblock(a.Path); err == nil && sb.Store == s.id && !s.members.Knows(sb.Device) {
		if err := s.disown(ctx, a.Path, &sb); err != nil { // an add that a crash cut short
			return nil, err
		}
	}
	_, err = os.Lstat(a.Path)
	absent := errors.Is(err, fs.ErrNotExist)
	d, err := s.createDrive(ctx, len(list), n+1, a.Path, layout.SegmentOffset(segments, s.space.SegmentBytes), limit)
	if err != nil {
		if absent { // what is left of it would keep the next try from it
			err = errors.Join(err, s.unmake(a.Path))
		}
		return nil, err
	}
	row := d.Row()
	b := s.catalog.NewBatch()
	b.PutDevice(&row)
	disclaim := s.claimAdded(b, d)
	if err := s.rows.Unsure(s.catalog.Commit(s.ctx, b, true)); err != nil {
		disclaim()
		if !catalog.Refused(err) { // the row may be there, and an open asks for the device
			return nil, errors.Join(err, d.Dev.Close())
		}
		if absent {
			return nil, errors.Join(err, d.Dev.Close(), s.unmake(a.Path))
		}
		return nil, errors.Join(err, s.takeBackName(d), d.Dev.Close())
	}
	s.log.Info("device added", "device", d.Index, "path", d.Path, "serial", d.Serial, "bytes", d.Dev.Size())
	return d, nil
}

// segmentsOfNew is how many segments a file is made for.
func (s *Store) segmentsOfNew(a NewDevice) (int, error) {
	size := a.Bytes
	if size == 0 {
		for _, d := range s.members.All() {
			if !d.Removed.Load() && (size == 0 || d.Dev.Size() < size) {
				size = d.Dev.Size()
			}
		}
	}
	segments := layout.Segments(size, s.space.SegmentBytes)
	if segments < 3 {
		return 0, skep.Invalidf("add device", "size", size, fmt.Sprintf("at least %d: three segments of %d", layout.SegmentOffset(3, s.space.SegmentBytes), s.space.SegmentBytes))
	}
	return segments, nil
}

// unmake removes the file of a device that is not the store's after all.
func (s *Store) unmake(path string) error {
	if s.options.customDevices {
		return nil
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// takeBackName makes a device that was there before nobody's again: two with one number would be met by a rebuild. Not
// under a caller's context, which may be over.
func (s *Store) takeBackName(d *space.Drive) error {
	ctx, cancel := context.WithTimeout(s.ctx, s.options.OpTimeout)
	defer cancel()
	return segio.Wipe(ctx, s.space.Durably(d))
}

// AddDevice adds a device to the store while it is in use. It takes part in groups opened
// from then on, and what is stored already is spread over it in the background, or by
// Rebalance. An error says that the device is not in use; it may be added again then.
func (s *Store) AddDevice(ctx context.Context, a NewDevice) error {
	const op = "add device"
	if err := s.gate.EnterWrite(ctx, op); err != nil {
		return err
	}
	defer s.gate.Leave()
	ctx, cancel := gate.Until(ctx, s.closing)
	defer cancel()
	if err := s.members.Take(ctx, op); err != nil {
		return err
	}
	defer s.members.Give()
	if !s.options.customDevices {
		abs, err := filepath.Abs(a.Path)
		if err != nil {
			return &skep.Error{Op: op, Kind: skep.Invalid, Field: "path", Value: a.Path, Limit: "absolute where the working directory is not known", Err: err}
		}
		a.Path = abs
	}
	if err := refuseOwn(s.id, s.members.All(), a.Path); err != nil {
		return err
	}
	d, err := s.addDrive(ctx, a)
	if err != nil {
		return err
	}
	s.watchDrive(d)
	s.space.Join(d, func() { s.members.Add(d) })
	s.pinFor(d)
	s.space.Reroom()
	s.moving.Kick()
	s.members.Restamp()
	s.stampOwner(s.ctx, d)
	return nil
}

// disown takes a device that has this store's superblock and is not in its catalog out of the way, as an add that was
// cut short leaves one: a file is removed, a block device's first pages are cleared. One on which something was ever
// written is left alone: a catalog that was made without it does not know it, and a rebuild can use it.
func (s *Store) disown(ctx context.Context, path string, sb *segment.Superblock) error {
	dev, err := s.options.OpenDevice(0, path, false, 0)
	if err != nil {
		return err
	}
	d := &space.Drive{Path: path, ID: sb.Device, SegBytes: sb.SegmentBytes, Segments: layout.Segments(dev.Size(), sb.SegmentBytes)}
	d.Use(dev)
	if !s.holdsNothing(ctx, d) {
		return errors.Join(&skep.Error{Op: "add device", Kind: skep.Conflict, Field: "path", Value: path,
			Limit: "blank; it holds blocks of this store that its catalog does not know: a rebuild with it takes them in, or remove it first"}, dev.Close())
	}
	if st, err := os.Stat(path); err == nil && st.Mode().IsRegular() {
		return errors.Join(dev.Close(), os.Remove(path))
	}
	return errors.Join(segio.Wipe(ctx, s.space.Durably(d)), dev.Close())
}
