package store

import (
	"context"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/catalog"
	"github.com/skepkv/skep/store/internal/health"
	"github.com/skepkv/skep/store/internal/space"
)

// KeepDevice takes a drain back: the device is used again, in later opens too, and a drain or a removal of it that is
// under way ends with an error. What was moved off it comes back as the store rebalances. A device that is not being
// drained is left as it is.
func (s *Store) KeepDevice(ctx context.Context, name string) error {
	const op = "keep device"
	if err := s.gate.EnterWrite(ctx, op); err != nil {
		return err
	}
	defer s.gate.Leave()
	d, err := s.findDrive(op, name)
	if err != nil {
		return err
	}
	if err := s.tasks.takeMembers(ctx, op); err != nil {
		return err
	}
	defer s.tasks.giveMembers()
	if !d.Retired.Load() {
		return nil
	}
	if d.Removed.Load() {
		return &skep.Error{Op: op, Kind: skep.NotFound, Field: "device", Value: name,
			Limit: "a device of the store; it was removed"}
	}
	row := s.space.RowOf(d)
	row.State = catalog.DeviceInUse
	b := s.catalog.NewBatch()
	b.PutDevice(&row)
	if err := s.catalog.Commit(s.ctx, b, true); err != nil { // what it says must be known here
		return err
	}
	d.Retired.Store(false)
	if c := d.Condition(); c < health.Fenced {
		s.space.Include(d, c)
	}
	s.space.Reroom()
	s.tasks.kick()
	return nil
}

// errKept is what a drain or a removal ends with when the device is to be kept after all.
func errKept(op string, d *space.Drive) error {
	return &skep.Error{Op: op, Kind: skep.Conflict, Field: "device", Value: d.Path,
		Limit: "one that is being drained: it is kept (the drain was taken back)"}
}
