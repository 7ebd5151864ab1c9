package store

import (
	"fmt"
	"time"

	"github.com/skepkv/skep/store/internal/observe"
)

// File systems that fill up.
//
// The devices are preallocated, so a full file system keeps them from growing and from
// nothing else: what they have is the cap then, until there is space again. The catalog
// is written with every change, and Pebble does not survive a log that cannot be written;
// so puts are declined while its file system has less left than a reserve, which stays
// for deletes, the cleaner and the flushed-up-to mark. The same holds for descriptors, of
// which the catalog has a few in reserve. All are looked at again and again:
// no restart is needed.

const (
	// catalogReserve is what puts leave in the catalog's file system: two of Pebble's logs,
	// and a compaction or two.
	catalogReserve = 128 << 20
	// fullEvery is how often file systems are looked at.
	fullEvery = 250 * time.Millisecond
	// growAgain is how long a device that could not grow is taken as it is.
	growAgain = 5 * time.Second
	// reckonEvery is how often the room of a store without a cap is reckoned anew.
	reckonEvery = 5 * time.Second
)

// watchSpace looks after file systems that fill up, until the store is closed.
func (s *Store) watchSpace() {
	s.lookAtCatalog()
	tick := time.NewTicker(fullEvery)
	defer tick.Stop()
	reckoned := time.Now()
	for {
		select {
		case <-s.closing:
			return
		case <-tick.C:
		}
		s.lookAtCatalog()
		s.tryGrowing()
		if time.Since(reckoned) > reckonEvery && len(s.uncapped()) > 0 {
			reckoned = time.Now()
			s.reroom() // others use the file systems, too
		}
	}
}

// lookAtCatalog finds out whether the catalog has room, and descriptors, for what puts add to it.
func (s *Store) lookAtCatalog() {
	if err := s.catalog.Scarce(); err != nil {
		s.declinePuts("full: the catalog has no descriptors in reserve: puts are declined until it has", err)
		return
	}
	use, err := s.catalogUse()
	if err != nil {
		s.takePuts() // not known on this file system: it is found out the hard way
		return
	}
	s.takeBallast(use)
	reserve := catalogNeeds(use)
	s.catalogDisk.Store(&observe.Disk{Size: use.TotalBytes, Free: use.AvailBytes, Reserve: reserve})
	if use.AvailBytes < reserve || s.catalogFull.Load() && use.AvailBytes < reserve+reserve/4 {
		s.declinePuts(fmt.Sprintf("full: the file system of the catalog has %d bytes left, fewer than %d: puts are declined until there is more",
			use.AvailBytes, reserve), nil)
		return
	}
	s.takePuts()
}

// declinePuts has puts declined from now on, for the reason in text.
func (s *Store) declinePuts(text string, err error) {
	s.fullText.Store(&text)
	if !s.catalogFull.Swap(true) {
		s.log.Error("puts are declined, everything else goes on", "why", text, "error", err, "dir", s.options.catalogDir())
	}
}

func (s *Store) takePuts() {
	if s.catalogFull.Swap(false) {
		s.log.Info("the catalog has room and descriptors again: puts are taken", "dir", s.options.catalogDir())
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
