// Package promises is the book of the leases that a Store of several nodes gives: each is a promise of every node that
// has a part of what it is of.
package promises

import (
	"math/rand/v2"
	"sync"
	"time"

	"github.com/skepkv/skep"
)

// Most is how many leases a book has at once.
const Most = 1 << 16

// Book has leases of things T until they run out. It is safe for concurrent use.
type Book[T any] struct {
	mu    sync.Mutex
	m     map[skep.LeaseID]*promise[T]
	sweep int // look for what has run out when there are so many
}

type promise[T any] struct {
	until time.Time
	of    T
}

// Add gives a lease of x; false where there are too many.
func (b *Book[T]) Add(x T, until time.Time) (skep.Lease, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.m) >= b.sweep {
		b.expire()
		b.sweep = min(max(64, 2*len(b.m)), Most)
	}
	if len(b.m) >= Most {
		return skep.Lease{}, false
	}
	id := skep.LeaseID(rand.Uint64())
	for id == 0 || b.m[id] != nil {
		id = skep.LeaseID(rand.Uint64())
	}
	if b.m == nil {
		b.m = map[skep.LeaseID]*promise[T]{}
	}
	b.m[id] = &promise[T]{until, x}
	return skep.Lease{ID: id, Until: until}, true
}

// expire drops what has run out. mu is held.
func (b *Book[T]) expire() {
	now := skep.Steady()
	for id, p := range b.m {
		if !now.Before(p.until) {
			delete(b.m, id)
		}
	}
}

// Len is how many leases there are.
func (b *Book[T]) Len() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.expire()
	return len(b.m)
}

// Get is what a lease is of; false where there is no such lease any more.
func (b *Book[T]) Get(id skep.LeaseID) (x T, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	p := b.m[id]
	if p == nil {
		return x, false
	}
	if !skep.Steady().Before(p.until) {
		delete(b.m, id)
		return x, false
	}
	return p.of, true
}

// Until has a lease end at another time.
func (b *Book[T]) Until(id skep.LeaseID, t time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if p := b.m[id]; p != nil {
		p.until = t
	}
}

// Take ends a lease, and gives what it was of; false where there is none.
func (b *Book[T]) Take(id skep.LeaseID) (x T, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	p := b.m[id]
	delete(b.m, id)
	if p == nil {
		return x, false
	}
	return p.of, true
}

// Sooner is the sooner one of two times; a zero one is none.
func Sooner(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}
