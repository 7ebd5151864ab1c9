package restore

import (
	"context"
	"slices"
	"sync/atomic"
	"time"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout/twopointer"
)

// Claims without a call. An engine, in this process or in another one through shared memory, moves the compute
// pointer of a chain in a word (skep.ClaimWord) by compare-and-swap; dispatch reads the word before it
// hands out a piece and publishes the load frontier in it before the piece is queued. What happens to the
// word first, holds: a claim that comes before has its blocks taken off the piece, one that comes after
// finds the frontier moved.
//
//	engine:   head ──CAS──▶ [word] ──read──▶ scheduler: Taken
//	dispatch: Ready ─▶ piece ─▶ [word] ◀──CAS── tail, may ─▶ planned.until ─▶ pump
//
// What another process wrote is believed only when an engine that keeps to the rules can have written it
// (Word.Follows); else the word is shut and the chain's claims go by calls. A wrong word
// costs its own chain's engine and nobody else.

// boardEvery is how often words are looked at while there are any. Dispatch looks besides whenever
// something lands or is computed; this bounds how long the misses of what was claimed take to be delivered.
const boardEvery = 2 * time.Millisecond

// board is the store's side of a chain's word.
type board struct {
	at    *atomic.Uint64
	wrote skep.ClaimWord // as it was last written here, or read
	from  int            // position in the scheduler of the word's 0
	unit  int            // of the scheduler's positions
	told  int            // up to here claims by the word are answered; guarded by ses.mu too
	bad   bool           // it is not believed any more
}

// ShareClaimWord implements skep.Session.
func (ses *session) ShareClaimWord(ctx context.Context, i int, word *atomic.Uint64) error {
	const op = "share claim word"
	c, err := ses.plannedAt(ctx, op, i)
	if err != nil {
		return err
	}
	if word == nil {
		return skep.Invalidf(op, "word", "nil", "one")
	}
	first, end := c.Blocks.From, c.Blocks.To
	if c.Direction.ByLayer() {
		first, end = c.Layers.From, c.Layers.To
	}
	if end > skep.MaxClaimWord {
		return &skep.Error{Op: op, Kind: skep.Unsupported, Field: "end of the chain", Value: end, Limit: skep.MaxClaimWord}
	}
	ses.mu.Lock()
	defer ses.mu.Unlock()
	if ses.ending {
		return errSessionClosed
	}
	p := c.plan
	if p == nil || c.stopped { // declined, or stopped: a claim says so
		word.Store(uint64(skep.ClaimWordOf(0, 0, 0).Shut()))
		return nil
	}
	t := p.two
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case p.over:
		word.Store(uint64(skep.ClaimWordOf(0, 0, 0).Shut()))
		return nil
	case p.board != nil:
		return &skep.Error{Op: op, Kind: skep.Conflict, Field: "word of the chain", Value: "one", Limit: "one a chain"}
	}
	b := &board{at: word, from: p.base - first*p.unit, unit: p.unit}
	p.board = b
	at, _ := t.sched.Standing(p.slot)
	b.wrote, b.told = b.wordOf(at), at.Head
	b.at.Store(uint64(b.wrote))
	t.boards = append(t.boards, p)
	t.wake()
	return nil
}

// wordOf puts the scheduler's positions into a word.
func (b *board) wordOf(at twopointer.Standing) skep.ClaimWord {
	block := func(p int) int { return (p - b.from) / b.unit }
	w := skep.ClaimWordOf(block(at.Head), block(at.May), block(at.Tail))
	if at.More {
		w = w.WithMore()
	}
	return w
}

// readBoard takes in what the engine claimed by the word since. REQUIRES: t.mu.
func (t *twoPointers) readBoard(p *planned) {
	b := p.board
	w := skep.ClaimWord(b.at.Load())
	if b.bad || w == b.wrote {
		return
	}
	if b.wrote.Follows(w) {
		if _, err := t.step(twopointer.Event{Kind: twopointer.Taken, Strand: p.slot, To: w.Head()*b.unit + b.from}); err == nil {
			b.wrote = w
			return
		}
	}
	t.distrust(p, w)
}

// distrust shuts a word that the engine cannot have made of what was there. REQUIRES: t.mu.
func (t *twoPointers) distrust(p *planned, w skep.ClaimWord) {
	b := p.board
	b.bad = true
	b.at.Store(uint64(b.wrote.Shut()))
	t.rs.Log.Warn("claim word not believed", "was", b.wrote.String(), "is", w.String())
}

