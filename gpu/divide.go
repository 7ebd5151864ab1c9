package gpu

import (
	"sync"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout/elastic"
)

// Local memory is an arena of its own: blocks, all layers, lie below its border (the paper's regular
// cache), and above it is room for one layer of each lent block (its layer stream cache).

// ownArena is own memory for n whole blocks.
func ownArena(blockBytes int64, n int) (*elastic.Arena, error) {
	return elastic.New(elastic.Unit{Bytes: blockBytes, LenderBlock: blockBytes, BorrowerBlock: blockBytes, Lender: 1, Borrower: 1}, n, 0)
}

// divideLocked puts the border of local memory where what is lent now wants it: after each move
// of a lender's. Blocks beyond it go to lent memory, there being more of that, or away, in no order.
func (t *tier) divideLocked() {
	a := t.local.arena
	if a == nil || t.layers == 0 {
		return
	}
	stream, regular := elastic.Divide(a.Units()*t.layers, t.layers, t.lentRoomLocked()...)
	if t.held > 0 { // blocks take nothing of it meanwhile, nor it of those that an engine reads
		regular = max(min(regular, t.least), t.firstFreeLocked())
		stream = min(stream, (a.Units()-regular)*t.layers)
	}
	t.stream, t.least = stream, regular
	_ = a.Move(regular - a.Border()) // 0 to all: Divide says so
	for e := range t.entriesOf(own) {
		if e.block >= regular && t.failed == nil { // else there is nothing any more
			t.demoteLocked(e)
			if n := t.entries.of(e.id); n != nil {
				t.relocated++
			}
		}
	}
}

// lentRoomLocked is how many blocks each lender lends.
func (t *tier) lentRoomLocked() (lent []int) {
	for i := range t.lent {
		if a := t.lent[i].arena; a != nil {
			lent = append(lent, a.Capacity(elastic.ToBorrower))
		}
	}
	return lent
}

// roomLocked is how many blocks there is room for, and how many single-layer blocks.
func (t *tier) roomLocked() (local, lent, layers int) {
	if t.local.arena != nil {
		local = t.local.arena.Border()
	}
	for _, n := range t.lentRoomLocked() {
		lent += n
	}
	return local, lent, t.stream
}

// LayerRoom is local memory for the layer at work (Pipeline's buffers): room for a layer of each block
// that is lent now, or of as many as there is local memory for. It is as large as it says until
// release, which is to be called when nothing queued uses it any more; with more lent meanwhile it
// is larger the next time. Unsupported without Options.Layers and local memory; Overloaded while
// prefills have parts of it.
func (s *Store) LayerRoom() (at Place, blocks int, release func(), err error) {
	t := &s.tier
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.failed != nil:
		return Place{}, 0, nil, t.failed
	case t.local.arena == nil || t.layers == 0:
		return Place{}, 0, nil, &skep.Error{Op: "room for layers", Kind: skep.Unsupported, Field: "layers and local blocks", Value: t.layers, Limit: "1 or more each"}
	}
	if t.held > t.rooms {
		return Place{}, 0, nil, &skep.Error{Op: "room for layers", Kind: skep.Overloaded, Field: "prefills that have parts of it", Value: t.held - t.rooms, Limit: 0}
	}
	t.held++
	t.rooms++
	at = Place{t.local.memory, int64(t.local.arena.Border()) * t.blockBytes}
	return at, t.stream, sync.OnceFunc(func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.rooms--
		if t.held--; t.held == 0 {
			t.divideLocked()
		}
	}), nil
}
