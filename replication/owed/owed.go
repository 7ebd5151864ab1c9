// Package owed counts what nodes are yet to give a client. Of the nodes that have a group the one is asked that owes
// least: restores at once fill all links so, though the groups of each lie as chance has it.
package owed

import "sync/atomic"

// Total is what one node owes all sessions, in bytes.
type Total = atomic.Int64

// Book is what nodes owe one session, in bytes, by their places. One caller at a time.
type Book struct {
	totals []*Total
	owed   []int64
}

// New makes the book of a session with nodes of these totals.
func New(totals []*Total) Book { return Book{totals, make([]int64, len(totals))} }

// Owes notes bytes that are to come from the node at a place.
func (b *Book) Owes(i int, bytes int64) {
	b.owed[i] += bytes
	b.totals[i].Add(bytes)
}

// Paid notes that bytes came from the node, or will not: at most those that it owes.
func (b *Book) Paid(i int, bytes int64) {
	bytes = min(bytes, b.owed[i])
	b.owed[i] -= bytes
	b.totals[i].Add(-bytes)
}

// Settle has no node owe the session anything.
func (b *Book) Settle() {
	for i, bytes := range b.owed {
		b.totals[i].Add(-bytes)
		b.owed[i] = 0
	}
}
