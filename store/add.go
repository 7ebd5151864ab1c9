package store

import (
	"context"
	"errors"
	"path/filepath"
	"slices"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/internal/gate"
)

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
	if rest := slices.DeleteFunc(slices.Clone(list), func(a NewDevice) bool { return s.opening.Has(a.Path) }); len(rest) > 0 {
		list = rest // the others were added by a call that did not get to these
	}
	for _, a := range list {
		if err := s.AddDevice(ctx, a); err != nil {
			return nil, errors.Join(err, s.Close())
		}
	}
	return s, nil
}

// AddDevice adds a device to the store while it is in use. It takes part in groups opened
// from then on, and what is stored already is spread over it in the background, or by
// Rebalance. An error says that the device is not in use; it may be added again then.
func (s *Store) AddDevice(ctx context.Context, a NewDevice) error {
	err := addDevice(ctx, s, a)
	if err == nil {
		s.opening.TellNamed()
	}
	return err
}

func addDevice(ctx context.Context, s *Store, a NewDevice) error {
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
	if err := refuseOwn(s.opening.ID, s.members.All(), a.Path); err != nil {
		return err
	}
	d, err := s.opening.Add(ctx, a.Path, a.Bytes, a.Smaller)
	if err != nil {
		return err
	}
	s.space.Watch(d)
	s.space.Join(d, func() { s.members.Add(d) })
	s.arena.Register(s.ctx, d)
	s.space.Reroom()
	s.moving.Kick()
	s.members.Restamp()
	s.opening.Stamp(s.ctx, d)
	return nil
}
