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
	// growAgain is how long a device that could not grow is taken as it is.
	growAgain = 5 * time.Second
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
		s.tryGrowing()
		if time.Since(reckoned) > reckonEvery && len(s.uncapped()) > 0 {
			reckoned = time.Now()
			s.reroom() // others use the file systems, too
		}
	}
}

// tryGrowing lets devices grow again that could not for a while, where there is space now.
func (s *Store) tryGrowing() {
	s.space.mu.Lock()
	var list []*drive
	for _, d := range s.allDrives() {
		if d.wanted > d.limit && time.Since(d.stunted) > growAgain {
			list = append(list, d)
		}
	}
	s.space.mu.Unlock()
	grown := false
	for _, d := range list {
		grow := s.checkReserve(d, d.segBytes) == nil
		grown = grown || grow
		s.space.mu.Lock()
		d.stunted = time.Now()
		if grow {
			d.limit = d.wanted
		}
		s.space.mu.Unlock()
		if grow {
			s.log.Info("device may grow again: its file system has room", "device", d.path)
		}
	}
	if grown {
		s.reroom()
	}
}

// warnOfCramped says at an open what will keep devices from growing.
func (s *Store) warnOfCramped() {
	for _, d := range s.allDrives() {
		if d.limit != unlimitedSegments || d.absent != nil {
			continue
		}
		if err := s.checkReserve(d, growLeast); err != nil {
			s.log.Warn("device cannot grow: puts will find room only by dropping what is stored, or be declined. "+
				"Free space in its file system, or lower ReserveBytes, or set CapacityBytes", "device", d.path, "bytes", d.dev.Size(), "error", err)
		}
	}
}
