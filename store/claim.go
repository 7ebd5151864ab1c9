package store

import (
	"context"

	"github.com/skepkv/skep/store/catalog"
	"github.com/skepkv/skep/store/internal/health"
	"github.com/skepkv/skep/store/internal/places"
	"github.com/skepkv/skep/store/internal/segio"
	"github.com/skepkv/skep/store/internal/space"
)

// Places finds the devices of the store in a directory.
type Places = places.Places

// PlacesOf is for the store id in dir, whose catalog says owner, if known.
func PlacesOf(dir string, id [16]byte, owner catalog.Owner, known bool) *Places {
	return places.Of(dir, id, owner, known)
}

// locateDrive says where a drive is now.
func (s *Store) locateDrive(r catalog.DeviceState) (string, error) {
	if s.options.customDevices {
		return r.Path, nil
	}
	return s.places.Find(r)
}

// claim adds to b whose the devices are, where the catalog does not say so yet. The devices
// themselves are told afterwards, by stampOwner. REQUIRES: s.members.Opened are all.
func (s *Store) claim(b *catalog.Batch) error {
	if s.options.customDevices {
		return nil
	}
	if s.places == nil { // there was no catalog
		s.places = PlacesOf(s.options.Dir, s.id, catalog.Owner{}, false)
	}
	devices := make([]places.Device, len(s.members.Opened))
	for i, d := range s.members.Opened {
		devices[i] = places.Device{ID: d.ID, Path: d.Path, Removed: d.Removed.Load(), Absent: d.Absent != nil}
	}
	c, err := s.places.Own(devices)
	if err != nil || c.Row == nil {
		return err
	}
	if c.Was != "" {
		s.log.Warn("the store's directory is not where it was when last opened",
			"was", c.Was, "now", c.Row.Path, "copy", c.Copy)
	}
	b.PutOwner(c.Row)
	return nil
}

// stampOwner writes on devices outside the directory whose they are, once the catalog says so. What
// cannot be written is written at a later open: until then both names count.
func (s *Store) stampOwner(ctx context.Context, drives ...*space.Drive) {
	if s.options.noStamp || s.options.customDevices {
		return
	}
	changed := false
	for _, d := range drives {
		o, ok := s.places.Stamp(d.ID)
		if !ok || d.Absent != nil || d.Condition() >= health.Fenced {
			continue
		}
		within, cancel := context.WithTimeout(ctx, s.options.OpTimeout)
		err := segio.WriteOwner(within, s.space.Durably(d), &o)
		cancel()
		if err != nil {
			s.log.Warn("device does not say whose it is yet; it is written again", "device", d.Path, "error", err)
			continue
		}
		s.places.Stamped(d.ID)
		changed = true
	}
	if changed {
		b := s.catalog.NewBatch()
		b.PutOwner(s.places.Row())
		if err := s.catalog.Commit(ctx, b, false); err != nil {
			s.log.Warn("whose the devices are is noted again at the next open", "error", err)
		}
	}
}

// claimAdded is claim for a drive that is added to a store in use; disclaim is for who could not commit b. REQUIRES:
// tasks.members.
func (s *Store) claimAdded(b *catalog.Batch, d *space.Drive) (disclaim func()) {
	if s.options.customDevices || s.places == nil {
		return func() {}
	}
	row := s.places.Add(d.ID, d.Path)
	if row == nil {
		return func() {}
	}
	b.PutOwner(row)
	return func() { s.places.Forget(d.ID) }
}
