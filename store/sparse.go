package store

import (
	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout"
)

// DeviceOf says on which drive a stored block begins, for who lays data out by drive
// (package store/sparse). It is where the block is now; cleaning may move it.
func (s *Store) DeviceOf(sc skep.Scope, key skep.Key) (device int, ok bool) {
	ns, t, err := s.names.resolve("device of", sc)
	if err != nil {
		return 0, false
	}
	e, ok := s.index.Resolve(s.names.fingerprint(ns.instance, t, key))
	if !ok || e.Location == 0 {
		return 0, false
	}
	loc := layout.Unpack(e.Location)
	g := s.space.pin(loc.Group)
	if g == nil {
		return 0, false
	}
	defer s.unpin(g)
	if int(loc.Device) >= len(g.drives) {
		return 0, false
	}
	return int(g.drives[loc.Device].index), true
}

// DeviceCount is the number of drives.
func (s *Store) DeviceCount() int { return len(s.allDrives()) }
