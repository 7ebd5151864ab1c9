package space

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/catalog"
	"github.com/skepkv/skep/store/device"
	"github.com/skepkv/skep/store/internal/health"
)

// freed marks g's headers as freed, behind the caller's back, and says whether they are.
// One drive that took the mark is enough for a rebuild; all are tried. While none of its
// drives answers nobody can be told: its row stays, or it would be taken for a group newer
// than the catalog once one of them is back.
func (t *Table) freed(g *Group) bool {
	if g.Life.State() == Freed {
		return true
	}
	if g.untold() {
		return false
	}
	if g.Telling.CompareAndSwap(false, true) {
		t.Background.Go(func() {
			defer g.Telling.Store(false)
			err := t.markFreed(t.Context, g)
			if err != nil {
				if t.Context.Err() == nil {
					t.Log.Warn("segments of a cleaned group cannot be reused yet", "group", g.Num, "error", err)
				}
				return
			}
			b := t.Catalog.NewBatch()
			b.DeleteGroup(g.Num) // kept until now: checkBehind
			if err := t.Catalog.Commit(t.Context, b, false); err != nil {
				t.Log.Warn("row of a freed group not deleted", "group", g.Num, "error", err)
			}
			t.clearStale(g)
			t.mu.Lock()
			g.Life.Become(Freed)
			t.mu.Unlock()
			t.Kick()
		})
	}
	return false
}

// Regain gives segments of cleaned groups back once no reader holds them.
func (t *Table) Regain() {
	t.mu.Lock()
	defer t.mu.Unlock()
	rest := t.mu.emptied[:0]
	for _, g := range t.mu.emptied {
		if !t.freed(g) || g.Readers.Load() > 0 {
			rest = append(rest, g)
			continue
		}
		t.regainLocked(g)
	}
	clear(t.mu.emptied[len(rest):])
	t.mu.emptied = rest
}

// Unopen gives the segments of groups back that could not be opened. Their rows go
// first, or an open would find two groups that own a segment. REQUIRES: the store has not failed, or it frees nothing.
func (t *Table) Unopen() {
	t.mu.Lock()
	list := t.mu.Unopened
	t.mu.Unopened = nil
	t.mu.Unlock()
	if len(list) == 0 {
		return
	}
	b := t.Catalog.NewBatch()
	for _, g := range list {
		b.DeleteGroup(g.Num)
	}
	err := t.Catalog.Commit(t.Context, b, false)
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case err == nil:
		for _, g := range list {
			t.regainLocked(g)
		}
	case catalog.Refused(err):
		t.mu.Unopened = append(t.mu.Unopened, list...)
	default:
		t.Log.Warn("segments lost until the next open", "groups", len(list), "error", err)
		t.mu.Doubted = append(t.mu.Doubted, list...)
	}
}

// How a drive leaves the store: its last groups are gone from memory before their headers are marked as freed, which
// happens behind everybody's back, and readers hold on to groups that are gone. A drive that is out of the store is
// written to no more, as somebody may have another use for it, and once nobody reads it either it is closed: an open
// file keeps its room, an open block device its lock.

// leaveStep is how often a drive that is to leave is looked at again, leaveRest how seldom if nobody waits.
const leaveStep, leaveRest = 2 * time.Millisecond, time.Second

// leavingLocked says whether groups of d are gone and not yet given back: all of them, or those with headers to be
// written. REQUIRES: the table's lock.
func (t *Table) leavingLocked(d *Drive, all bool) bool {
	return slices.ContainsFunc(t.mu.emptied, func(g *Group) bool {
		return g.Has(d) && (all || g.Life.State() != Freed)
	})
}

// AwaitLeft waits until nothing is to be written to a drive without groups any more. One that is out of order is not
// waited for: it is not wiped either. Writes that groups were let go of without may never come back, and keep nobody
// from removing the drive; with force, headers do not either.
func (t *Table) AwaitLeft(ctx context.Context, op string, d *Drive, force bool) error {
	within, cancel := context.WithTimeout(ctx, t.Timeout)
	defer cancel()
	t.Kick()
	for {
		t.mu.Lock()
		late, heads := len(d.late), len(d.heads)
		leaving := t.leavingLocked(d, false)
		t.mu.Unlock()
		if late+heads == 0 && !leaving || d.Condition() >= health.Fenced {
			return nil
		}
		select {
		case <-time.After(leaveStep):
			continue
		case <-within.Done():
		}
		if ctx.Err() == nil && (force || heads == 0 && !leaving) {
			t.Log.Warn("removed device has writes under way, which may land on it later", "device", d.Path, "segments",
				late+heads)
			return nil
		}
		return &skep.Error{Op: op, Kind: skep.Deadline, Field: "segments being freed on " + d.Path,
			Value: max(1, heads), Err: within.Err(),
			Limit: "none within " + t.Timeout.String() +
				": it is emptied, and stays so; remove it once more, or with force"}
	}
}

// LetGo closes a drive that was removed once nobody has anything of it. From then on it is as one that is not there.
// What is not idle when the store closes is closed with it.
func (t *Table) LetGo(d *Drive) {
	for step := leaveStep; ; step = min(2*step, leaveRest) {
		t.mu.Lock()
		busy := len(d.heads)+len(d.late) > 0 || t.leavingLocked(d, true)
		t.mu.Unlock()
		if !busy && d.Dev.Stats().InFlight == 0 {
			break
		}
		select {
		case <-time.After(step):
		case <-t.Closing:
			return
		}
	}
	t.Exclude(d, health.Dead, ErrRemoved)
	// The device itself refuses what comes now, and waits for what came a moment ago.
	if err := d.Dev.Close(); err != nil && !errors.Is(err, device.ErrClosed) {
		t.Log.Warn("removed device not closed", "device", d.Path, "error", err)
	}
}

// Empty notes that a claimed group is empty, as the catalog says by now: from here on nobody pins it.
func (t *Table) Empty(g *Group) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.mu.Groups.Remove(g)
	g.Life.Become(Emptied)
	t.mu.emptied = append(t.mu.emptied, g)
}

// Emptying says whether segments of emptied groups are not free yet, and are to be: those of a group none of whose
// drives can be told stay as they are.
func (t *Table) Emptying() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.ContainsFunc(t.mu.emptied, func(g *Group) bool { return g.Life.State() == Freed || !g.untold() })
}

// FreeSoon is how many groups could be opened now, or can be without anything more to be emptied: those that a reader
// holds on to may be long in coming.
func (t *Table) FreeSoon() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.freeGroupsLocked(t.soonLocked()...)
}

// soonLocked are the emptied groups whose segments are about to be free. REQUIRES: t.mu.
func (t *Table) soonLocked() (list []*Group) {
	for _, g := range t.mu.emptied {
		if g.Readers.Load() == 0 && !g.untold() {
			list = append(list, g)
		}
	}
	return list
}

// OldestBeside is the first sequence number that any group but g may hold; groups that
// are emptied and not yet marked as freed count.
func (t *Table) OldestBeside(g *Group) uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	oldest := t.mu.Groups.OpenedBeside(g)
	for _, o := range t.mu.emptied {
		if o.Life.State() != Freed {
			oldest = min(oldest, o.Row.OpenedSeq)
		}
	}
	return oldest
}

// AllFreed says whether all that was emptied is marked as freed. REQUIRES: the cleaner ended.
func (t *Table) AllFreed() bool {
	return !slices.ContainsFunc(t.mu.emptied, func(g *Group) bool { return g.Life.State() != Freed })
}