// publish writes what the scheduler thinks of p into its word. REQUIRES: t.mu.
func (t *twoPointers) publish(p *planned) {
	b := p.board
	for !b.bad { // ends: each time around the engine has claimed more, or the word is bad
		t.readBoard(p)
		at, ok := t.sched.Standing(p.slot)
		next := b.wordOf(at)
		if !ok || b.bad || next == b.wrote || b.at.CompareAndSwap(uint64(b.wrote), uint64(next)) {
			if ok && !b.bad {
				b.wrote = next
			}
			return
		}
	}
}

// shutBoard has claims of p go by calls: what the word granted before holds. REQUIRES: t.mu.
func (t *twoPointers) shutBoard(p *planned) {
	b := p.board
	if b == nil {
		return
	}
	for !b.bad && !b.wrote.Closed() {
		t.readBoard(p)
		if next := b.wrote.Shut(); !b.bad && b.at.CompareAndSwap(uint64(b.wrote), uint64(next)) {
			b.wrote = next
		}
	}
}

// reopenBoard has claims go by the word again. What a call granted is not by the word: it is
// answered by who called. REQUIRES: t.mu.
func (t *twoPointers) reopenBoard(p *planned) {
	if p.board != nil {
		t.publish(p)
	}
}

// boarded says whether any claims go by words.
func (t *twoPointers) boarded() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.boards) > 0
}

// readBoards reads all words, and adds the plans with claims that were not answered.
func (t *twoPointers) readBoards(list []*planned) []*planned {
	for _, p := range t.boards {
		t.readBoard(p)
		if t.untold(p) {
			list = append(list, p)
		}
	}
	return list
}

// untold says whether claims by p's word were not answered. REQUIRES: t.mu.
func (t *twoPointers) untold(p *planned) bool { return p.board.head() > p.board.told }

// head is the scheduler's position of the word's head.
func (b *board) head() int { return b.wrote.Head()*b.unit + b.from }

// publishBoards has all words say how things stand. REQUIRES: t.mu.
func (t *twoPointers) publishBoards() {
	for _, p := range t.boards {
		t.publish(p)
	}
}

// dropBoard forgets p's word: it is not touched any more. REQUIRES: t.mu.
func (t *twoPointers) dropBoard(p *planned) {
	if p.board != nil {
		t.shutBoard(p)
		t.boards = slices.DeleteFunc(t.boards, func(o *planned) bool { return o == p })
	}
}

// tellLocked answers what was claimed by p's word. REQUIRES: ses.mu, not t.mu.
func (ses *session) tellLocked(p *planned) {
	t := p.two
	t.mu.Lock()
	if p.board == nil {
		t.mu.Unlock()
		return
	}
	from, to := p.board.told, max(p.board.head(), p.board.told)
	p.board.told = to
	t.mu.Unlock()
	if from < to {
		off := p.offset()
		ses.grantedLocked(p.c, skep.Range{From: from + off, To: to + off})
	}
}

// tell is tellLocked of a session that may be over.
func (ses *session) tell(p *planned) {
	ses.mu.Lock()
	defer ses.mu.Unlock()
	ses.tellLocked(p)
}

// shutLocked ends claims of c by a word, and answers those there were. REQUIRES: ses.mu.
func (ses *session) shutLocked(c *chain) {
	p := c.plan
	if p == nil {
		return
	}
	p.two.mu.Lock()
	has := p.board != nil && !p.over
	if has {
		p.two.shutBoard(p)
	}
	p.two.mu.Unlock()
	if has {
		ses.tellLocked(p)
	}
}

// offset is what lies between positions of the scheduler and those of claims.
func (p *planned) offset() int {
	if p.c.Direction.ByLayer() {
		return p.c.Layers.From - p.base
	}
	return 0
}

// grantedLocked answers blocks (or layers) that are granted. REQUIRES: ses.mu.
func (ses *session) grantedLocked(c *chain, r skep.Range) {
	if !c.Direction.ByLayer() {
		ses.claimLocked(c, r.From, r.To)
		return
	}
	for l := r.From; l < r.To; l++ {
		ses.claimLocked(c, l, l+1)
	}
}
