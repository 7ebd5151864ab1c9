package store

import (
	"fmt"
	"path/filepath"
	"time"
)

// File systems that fill up.
//
// The devices are preallocated, so a full file system keeps them from growing and from
// nothing else: what they have is the cap then, until there is space again. The catalog
// is written with every change, and Pebble does not survive a log that cannot be written;
// so puts are declined while its file system has less left than a reserve, which stays
// for deletes, the cleaner and the flushed-up-to mark. Both are looked at again and again:
// no restart is needed.

const (
	// catalogReserve is what puts leave in the catalog's file system: two of Pebble's logs,
	// and a compaction or two.
	catalogReserve = 128 << 20
	// fullEvery is how often file systems are looked at.
	fullEvery = 250 * time.Millisecond
	// growAgain is how long a device that could not grow is taken as it is.
	growAgain = 5 * time.Second
)

// watchSpace looks after file systems that fill up, until the store is closed.
func (s *Store) watchSpace() {
	tick := time.NewTicker(fullEvery)
	defer tick.Stop()
	for {
		select {
		case <-s.closing:
			return
		case <-tick.C:
		}
		s.lookAtCatalog()
		s.tryGrowing()
	}
}

// lookAtCatalog finds out whether the catalog has room for what puts add to it.
func (s *Store) lookAtCatalog() {
	use, err := s.options.CatalogFS.GetDiskUsage(s.catalogDir())
	if err != nil {
		return // not known on this file system: it is found out the hard way
	}
	reserve := min(uint64(catalogReserve), use.TotalBytes/20)
	was := s.catalogFull.Load()
	is := use.AvailBytes < reserve || was && use.AvailBytes < reserve+reserve/4
	if is == was {
		return
	}
	s.catalogFull.Store(is)
	if is {
		text := fmt.Sprintf("full: the file system of the catalog has %d bytes left, fewer than %d: puts are declined until there is more", use.AvailBytes, reserve)
		s.fullText.Store(&text)
		s.log.Error("puts are declined: the catalog's file system is nearly full; free some space, everything else goes on",
			"dir", s.catalogDir(), "left", use.AvailBytes, "needed", reserve)
	} else {
		s.log.Info("the catalog's file system has room again: puts are taken", "dir", s.catalogDir(), "left", use.AvailBytes)
	}
}

func (s *Store) catalogDir() string {
	if d := s.options.CatalogDir; d != "" {
		return d
	}
	return filepath.Join(s.options.Dir, "catalog")
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
	for _, d := range list {
		grow := s.checkReserve(d, growLeast) == nil
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
