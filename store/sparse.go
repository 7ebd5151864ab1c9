package store

import (
	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout"
)

// DeviceOf implements skep.Store.
func (s *Store) DeviceOf(sc skep.Scope, key skep.Key) (device int, err error) {
	const op = "device of"
	ns, t, err := s.names.Resolve(op, sc)
	if err != nil {
		return 0, err
	}
	nowhere := &skep.Error{Op: op, Kind: skep.NotFound, Field: "block", Value: key.Short(), Limit: "one that is on a drive"}
	e, ok := s.index.Resolve(s.names.Fingerprint(ns.Instance, t, key))
	if !ok || e.Location == 0 {
		return 0, nowhere
	}
	loc := layout.Unpack(e.Location)
	g := s.space.Pin(loc.Group)
	if g == nil {
		return 0, nowhere
	}
	defer s.space.Unpin(g)
	if int(loc.Device) >= len(g.Drives) {
		return 0, nowhere
	}
	return int(g.Drives[loc.Device].Index), nil
}

// DeviceCount implements skep.Store.
func (s *Store) DeviceCount() (int, error) { return len(s.members.All()), nil }
