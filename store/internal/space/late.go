package space

import (
	"slices"

	"github.com/skepkv/skep/store/device"
	"github.com/skepkv/skep/store/internal/segio"
)

// What drives still write for groups, and drives that never answer.
//
// A group is busy as long as a drive may write to it. One that hangs may do so for ever, and would keep its groups
// from being emptied: just the drive that an administrator wants to take out. So once whoever wrote has given the
// write up, and only drives have it that are dead or to be emptied, the group is let go of: it may be emptied, and its
// segments on other drives used again. What the write has hold of stays untouched until it has ended: the memory it is
// made from (loan), and the segment it lands in.
//
//	under way ──ended──▶ the group is not busy with it any more
//	    └─▶ given up ──let go──▶ late ──ended──▶ its segments are free, if the group's are

// writing is the writes of an append that are with the drives.
type writing struct {
	*segio.Batch
	end     func()      // of the mark: what is given up was never committed
	givenUp bool        // by who wrote it: nothing of it will be committed; guarded by the lock of the table
	late    []lateWrite // the group was let go of without it; guarded by the lock of the table
}

type lateWrite struct {
	drive   *Drive
	segment uint32
}

// lateWrites are the writes that a drive may yet make to a segment whose group was let go of.
type lateWrites struct {
	n    int
	free bool // the segment is free once they have ended
}

// BeginWrites has g busy with an append's writes, which are about to be given to the drives. ended is called before
// g is told.
func (t *Table) BeginWrites(r *Reservation, n int, bytes int64, ended func()) *segio.Batch {
	g, seq := r.Group, r.Seq
	w := &writing{Batch: segio.NewBatch(n)}
	w.end = func() { t.Root.End(seq, bytes) }
	t.mu.Lock()
	g.Writing = append(g.Writing, w)
	t.mu.Unlock()
	w.After(func() {
		// Only now can no drive write to these cells, or from this memory, any more.
		ended()
		t.wrote(g, w)
	})
	return w.Batch
}

// wrote is called when writes of g have ended.
func (t *Table) wrote(g *Group, w *writing) {
	t.mu.Lock()
	defer t.mu.Unlock()
	g.Writing = slices.DeleteFunc(g.Writing, func(o *writing) bool { return o == w })
	if w.late == nil {
		w.end()
		g.Pending--
		t.recordSealedLocked(g)
		t.easedBy(g)
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
		t.freedLocked()
	}
}

// GiveUp notes that nothing of what an append writes to g will be committed.
func (t *Table) GiveUp(g *Group, writes *segio.Batch) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, w := range g.Writing {
		w.givenUp = w.givenUp || w.Batch == writes
	}
}

// idleLocked says whether a group can be emptied now: it is sealed, nobody has it, and no write to it is under way but
// such as it can be let go of without. REQUIRES: t.mu.
func (t *Table) idleLocked(g *Group) bool {
	if g.Life.State() != Sealed {
		return false
	}
	if g.Pending > 0 {
		t.letGoLocked(g)
	}
	return g.Pending == 0
}

// Claim gives a group that can be emptied now to who asks for it, until release. False: it is in use, or gone.
func (t *Table) Claim(g *Group, c Claim) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.mu.Groups.Has(g) || !t.idleLocked(g) {
		return false
	}
	g.Life.Take(c)
	return true
}

// Release lets others have a group that was claimed and not emptied. The cleaner is not told of what it gives back
// itself.
func (t *Table) Release(g *Group) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if g.Life.Release().By != Cleaner {
		t.easedBy(g)
	}
}

// CanClaim says whether the group of a number could be claimed now, and cleaned for room: one whose drives are all away
// gives none before one of them is back.
func (t *Table) CanClaim(num uint32) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	g := t.mu.Groups.Get(num)
	return g != nil && !g.untold() && t.idleLocked(g)
}

// IsIdle says whether a group could be claimed now.
func (t *Table) IsIdle(g *Group) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.mu.Groups.Has(g) && t.idleLocked(g)
}

// letGoLocked has g not wait for writes that were given up and that only drives have which are dead or to be emptied.
// As long as something else of g is under way it stays as it is. REQUIRES: t.mu.
func (t *Table) letGoLocked(g *Group) {
	var list []*writing
	for _, w := range g.Writing {
		switch {
		case w.late != nil:
		case !w.givenUp || !w.OwedOnlyBy(func(dev device.Device) bool { return g.hangs(dev) }):
			return
		default:
			list = append(list, w)
		}
	}
	if len(list) != g.Pending {
		return // of another it is not known yet whether it was committed
	}
	for _, w := range list {
		for i, d := range g.Drives {
			if !w.Owes(d.Dev) {
				continue
			}
			w.late = append(w.late, lateWrite{d, g.Segments[i]})
			if d.late == nil {
				d.late = map[uint32]*lateWrites{}
			}
			if d.late[g.Segments[i]] == nil {
				d.late[g.Segments[i]] = &lateWrites{}
			}
			d.late[g.Segments[i]].n++
		}
		if w.late == nil {
			continue // it has just ended, and says so next
		}
		w.end()
		g.Pending--
	}
}

// IsQuiet says of a group that nothing is placed in it any more, and nothing of it is under way.
func (t *Table) IsQuiet(g *Group) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return g.Life.State() >= Sealed && g.quiet()
}
