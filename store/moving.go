package store

import (
	"context"
	"path/filepath"
)

// Tasks is what was moved since the open, by task.
func (s *Store) Tasks() []Progress { return s.moving.Tasks() }

// Compact rewrites groups that have holes or whose chains lie scattered: what lives in
// them is written again in the order of its chains, and they are freed. Nothing is
// dropped. Deletes, restores and puts go on meanwhile.
func (s *Store) Compact(ctx context.Context, o MoveOptions) (CompactResult, error) {
	return s.moving.Compact(ctx, o)
}

// FindDevice says, as an error of kind NotFound, that no device of the store has that name, or several do.
func (s *Store) FindDevice(name string) error {
	_, err := s.members.Find("find device", name)
	return err
}

// DrainDevice moves everything off a device: nothing new goes there from now on, in later
// opens too, and what it holds is written again on the others. Cache blocks that cannot be
// read are forgotten; Durable ones stay where they are, and the error says how many.
func (s *Store) DrainDevice(ctx context.Context, name string, o MoveOptions) (Progress, error) {
	return s.moving.Drain(ctx, name, o)
}

// KeepDevice takes a drain back: the device is used again, in later opens too, and a drain or a removal of it that is
// under way ends with an error. What was moved off it comes back as the store rebalances. A device that is not being
// drained is left as it is.
func (s *Store) KeepDevice(ctx context.Context, name string) error { return s.moving.Keep(ctx, name) }

// RemoveDevice drains a device and takes it out of the store. With Force, durable blocks
// that cannot be read any more are given up. A block device is wiped where it can be
// written, a file is removed; its index is not used again.
func (s *Store) RemoveDevice(ctx context.Context, name string, o MoveOptions) (Progress, error) {
	p, err := s.moving.Remove(ctx, name, o)
	if err == nil && !o.DryRun {
		s.opening.TellNamed()
	}
	return p, err
}

// ReplaceDevice adds a device, and drains and takes out another. What would keep that one in the store is told before
// any is added. One that began goes on where it is asked for with the same two once more.
func (s *Store) ReplaceDevice(ctx context.Context, name string, a NewDevice, o MoveOptions) (Progress, error) {
	const op = "replace device"
	old, err := s.members.Find(op, name)
	if err != nil {
		return Progress{}, err
	}
	if abs, err := filepath.Abs(a.Path); err == nil && !s.options.customDevices {
		a.Path = abs
	}
	if d, err := s.members.Find(op, a.Path); err == nil && d != old && old.Retired.Load() {
		return s.RemoveDevice(ctx, name, o) // it was added before
	}
	dry := o
	dry.DryRun, dry.Joining = true, 1
	if p, err := s.moving.Remove(ctx, name, dry); err != nil || o.DryRun {
		return p, err
	}
	if err := addDevice(ctx, s, a); err != nil {
		return Progress{}, err
	}
	defer s.opening.TellNamed() // whatever became of the old one
	return s.moving.Remove(ctx, name, o)
}

// Rebalance spreads what is stored over devices that were added, and returns when they
// are filled about alike. The same goes on in the background by itself.
func (s *Store) Rebalance(ctx context.Context, o MoveOptions) (Progress, error) {
	return s.moving.Rebalance(ctx, o)
}
