package space

import (
	"slices"
	"time"

	"github.com/skepkv/skep/store/catalog"
	"github.com/skepkv/skep/store/internal/locks"
)

// SetStale notes that g's log has records of blocks that are gone without a tombstone. It counts whether that was known
// or not: who compares the log with the catalog meanwhile has not seen all that there is to see.
func (t *Table) SetStale(g *Group) {
	g.stales.Add(1)
	if g.Stale.CompareAndSwap(false, true) {
		t.stale.Add(1)
	}
}

// clearStale notes that it has none any more.
func (t *Table) clearStale(g *Group) {
	g.Noted.Store(false)
	if g.Stale.CompareAndSwap(true, false) {
		t.stale.Add(-1)
	}
}

// suspects are groups that failures made stale.
type suspects struct {
	mu   locks.Mutex[locks.Suspects]
	list []*Group
}

// Suspect notes that g has records that were not committed, or are damaged.
func (t *Table) Suspect(g *Group) {
	t.SetStale(g)
	t.suspects.mu.Lock()
	t.suspects.list = append(t.suspects.list, g)
	t.suspects.mu.Unlock()
}

// suspectRest is how long a group is left alone whose log could not be compared with the catalog: twice as long each time
// that it could not again, an hour at most.
const suspectRest = time.Minute

// SuspectLater suspects a group again whose log could not be compared with the catalog. Else it would be stale for as
// long as it is there, and while one is, each eviction and each delete of what is not there costs a tombstone.
func (t *Table) SuspectLater(g *Group) {
	t.mu.Lock()
	g.rest = min(max(2*g.rest, suspectRest), time.Hour)
	g.Rests = time.Now().Add(g.rest)
	t.mu.Unlock()
	t.Suspect(g)
}

// NextSuspect claims a group that no drive may write to, not even one that it could be let go of without; nil when
// there is none.
func (t *Table) NextSuspect() *Group {
	l := &t.suspects
	l.mu.Lock()
	defer l.mu.Unlock()
	t.mu.Lock()
	defer t.mu.Unlock()
	rest := l.list[:0]
	var found *Group
	for _, g := range l.list {
		switch {
		case !t.mu.Groups.Has(g): // it may have been suspected for what was read of it after it was freed
			t.clearStale(g)
		case !g.Stale.Load(): // done
		case found == nil && g.Life.State() == Sealed && g.quiet() && g.answers() && !time.Now().Before(g.Rests):
			found = g
			g.Life.Take(Claim{By: Mender})
		default:
			rest = append(rest, g)
		}
	}
	l.list = rest
	return found
}

// Row is g's row as it is now.
func (t *Table) Row(g *Group) catalog.GroupState {
	t.mu.Lock()
	defer t.mu.Unlock()
	return g.Row
}

// SaveStale notes in b which groups are stale, for the next open. REQUIRES: nothing runs.
func (t *Table) SaveStale(b *catalog.Batch) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for g := range t.mu.Groups.Each() {
		if g.Stale.Load() {
			state := g.Row
			state.State = catalog.GroupCleaning
			b.PutGroup(&state)
		}
	}
}

// AllStale notes, in b too, that every group is stale. REQUIRES: nobody else has the table yet.
func (t *Table) AllStale(b *catalog.Batch) {
	for g := range t.mu.Groups.Each() {
		t.SetStale(g)
	}
	t.SaveStale(b)
}

// AllSuspect is AllStale of a table that is in use: the groups are compared with the catalog as soon as that goes. What
// is open says at the next open, after an end that was not orderly, that it is to be.
func (t *Table) AllSuspect(b *catalog.Batch) {
	t.mu.Lock()
	list := slices.Collect(t.mu.Groups.Each())
	for _, g := range list {
		if g.Life.State() >= Sealed {
			state := g.Row
			state.State = catalog.GroupCleaning
			b.PutGroup(&state)
		}
	}
	t.mu.Unlock()
	for _, g := range list {
		t.Suspect(g)
	}
}

// Stales is how often it was noted that the group is stale.
func (g *Group) Stales() uint64 { return g.stales.Load() }

// Settles gives the row that a group is to have whose log says what the catalog says: it is stale no more, unless that
// was noted again since it was so often. Settled follows the commit. REQUIRES: the lock of changes, until then.
func (t *Table) Settles(g *Group, since uint64) (state catalog.GroupState, settled bool) {
	if g.Stales() != since {
		return t.StaleRow(g), false
	}
	g.Noted.Store(false)
	t.mu.Lock()
	defer t.mu.Unlock()
	g.Row.State = catalog.GroupSealed
	return g.Row, true
}

// Settled notes that g is stale no more.
func (t *Table) Settled(g *Group) { t.clearStale(g) }

// StaleRow is g's row as it says that the group is stale.
func (t *Table) StaleRow(g *Group) catalog.GroupState {
	state := t.Row(g)
	state.State = catalog.GroupCleaning
	return state
}

// OtherStale is how many groups but g are stale.
func (t *Table) OtherStale(g *Group) int64 {
	n := t.stale.Load()
	if g.Stale.Load() {
		n--
	}
	return n
}

// SealSuspects ends the filling of the groups that failures made stale, and says how many there are.
func (t *Table) SealSuspects() int {
	t.suspects.mu.Lock()
	list := slices.Clone(t.suspects.list)
	t.suspects.mu.Unlock()
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, g := range list {
		t.sealLocked(g) // nothing is put any more
	}
	return len(list)
}

// SuspectsHeld says whether somebody has a group that is suspected.
func (t *Table) SuspectsHeld() bool {
	t.suspects.mu.Lock()
	defer t.suspects.mu.Unlock()
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.ContainsFunc(t.suspects.list, func(g *Group) bool {
		return t.mu.Groups.Has(g) && g.Stale.Load() && g.Life.State() == Claimed
	})
}

// TakeSuspects gives the groups that are suspected, each once, and suspects none any more.
func (t *Table) TakeSuspects() (out []*Group) {
	t.suspects.mu.Lock()
	defer t.suspects.mu.Unlock()
	for _, g := range t.suspects.list {
		if g.Stale.Load() && !slices.Contains(out, g) {
			out = append(out, g)
		}
	}
	t.suspects.list = nil
	return out
}

// Doubt notes that what is not found may be on a device though no group is stale: the open passed over a row that it
// could not read, or there is a drive that was given up, which a rebuild takes where no superblock says so yet.
func (t *Table) Doubt() { t.doubt.Store(true) }

// AnyStale says whether any group is stale, or what is not found may be on a device for another reason.
func (t *Table) AnyStale() bool { return t.stale.Load() > 0 || t.doubt.Load() }
