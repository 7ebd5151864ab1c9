// Package owed counts what nodes are yet to give a client. Of the nodes that have a group the one is asked that owes
// least: restores at once fill all links so, though the groups of each lie as chance has it.
package owed

import (
	"fmt"
	"sync/atomic"
)

// Total is what one node owes all sessions, in bytes.
type Total = atomic.Int64

// Book is what nodes owe one session, in bytes, by their places: what is being loaded is owed by the node that is asked
// for it, what nobody is asked for yet by the one that it is planned from. One caller at a time.
type Book struct {
	totals  []*Total
	owed    []int64
	settled bool
}

// New makes the book of a session with nodes of these totals.
func New(totals []*Total) Book { return Book{totals: totals, owed: make([]int64, len(totals))} }

// Owes notes bytes that are to come from the node at a place; of no book, nothing.
func (b *Book) Owes(i int, bytes int64) {
	if b == nil || b.settled {
		return
	}
	b.owed[i] += bytes
	b.totals[i].Add(bytes)
}

// Paid notes that bytes came from the node, or will not. It owes them: the tag invariants has anything else panic.
func (b *Book) Paid(i int, bytes int64) {
	if b.settled {
		return
	}
	if invariants && bytes > b.owed[i] {
		panic(fmt.Sprintf("node %d paid %d bytes, and owed %d", i, bytes, b.owed[i]))
	}
	bytes = min(bytes, b.owed[i])
	b.owed[i] -= bytes
	b.totals[i].Add(-bytes)
}

// Moves notes that bytes which one node owed are to come from another one.
func (b *Book) Moves(from, to int, bytes int64) {
	b.Paid(from, bytes)
	b.Owes(to, bytes)
}

// Done is for when nothing is on its way: the tag invariants has it panic where a node owes the session anything yet.
func (b *Book) Done() {
	for i, bytes := range b.owed {
		if invariants && bytes != 0 {
			panic(fmt.Sprintf("node %d owes %d bytes, and nothing is on its way", i, bytes))
		}
	}
}

// Settle has no node owe the session anything, from now on.
func (b *Book) Settle() {
	b.settled = true
	for i, bytes := range b.owed {
		b.totals[i].Add(-bytes)
		b.owed[i] = 0
	}
}
