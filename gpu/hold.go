package gpu

import (
	"slices"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout/elastic"
)

// Blocks of running prefills are held: they keep their places in own memory, where an engine reads them,
// and those in lent memory that a lender takes back are moved, not lost.

// What entry.lent says beside a lender's number.
const (
	own     = -1
	nowhere = -2 // of a block that is held: it has lost its place in GPU memory
)

// slotBytes is the size of a layer's place.
func (t *tier) slotBytes() int64 { return t.blockBytes / int64(max(t.layers, 1)) }

// slotPlace is the place of a layer: they are counted from the end of own memory, which stays where it is when the
// border of the room for layers moves.
func (t *tier) slotPlace(i int) Place {
	end := int64(t.local.arena.Units()) * t.blockBytes
	return Place{t.local.memory, end - int64(i+1)*t.slotBytes()}
}

// hold takes a place for each block of a prompt: those of its history that are in GPU memory keep theirs.
func (t *tier) hold(p *Prefill) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.failed != nil:
		return t.failed
	case t.rooms > 0:
		return &skep.Error{Op: "prefill", Kind: skep.Overloaded, Field: "room for layers", Value: "taken as a whole", Limit: "its release"}
	}
	if local, lent, layers := t.roomLocked(); len(p.ids) > local+min(lent, layers) {
		return t.fullLocked(len(p.ids))
	}
	t.held++ // the room keeps its size until release
	t.slots = append(t.slots, make([]bool, max(0, t.roomForLayersLocked()-len(t.slots)))...)
	for i := range p.ids {
		b := &held{e: &entry{id: p.ids[i], size: p.g.PartBytes(), lent: nowhere, fresh: i >= p.history}, slot: -1}
		if e := t.entries.of(b.e.id); e != nil && i < p.history && e.size == b.e.size {
			b.e = e
			t.order[e.row()].MoveToFront(e.used) // who looks for one that is not held need not pass it
		}
		t.pinLocked(b.e)
		p.blocks = append(p.blocks, b)
	}
	uncopied, next := int64(0), 0
	for i, b := range slices.Backward(p.blocks) { // own memory is first for what is to be computed
		if b.e.lent == nowhere && !t.seatLocked(b.e) || b.e.lent != own && !t.slotLocked(b, &next) {
			t.letLocked(p)
			return t.fullLocked(len(p.blocks))
		}
		if b.e.lent >= 0 && i >= p.history {
			uncopied += b.e.size
		}
	}
	if t.mostUncopied > 0 && t.uncopied+uncopied > t.mostUncopied {
		t.letLocked(p)
		return &skep.Error{Op: "prefill", Kind: skep.NoMemory, Field: "bytes in lent memory that are not behind yet", Value: t.uncopied + uncopied, Limit: t.mostUncopied}
	}
	p.uncopied = uncopied
	t.uncopied += uncopied
	return nil
}

// fullLocked says that a prompt of n blocks does not fit: too long, or beside others.
func (t *tier) fullLocked(n int) error {
	local, lent, layers := t.roomLocked()
	most := local + min(lent, layers)
	if n > most {
		return &skep.Error{Op: "prefill", Kind: skep.NoMemory, Field: "blocks of a prompt", Value: n, Limit: most}
	}
	return &skep.Error{Op: "prefill", Kind: skep.Overloaded, Field: "blocks of a prompt, beside others", Value: n, Limit: most}
}

func (t *tier) roomForLayersLocked() int {
	return (t.local.arena.Units() - t.local.arena.Border()) * t.layers
}

func (t *tier) pinLocked(e *entry) {
	e.pins++
	t.pins[e] = struct{}{}
}

// slotLocked takes a place for a layer of the block, from next on.
func (t *tier) slotLocked(b *held, next *int) bool {
	free := t.slots[:min(len(t.slots), t.roomForLayersLocked())]
	for *next < len(free) && free[*next] {
		*next++
	}
	if *next == len(free) {
		return false
	}
	b.slot, free[*next] = *next, true
	return true
}

