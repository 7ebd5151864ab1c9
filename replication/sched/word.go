package sched

import (
	"slices"
	"sync/atomic"
	"time"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout/twopointer"
)

// Claims without a call: an engine moves the compute pointer of a chain in a word (skep.ClaimWord), which is read
// before a piece is handed out and holds the tail before the piece is queued. What happens to the word first, holds.

// boardEvery is how often words are looked at while there are any: how late the misses of what was claimed may be.
const boardEvery = 2 * time.Millisecond

// board is this side of a chain's word.
type board struct {
	at    *atomic.Uint64
	wrote skep.ClaimWord // as it was last written here, or read
	from  int            // position in the Scheduler of the word's 0
	told  int            // up to here claims by the word are answered
	bad   bool           // it is not believed any more
}

// Share has claims granted through word, too. Of a chain that has left the word is shut.
//
// Errors: Conflict where the chain has one, Unsupported of a chain longer than a word can say.
func (c *Chain) Share(word *atomic.Uint64) error {
	const op = "share claim word"
	s := c.s
	end := c.Blocks.To
	if c.ByLayer {
		end = c.Layers.To
	}
	if end > skep.MaxClaimWord {
		return &skep.Error{Op: op, Kind: skep.Unsupported, Field: "end of the chain", Value: end, Limit: skep.MaxClaimWord}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case c.over:
		word.Store(uint64(skep.ClaimWordOf(0, 0, 0).Shut()))
		return nil
	case c.board != nil:
		return &skep.Error{Op: op, Kind: skep.Conflict, Field: "word of the chain", Value: "one", Limit: "one a chain"}
	}
	c.board = &board{at: word, from: -c.off * c.unit}
	at, _ := s.two.Standing(c.slot)
	c.board.wrote, c.board.told = c.word(at), at.Head
	word.Store(uint64(c.board.wrote))
	s.boards = append(s.boards, c)
	s.wake()
	return nil
}

// word puts the Scheduler's positions into a word. What is queued may be the engine's yet.
func (c *Chain) word(at twopointer.Standing) skep.ClaimWord {
	block := func(p int) int { return (p - c.board.from) / c.unit }
	w := skep.ClaimWordOf(block(at.Head), block(at.May), block(at.Tail))
	if at.More || c.computes() && c.lowest() >= 0 {
		w = w.WithMore()
	}
	return w
}

// read takes in what the engine claimed by the word since. What was written is believed only when an engine that keeps
// to the rules can have written it.
func (c *Chain) read() {
	b := c.board
	if b == nil || b.bad {
		return
	}
	w := skep.ClaimWord(b.at.Load())
	if w == b.wrote {
		return
	}
	if b.wrote.Follows(w) {
		_, err := c.s.step(twopointer.Event{Kind: twopointer.Taken, Strand: c.slot, To: w.Head()*c.unit + b.from})
		if err == nil {
			b.wrote = w
			return
		}
	}
	b.bad = true
	b.at.Store(uint64(b.wrote.Shut()))
}

// publish writes how the chain stands into its word.
func (c *Chain) publish() {
	b := c.board
	for b != nil && !b.bad && !c.over { // ends: each time around the engine has claimed more, or the word is bad
		c.read()
		at, ok := c.s.two.Standing(c.slot)
		next := c.word(at)
		if !ok || b.bad || next == b.wrote || b.at.CompareAndSwap(uint64(b.wrote), uint64(next)) {
			if ok && !b.bad {
				b.wrote = next
			}
			return
		}
	}
}

// shut has claims go by calls: what the word granted before holds.
func (c *Chain) shut() {
	b := c.board
	for b != nil && !b.bad && !b.wrote.Closed() {
		c.read()
		if next := b.wrote.Shut(); !b.bad && b.at.CompareAndSwap(uint64(b.wrote), uint64(next)) {
			b.wrote = next
		}
	}
}

// dropWord forgets the word: it is not touched any more.
func (c *Chain) dropWord() {
	if c.board != nil {
		c.shut()
		c.s.boards = slices.DeleteFunc(c.s.boards, func(o *Chain) bool { return o == c })
	}
}

// head is the Scheduler's position of the word's head.
func (c *Chain) head() int { return c.board.wrote.Head()*c.unit + c.board.from }

// untold says whether claims by the word were not answered.
func (c *Chain) untold() bool { return c.board != nil && c.head() > c.board.told }

// Told is what was claimed by the word since it was last asked, in tokens or layers.
func (c *Chain) Told() skep.Range {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	if !c.untold() {
		return skep.Range{}
	}
	r := skep.Range{From: c.board.told + c.off, To: c.head() + c.off}
	c.board.told = c.head()
	return r
}
