// Package errand is calls to a node that may outlast who waits for them.
package errand

import (
	"context"
	"sync/atomic"
)

// Most is how many calls to one node nobody waits for any more. Where there are as many, no more are begun.
const Most = 64

// Behind counts those of one node. It is safe for concurrent use.
type Behind struct{ n atomic.Int64 }

// Full says that there are as many as there may be.
func (b *Behind) Full() bool { return b.n.Load() >= Most }

// Begin counts one, which End ends.
func (b *Behind) Begin() { b.n.Add(1) }

// End is the end of one.
func (b *Behind) End() { b.n.Add(-1) }

// Errand is one call. nil is one that was not begun.
type Errand struct {
	behind *Behind
	state  atomic.Int32
}

const (
	over = 1 + iota // it ended while somebody waited for it
	left
)

// Run calls f by start, with a context that ends with all and has the values of ctx. nil: there are too many that
// nobody waits for, or start says that there is an end.
func (b *Behind) Run(start func(f func()) bool, all, ctx context.Context, f func(ctx context.Context)) *Errand {
	e := &Errand{behind: b}
	if b.Full() || !start(func() {
		defer e.end()
		f(beside{all, ctx})
	}) {
		return nil
	}
	return e
}

// Left says that nobody waits for it any more.
func (e *Errand) Left() {
	if e != nil && e.state.CompareAndSwap(0, left) {
		e.behind.Begin()
	}
}

func (e *Errand) end() {
	if !e.state.CompareAndSwap(0, over) {
		e.behind.End()
	}
}

// beside is a context that has values of a caller's, and ends with another one.
type beside struct {
	context.Context
	values context.Context
}

// Value implements context.Context.
func (b beside) Value(key any) any {
	if v := b.Context.Value(key); v != nil { // by which contexts that are made of it end with it
		return v
	}
	return b.values.Value(key)
}
