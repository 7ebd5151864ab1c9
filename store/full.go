package store

import "time"

// File systems that fill up.
//
// The devices are preallocated, so a full file system keeps them from growing and from
// nothing else: what they have is the cap then, until there is space again. For what the
// catalog is in, package room decides.

const (
	// fullEvery is how often file systems are looked at.
	fullEvery = 250 * time.Millisecond
	// reckonEvery is how often the room of a store without a cap is reckoned anew.
	reckonEvery = 5 * time.Second
)

// watchSpace looks after file systems that fill up, until the store is closed.
func (s *Store) watchSpace() {
	s.catalogRoom.Look(s.catalog.Scarce())
	tick := time.NewTicker(fullEvery)
	defer tick.Stop()
	reckoned := time.Now()
	for {
		select {
		case <-s.closing:
			return
		case <-tick.C:
		}
		s.catalogRoom.Look(s.catalog.Scarce())
		s.space.TryGrowing()
		if time.Since(reckoned) > reckonEvery && len(s.space.Uncapped()) > 0 {
			reckoned = time.Now()
			s.space.Reroom() // others use the file systems, too
		}
	}
}
