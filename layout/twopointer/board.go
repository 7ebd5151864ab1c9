package twopointer

import (
	"fmt"
	"sync/atomic"
	"unsafe"

	"github.com/skepkv/skep"
)

// Word is where the two pointers of a strand stand, in one atomic word that engine and store share, so
// that a claim is granted or refused without a call. Positions are blocks of the chain's keys, or layers.
//
//	bits   what   written by
//	 0–19  head   the engine, up only: below it all is computed or claimed
//	20–39  may    the store: up to here the engine may claim by itself
//	40–59  tail   the store: from here on all is loaded or on its way
//	60     closed the store: claims go by a call
//	61     more   the store: something that did not come is to be computed too, ask by a call
//	62–63  0
//
// The engine claims by a compare-and-swap that moves nothing but head, and no further than may. The store
// compares-and-swaps the whole word before it hands a piece to the drives. So each block is granted or
// loaded, never both, whoever comes first. head ≤ may ≤ tail.
//
// This is part of the protocol and does not change.
type Word uint64

// MaxWord is the last position a Word can name.
const MaxWord = 1<<wordBits - 1

const (
	wordBits   = 20
	wordClosed = Word(1) << 60
	wordMore   = Word(1) << 61
)

// WordOf puts positions into a word. REQUIRES: 0 ≤ head ≤ may ≤ tail ≤ MaxWord.
func WordOf(head, may, tail int) Word {
	return Word(head) | Word(may)<<wordBits | Word(tail)<<(2*wordBits)
}

func (w Word) Head() int { return int(w & MaxWord) }
func (w Word) May() int  { return int(w >> wordBits & MaxWord) }
func (w Word) Tail() int { return int(w >> (2 * wordBits) & MaxWord) }

// Closed says that claims go by a call, More that something below tail, or that was on its
// way, is the engine's too.
func (w Word) Closed() bool { return w&wordClosed != 0 }
func (w Word) More() bool   { return w&wordMore != 0 }

// Shut is w with claims by the word closed.
func (w Word) Shut() Word { return w | wordClosed }

// WithMore is w that says that something that did not come is to be computed.
func (w Word) WithMore() Word { return w | wordMore }

// claimed is w with head moved up.
func (w Word) claimed(head int) Word { return w&^MaxWord | Word(head) }

// Follows says whether an engine that keeps to the rules can have made now of w: nothing but head
// differs, it went up, and no further than it might. A store that finds anything else trusts
// the word no more.
func (w Word) Follows(now Word) bool {
	return now&^MaxWord == w&^MaxWord && (now == w || !w.Closed() && now.Head() > w.Head() && now.Head() <= w.May())
}

// String is for logs.
func (w Word) String() string {
	return fmt.Sprintf("head %d, may %d, tail %d, closed %v, more %v", w.Head(), w.May(), w.Tail(), w.Closed(), w.More())
}

// WordAt is the word in 8 bytes of memory, of shared memory for one. Bytes that are too few, or not at a
// multiple of 8, are Invalid.
func WordAt(b []byte) (*atomic.Uint64, error) {
	p := unsafe.Pointer(unsafe.SliceData(b))
	if len(b) < 8 || uintptr(p)%8 != 0 {
		return nil, skep.Invalidf("claim word", "memory", fmt.Sprintf("%d bytes at %p", len(b), p), "8 bytes at a multiple of 8")
	}
	return (*atomic.Uint64)(p), nil
}

// Board is an engine's side of a chain's Word: skep.Boarder has the store fill it. Safe for
// concurrent use.
type Board struct {
	at   *atomic.Uint64
	unit int // tokens of a block; 1 where layers are claimed
	end  int // of the chain: tokens, or layers
	last atomic.Uint64
}

// NewBoard is the engine's side of the word at at, of a chain that ends at end, in positions of unit: the tokens
// of a block, or 1 of a chain that goes by layers.
func NewBoard(at *atomic.Uint64, unit, end int) *Board { return &Board{at: at, unit: unit, end: end} }

// Claim claims what it can of r by the word alone. It is answered as skep.Planner's ClaimWhen would; ok false:
// the word does not say, ask that. Only the store can say what an idle engine may have beyond
// what any may.
func (b *Board) Claim(r skep.Range, idle bool) (c skep.Claim, ok bool) {
	for {
		w := Word(b.at.Load())
		head, here := w.Head(), w.Head()*b.unit
		c = skep.Claim{Granted: skep.Range{From: r.From, To: r.From}, Jump: max(r.From, min(here, b.end))}
		switch {
		case w.Closed() || r.From < 0 || r.From >= r.To || r.To > b.end:
			return c, false
		case w.More() && (head >= w.Tail() || r.From != here):
			return c, false
		case head >= w.Tail(): // the rest is there or on its way
			c.Jump = b.end
			return c, true
		case r.From != here:
			return c, r.From > here // what lies before is not the word's
		}
		n := min((r.Len()+b.unit-1)/b.unit, w.May()-head)
		if n <= 0 {
			return c, !idle && uint64(w) != b.last.Load() // the store has not seen our last claim yet
		}
		next := w.claimed(head + n)
		if !b.at.CompareAndSwap(uint64(w), uint64(next)) {
			continue
		}
		b.last.Store(uint64(next))
		c.Granted.To = min((head+n)*b.unit, b.end)
		if c.Jump = c.Granted.To; head+n >= w.Tail() && !w.More() {
			c.Jump = b.end
		}
		return c, true
	}
}

// ClaimWhen claims by the word, and by a call where that does not say.
func (b *Board) ClaimWhen(p skep.Planner, chain int, r skep.Range, idle bool) (skep.Claim, error) {
	if c, ok := b.Claim(r, idle); ok {
		return c, nil
	}
	return p.ClaimWhen(chain, r, idle)
}
