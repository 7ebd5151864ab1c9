package space

import (
	"context"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/catalog"
)

// sealLocked ends a group's filling. REQUIRES: t.mu.
func (t *Table) sealLocked(g *Group) {
	if g.Life.State() != Open {
		return
	}
	g.Life.Become(Sealed)
	g.sealed = skep.Steady()
	g.Filler = nil
	for i, o := range t.mu.Open {
		if o == g {
			t.mu.Open[i] = nil
		}
	}
	g.Row.State = catalog.GroupSealed
	g.Row.SealedSeq = t.Root.Last()
	t.Index.SealGroup(g.Num, g.PayloadSlots(), 0)
	t.easedBy(g)
}

// easedBy notes that g may be cleaned from now on, if it may, and tells the cleaner, which may have waited for that.
// REQUIRES: t.mu.
func (t *Table) easedBy(g *Group) {
	if g.Life.State() == Sealed && g.Pending == 0 {
		t.eased.Add(1)
		if t.mu.awaited {
			t.mu.awaited = false
			t.Kick()
		}
	}
}

// recordSealedLocked records that g was filled, once none of its appends is under way any
// more and all were committed: at an open after a crash, the log of a group recorded so is
// not compared with the catalog. REQUIRES: t.mu.
func (t *Table) recordSealedLocked(g *Group) {
	if !g.Full || g.Pending > 0 || len(g.Writing) > 0 || g.recorded || g.Stale.Load() || t.Context.Err() != nil {
		return
	}
	g.recorded = true
	g.Pending++ // its row must not be written after the cleaner has deleted it
	t.Background.Go(func() {
		defer t.EndAppend(g)
		t.saveSealed(t.Context, g)
	})
}

// saveSealed records sealed groups; losing the row costs nothing, since an open
// treats every group as sealed. It does not come after one that says that a block was
// evicted meanwhile: outlives.
func (t *Table) saveSealed(ctx context.Context, g *Group) {
	t.Changes.Lock()
	defer t.Changes.Unlock()
	b := t.Catalog.NewBatch()
	state := t.Row(g)
	if g.Stale.Load() {
		state.State = catalog.GroupCleaning
	}
	b.PutGroup(&state)
	if err := t.Catalog.Commit(ctx, b, false); err != nil {
		t.Log.Warn("sealed group not recorded", "group", g.Num, "error", err)
	}
}

// sealFullLocked ends the filling of a group into which the next block does not fit, and has that recorded. REQUIRES:
// t.mu.
func (t *Table) sealFullLocked(g *Group) {
	g.Full = true
	t.sealLocked(g)
	t.recordSealedLocked(g)
}

// SealOpen ends the filling of a stream's group.
func (t *Table) SealOpen(st Stream) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if g := t.mu.Open[st]; g != nil {
		t.sealLocked(g)
	}
}

// AwaitOpening waits until the group that is just being opened, if one is, is there.
func (t *Table) AwaitOpening(ctx context.Context, op string) error {
	err := t.TakeOpening(ctx, op)
	if err == nil {
		t.Opening.Give()
	}
	return err
}

// SealGroupsOf ends the filling of groups that were being opened when their drive was
// taken out of use: nobody may come to fill them.
func (t *Table) SealGroupsOf(d *Drive) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, g := range t.mu.Open {
		if g != nil && g.Has(d) {
			t.sealLocked(g)
		}
	}
}

// SealOldest ends the filling of the group that was opened first, unless it is just being written to, and gives it.
// Nil: there is none.
func (t *Table) SealOldest() *Group {
	t.mu.Lock()
	defer t.mu.Unlock()
	g := t.mu.Groups.Oldest()
	if g != nil && g.Pending == 0 {
		t.sealLocked(g) // one that is hardly written to is as old as any
	}
	return g
}
