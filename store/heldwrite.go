package store

import (
	"slices"

	"github.com/skepkv/skep/store/device"
	"github.com/skepkv/skep/store/internal/health"
	"github.com/skepkv/skep/store/internal/segio"
	"github.com/skepkv/skep/store/internal/space"
)

// What drives still write for groups, and drives that never answer.
//
// A group is busy as long as a drive may write to it. One that hangs may do so for ever, and would keep its groups from
// being emptied: just the drive that an administrator wants to take out. So once whoever wrote has given the write up, and
// only drives have it that are dead or to be emptied, the group is let go of: it may be emptied, and its segments on other
// drives used again. What the write has hold of stays untouched until it has ended: the memory it is made from (loan), and
// the segment it lands in.
//
//	under way ──ended──▶ the group is not busy with it any more
//	    └─▶ given up ──let go──▶ late ──ended──▶ its segments are free, if the group's are

// writing is the writes of an append that are with the drives.
type writing struct {
	*segio.Batch
	end     func()      // of the mark: what is given up was never committed
	givenUp bool        // by who wrote it: nothing of it will be committed; guarded by space.mu
	late    []lateWrite // the group was let go of without it; guarded by space.mu
}

type lateWrite struct {
	drive   *drive
	segment uint32
}

// lateWrites are the writes that a drive may yet make to a segment whose group was let go of.
type lateWrites struct {
	n    int
	free bool // the segment is free once they have ended
}

// writes has g busy with an append's writes, which are about to be given to the drives. ended is called before g is told.
func (s *Store) writes(a *appending, n int, bytes int64, ended func()) {
	seq, g := a.seq, a.g
	w := &writing{Batch: segio.NewBatch(n)}
	w.end = func() { s.root.End(seq, bytes) }
	s.space.mu.Lock()
	g.writing = append(g.writing, w)
	s.space.mu.Unlock()
	a.writes = w.Batch
	w.After(func() {
		// Only now can no drive write to these cells, or from this memory, any more.
		ended()
		s.wrote(g, w)
	})
}

// wrote is called when writes of g have ended.
func (s *Store) wrote(g *group, w *writing) {
	sp := &s.space
	sp.mu.Lock()
	defer sp.mu.Unlock()
	g.writing = slices.DeleteFunc(g.writing, func(o *writing) bool { return o == w })
	if w.late == nil {
		w.end()
		g.pending--
		s.recordSealedLocked(g)
		sp.easedBy(g)
		return
	}
	freed := false
	for _, l := range w.late {
		had := l.drive.late[l.segment]
		if had.n--; had.n > 0 {
			continue
		}
		delete(l.drive.late, l.segment)
		if had.free {
			l.drive.giveLocked(l.segment)
			freed = true
		}
	}
	if freed {
		close(sp.mu.freed)
		sp.mu.freed = make(chan struct{})
	}
}

// giveWritesUp notes that nothing of what an append writes will be committed.
func (s *Store) giveWritesUp(a *appending) {
	s.space.mu.Lock()
	defer s.space.mu.Unlock()
	for _, w := range a.g.writing {
		w.givenUp = w.givenUp || w.Batch == a.writes
	}
}

// idleLocked says whether a group can be emptied now: it is sealed, nobody has it, and no write to it is under way but
// such as it can be let go of without. REQUIRES: sp.mu.
func (sp *groupTable) idleLocked(g *group) bool {
	if g.life.State() != space.Sealed {
		return false
	}
	if g.pending > 0 {
		sp.letGoLocked(g)
	}
	return g.pending == 0
}

// claim gives a group that can be emptied now to who asks for it, until release. False: it is in use, or gone.
func (sp *groupTable) claim(g *group, c space.Claim) bool {
	sp.mu.Lock()
	defer sp.mu.Unlock()
	if !sp.mu.groups.Has(g) || !sp.idleLocked(g) {
		return false
	}
	g.life.Take(c)
	return true
}

// release lets others have a group that was claimed and not emptied. The cleaner is not told of what it gives back itself.
func (sp *groupTable) release(g *group) {
	sp.mu.Lock()
	defer sp.mu.Unlock()
	if g.life.Release().By != space.Cleaner {
		sp.easedBy(g)
	}
}

// isIdle says whether a group could be claimed now.
func (sp *groupTable) isIdle(g *group) bool {
	sp.mu.Lock()
	defer sp.mu.Unlock()
	return sp.mu.groups.Has(g) && sp.idleLocked(g)
}

// letGoLocked has g not wait for writes that were given up and that only drives have which are dead or to be emptied. As long
// as something else of g is under way it stays as it is. REQUIRES: sp.mu.
func (sp *groupTable) letGoLocked(g *group) {
	var list []*writing
	for _, w := range g.writing {
		switch {
		case w.late != nil:
		case !w.givenUp || !w.OwedOnlyBy(func(dev device.Device) bool { return g.hangs(dev) }):
			return
		default:
			list = append(list, w)
		}
	}
	if len(list) != g.pending {
		return // of another it is not known yet whether it was committed
	}
	for _, w := range list {
		for i, d := range g.drives {
			if !w.Owes(d.dev) {
				continue
			}
			w.late = append(w.late, lateWrite{d, g.segments[i]})
			if d.late == nil {
				d.late = map[uint32]*lateWrites{}
			}
			if d.late[g.segments[i]] == nil {
				d.late[g.segments[i]] = &lateWrites{}
			}
			d.late[g.segments[i]].n++
		}
		if w.late == nil {
			continue // it has just ended, and says so next
		}
		w.end()
		g.pending--
	}
}

// hangs says of a device of g that nobody waits for what it was given.
func (g *group) hangs(dev device.Device) bool {
	return slices.ContainsFunc(g.drives, func(d *drive) bool {
		return d.dev == dev && (d.condition() == health.Dead || d.retired.Load())
	})
}
