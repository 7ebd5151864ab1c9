package space

import (
	"slices"
	"time"

	"github.com/skepkv/skep"
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

// takingLocked is how many drives a group would have that is opened now. REQUIRES: the table's lock.
func (t *Table) takingLocked() (n int) {
	for _, d := range t.Drives() {
		if d.Failed == nil && (len(d.Free) > 0 || d.Segments < d.Limit) {
			n++
		}
	}
	return n
}

// takeSpareLocked gives a spare, unless there is none whose drives all take new groups, and that has
// as many as a group would have now: one that was made while a drive was fenced has no room for copies.
// REQUIRES: the table's lock.
func (t *Table) takeSpareLocked() *Group {
	for len(t.mu.Spares) > 0 {
		g := t.mu.Spares[0]
		t.mu.Spares = t.mu.Spares[1:]
		failed := slices.ContainsFunc(g.Drives, func(d *Drive) bool { return d.Failed != nil })
		if !failed && len(g.Drives) >= t.takingLocked() {
			return g
		}
		t.unwantLocked(g)
		t.Kick()
	}
	return nil
}

// makeSpares makes the next groups ready, behind the caller's back. It is an
// optimisation: when it fails, whoever needs a group finds out why, and no other is tried
// for a while, because a header that hangs keeps its segments.
func (t *Table) makeSpares() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.Context.Err() != nil || time.Since(t.mu.spareFailed) < spareRest*t.Timeout {
		return
	}
	for want := min(maxSpares, t.freeGroupsLocked()/sparePart); len(t.mu.Spares)+t.mu.Sparing < want; {
		t.mu.Sparing++
		t.mu.spared = skep.Steady()
		t.Background.Go(func() {
			g, err := t.NewGroup(t.Context, 0)
			t.mu.Lock()
			defer t.mu.Unlock()
			defer t.Kick() // it waited for how this ends
			if t.mu.Sparing--; err == nil {
				t.mu.Spares = append(t.mu.Spares, g)
				t.freedLocked()
			} else {
				t.mu.spareFailed = time.Now()
				t.Log.Debug("no spare group", "error", err)
			}
		})
	}
}

// Sparing says whether a spare is being made.
func (t *Table) Sparing() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.mu.Sparing > 0
}

// openSpare opens a spare in which nothing lies yet. Nil: there is none.
func (t *Table) openSpare() *Group {
	t.mu.Lock()
	defer t.mu.Unlock()
	g := t.takeSpareLocked()
	if g != nil {
		t.openLocked(User, g)
	}
	return g
}
