package skep

import (
	"context"
	"fmt"
	"sync/atomic"
	"unsafe"
)

// Claim is a session's answer to an engine that is about to compute.
type Claim struct {
	// Granted is the leading part of what was asked for that the store will not load: compute it. It is empty when the
	// first of it is loaded, or on its way, or when the engine is better kept to its other work.
	Granted Range
	// Next is where to claim next: the first position at or after Granted.To that is neither loaded nor being loaded.
	// The chain's end means that there is no more to claim. Where Granted is empty and Next is where it began, ask
	// again once a chunk has landed.
	Next int
}

// EngineLoad says what an engine that claims has to do besides.
type EngineLoad uint8

const (
	// Idle engines have nothing else to do: they are granted whatever is neither loaded nor on its way.
	Idle EngineLoad = 0
	// Busy engines have other requests' work: they are not granted what the drives have time to load.
	Busy EngineLoad = 1
)

// ClaimWord is a shared claim word: where the two pointers of a chain stand, in 64 bits that engine and store share, so that
// a claim is granted or refused without a call. Positions are blocks of the chain's keys or, of a chain that goes by
// layers, layers.
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
type ClaimWord uint64

// MaxClaimWord is the last position a ClaimWord can name.
const MaxClaimWord = 1<<claimWordBits - 1

const (
	claimWordBits   = 20
	claimWordClosed = ClaimWord(1) << 60
	claimWordMore   = ClaimWord(1) << 61
)

// ClaimWordOf puts positions into a word. REQUIRES: 0 ≤ head ≤ may ≤ tail ≤ MaxClaimWord.
func ClaimWordOf(head, may, tail int) ClaimWord {
	return ClaimWord(head) | ClaimWord(may)<<claimWordBits | ClaimWord(tail)<<(2*claimWordBits)
}

func (w ClaimWord) Head() int { return int(w & MaxClaimWord) }
func (w ClaimWord) May() int  { return int(w >> claimWordBits & MaxClaimWord) }
func (w ClaimWord) Tail() int { return int(w >> (2 * claimWordBits) & MaxClaimWord) }

// Closed says that claims go by a call, More that something below tail, or that was on its
// way, is the engine's too.
func (w ClaimWord) Closed() bool { return w&claimWordClosed != 0 }
func (w ClaimWord) More() bool   { return w&claimWordMore != 0 }

// Shut is w with claims by the word closed.
func (w ClaimWord) Shut() ClaimWord { return w | claimWordClosed }

// WithMore is w that says that something that did not come is to be computed.
func (w ClaimWord) WithMore() ClaimWord { return w | claimWordMore }

// claimed is w with head moved up.
func (w ClaimWord) claimed(head int) ClaimWord { return w&^MaxClaimWord | ClaimWord(head) }

// Follows says whether an engine that keeps to the rules can have made now of w: nothing but head
// differs, it went up, and no further than it might. A store that finds anything else trusts
// the word no more.
func (w ClaimWord) Follows(now ClaimWord) bool {
	return now&^MaxClaimWord == w&^MaxClaimWord && (now == w || !w.Closed() && now.Head() > w.Head() && now.Head() <= w.May())
}

// String is for logs.
func (w ClaimWord) String() string {
	return fmt.Sprintf("head %d, may %d, tail %d, closed %v, more %v", w.Head(), w.May(), w.Tail(), w.Closed(), w.More())
}

// ClaimWordAt is the word in 8 bytes of memory, of shared memory for one. Bytes that are too few, or not at a
// multiple of 8, are Invalid.
func ClaimWordAt(b []byte) (*atomic.Uint64, error) {
	p := unsafe.Pointer(unsafe.SliceData(b))
	if len(b) < 8 || uintptr(p)%8 != 0 {
		return nil, Invalidf("claim word", "memory", fmt.Sprintf("%d bytes at %p", len(b), p), "8 bytes at a multiple of 8")
	}
	return (*atomic.Uint64)(p), nil
}

// Claimer is an engine's side of a chain's shared claim word: it claims by the word, and by a call where the word does
// not say. Safe for concurrent use.
type Claimer struct {
	ses   Session
	chain int
	word  *atomic.Uint64
	unit  int
	end   int
	last  atomic.Uint64
}

// NewClaimer claims of a chain of a session through word, which Session.ShareClaimWord was given. The chain ends at
// end, in the positions that claims of it have: tokens, or layers. unit is how many of them one step of the word is: the
// tokens of a block, or 1 of a chain that goes by layers.
func NewClaimer(s Session, chain int, word *atomic.Uint64, unit, end int) *Claimer {
	return &Claimer{ses: s, chain: chain, word: word, unit: unit, end: end}
}

// Claim is Session.Claim. It makes a call only where the word does not say.
func (c *Claimer) Claim(ctx context.Context, want Range, load EngineLoad) (Claim, error) {
	if answer, ok := c.ByWord(want, load); ok {
		return answer, nil
	}
	return c.ses.Claim(ctx, c.chain, want.Subset(), load)
}

// ByWord claims what it can of want by the word alone, and waits for nothing. It is false where the word does not say: then a
// call does. Only the store can say what an idle engine may have beyond what any may.
func (c *Claimer) ByWord(want Range, load EngineLoad) (answer Claim, ok bool) {
	for {
		w := ClaimWord(c.word.Load())
		head, here := w.Head(), w.Head()*c.unit
		answer = Claim{Granted: Range{From: want.From, To: want.From}, Next: max(want.From, min(here, c.end))}
		switch {
		case w.Closed() || want.From < 0 || want.From >= want.To || want.To > c.end:
			return answer, false
		case w.More() && (head >= w.Tail() || want.From != here):
			return answer, false
		case head >= w.Tail(): // the rest is there or on its way
			answer.Next = c.end
			return answer, true
		case want.From != here:
			return answer, want.From > here // what lies before is not the word's
		}
		n := min((want.Len()+c.unit-1)/c.unit, w.May()-head)
		if n <= 0 {
			return answer, load != Idle && uint64(w) != c.last.Load() // the store has not seen our last claim yet
		}
		next := w.claimed(head + n)
		if !c.word.CompareAndSwap(uint64(w), uint64(next)) {
			continue
		}
		c.last.Store(uint64(next))
		answer.Granted.To = min((head+n)*c.unit, c.end)
		if answer.Next = answer.Granted.To; head+n >= w.Tail() && !w.More() {
			answer.Next = c.end
		}
		return answer, true
	}
}