// seatLocked finds a place in GPU memory for a block that is held: in own memory, else in lent memory. Blocks that are
// not held make way.
func (t *tier) seatLocked(e *entry) bool {
	for !t.localPlaceLocked(e) {
		last := t.lastLocked(0)
		if last == nil {
			return t.seatLentLocked(e)
		}
		t.dropLocked(last)
	}
	return true
}

// seatLentLocked is seatLocked in lent memory.
func (t *tier) seatLentLocked(e *entry) bool {
	for !t.lentPlaceLocked(e) {
		if t.lastLocked(1) == nil {
			return false
		}
	}
	return true
}

// release gives back what a prefill holds.
func (t *tier) release(p *Prefill) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.letLocked(p)
}

func (t *tier) letLocked(p *Prefill) {
	for _, b := range p.blocks {
		if b.slot >= 0 {
			t.slots[b.slot] = false
		}
		if b.e.pins--; b.e.pins == 0 {
			delete(t.pins, b.e)
			t.leaveLocked(b.e)
			if t.entries.of(b.e.id) != b.e {
				t.vacateLocked(b.e)
			}
		}
	}
	t.uncopied -= p.uncopied
	p.blocks, p.uncopied = nil, 0
	if t.held--; t.held == 0 {
		t.divideLocked()
	}
}

// vacateLocked gives a block's place back.
func (t *tier) vacateLocked(e *entry) {
	switch {
	case e.lent == own:
		_ = t.local.arena.Free(elastic.Lender, e.block) // in use: it was an entry's
	case e.lent >= 0:
		_ = t.lent[e.lent].arena.Free(elastic.ToBorrower, e.block)
	}
	e.lent, e.place = nowhere, Place{}
}

// lastLocked is the least recently used block, own (0) or lent (1), that is not held; nil: none.
func (t *tier) lastLocked(row int) *entry {
	for at := t.order[row].Back(); at != nil; at = at.Prev() {
		if e := at.Value.(*entry); e.pins == 0 {
			return e
		}
	}
	return nil
}

// firstFreeLocked is the lowest border of own memory that leaves the blocks an engine reads there.
func (t *tier) firstFreeLocked() (block int) {
	for e := range t.pins {
		if e.lent == own {
			block = max(block, e.block+1)
		}
	}
	return block
}

// relocateLocked moves a block that is held out of lent memory that goes back: to other lent memory or to own memory,
// block by block over the link. Where there is no room, one that is behind is read from there when it is needed,
// and another goes to host memory.
func (t *tier) relocateLocked(e *entry) {
	from := t.poolOf(e)
	to := &entry{id: e.id, size: e.size}
	if from.holds() && (t.seatLentLocked(to) || t.seatLocked(to)) {
		p := t.poolOf(to)
		p.stream.Copy(to.place, e.place, e.size)
		if t.syncLocked(p) != nil {
			return
		}
		if from.holds() {
			t.relocated++
			t.swapLocked(e, to)
			return
		}
		t.vacateLocked(to)
	}
	if e.fresh && from.holds() { // nobody else has it
		bytes := make([]byte, e.size)
		from.stream.CopyOut(bytes, e.place)
		if t.syncLocked(from) != nil {
			return
		}
		if from.holds() {
			e.host = bytes
			t.rescued++
		}
	}
	t.forgetLocked(e)
	t.vacateLocked(e)
}

// swapLocked gives a block the place of another, which it was copied to.
func (t *tier) swapLocked(e, to *entry) {
	named := t.entries.of(e.id) == e
	if named {
		t.order[e.row()].Remove(e.used)
	}
	t.vacateLocked(e)
	e.lent, e.block, e.place = to.lent, to.block, to.place
	if named {
		e.used = t.order[e.row()].PushFront(e)
	}
}

// forgetLocked takes a block's name from it.
func (t *tier) forgetLocked(e *entry) {
	if t.entries.of(e.id) == e {
		t.entries.forget(e)
		t.order[e.row()].Remove(e.used)
	}
}
