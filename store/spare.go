package store

import (
	"slices"
	"time"
)

// Opening a group takes a synced catalog row and a header on each drive, which queue
// behind the writes under way there: tens of milliseconds on busy drives, in which nothing
// can be placed. So while groups are written, the next ones are made ready.
//
// A spare counts as free. It is opened by whoever opens a group next, the cleaner too. One
// that is left at a crash is an open group in which nothing lies, and an orderly close
// deletes its row: either way its segments are free at the next open.

const (
	// maxSpares is how many are kept: small groups fill faster than one can be opened.
	maxSpares = 4
	// sparePart is the share of the free groups that may be spares.
	sparePart = 4
	// spareRest is how many times an operation's timeout none is made after one failed.
	spareRest = 10
)

// takingLocked is how many drives a group would have that is opened now. REQUIRES: space.mu.
func (s *Store) takingLocked() (n int) {
	for _, d := range s.allDrives() {
		if d.failed == nil && (len(d.free) > 0 || d.segments < d.limit) {
			n++
		}
	}
	return n
}

// takeSpareLocked gives a spare, unless there is none whose drives all take new groups, and that has
// as many as a group would have now: one that was made while a drive was fenced has no room for copies.
// REQUIRES: space.mu.
func (s *Store) takeSpareLocked() *group {
	sp := &s.space
	for len(sp.mu.spares) > 0 {
		g := sp.mu.spares[0]
		sp.mu.spares = sp.mu.spares[1:]
		failed := slices.ContainsFunc(g.drives, func(d *drive) bool { return d.failed != nil })
		if !failed && len(g.drives) >= s.takingLocked() {
			return g
		}
		sp.unwantLocked(g)
		s.cleaner.kick()
	}
	return nil
}

// makeSpares makes the next groups ready, behind the caller's back. It is an
// optimisation: when it fails, whoever needs a group finds out why, and no other is tried
// for a while, because a header that hangs keeps its segments.
func (s *Store) makeSpares() {
	sp := &s.space
	sp.mu.Lock()
	defer sp.mu.Unlock()
	if s.ctx.Err() != nil || time.Since(sp.mu.spareFailed) < spareRest*s.options.OpTimeout {
		return
	}
	for want := min(maxSpares, s.freeGroupsLocked()/sparePart); len(sp.mu.spares)+sp.mu.sparing < want; {
		sp.mu.sparing++
		s.background.Go(func() {
			g, err := s.newGroup(s.ctx, 0)
			sp.mu.Lock()
			defer sp.mu.Unlock()
			defer s.cleaner.kick() // it waited for how this ends
			if sp.mu.sparing--; err == nil {
				sp.mu.spares = append(sp.mu.spares, g)
				close(sp.mu.freed)
				sp.mu.freed = make(chan struct{})
			} else {
				sp.mu.spareFailed = time.Now()
				s.log.Debug("no spare group", "error", err)
			}
		})
	}
}

// sparing says whether a spare is being made.
func (s *Store) sparing() bool {
	s.space.mu.Lock()
	defer s.space.mu.Unlock()
	return s.space.mu.sparing > 0
}
