package leases

import (
	"slices"
	"time"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/index"
	"github.com/skepkv/skep/store/internal/locks"
	"github.com/skepkv/skep/store/internal/namespaces"
)

// Promise is what a lease covers: a chain's leading blocks, or one key.
type Promise struct {
	Instance uint32
	Tag      namespaces.Tag
	FP       index.Fingerprint // of the deepest block
	Blocks   int               // leading blocks covered
	Until    time.Time
}

// Chain is who asks how much of it a lease covers.
type Chain struct {
	Instance uint32
	Tag      namespaces.Tag
	Blocks   int
	At       func(n int) index.Fingerprint // of the n-th block, from 1
}

// Table maps the leases callers hold to the index's: one for a chain, several for single keys. Make it with New. It is
// safe for any number of goroutines.
type Table struct {
	x *index.Index

	mu   locks.Mutex[locks.Leases]
	m    map[skep.LeaseID]*row
	n    int // the index's
	look int // sift at so many of them
}

type row struct {
	ids      []leased
	promises Promise // the last, which covers most
	runs     *Runs   // of a lookup of runs; nil: promises says all
}

// leased is a lease of the index's, and its block.
type leased struct {
	id skep.LeaseID
	fp index.Fingerprint
}

// New makes the table of a store that has leased nothing yet.
func New(x *index.Index) *Table { return &Table{x: x, m: map[skep.LeaseID]*row{}} }

// LeastSifted is how many leases, and how many pins, are kept before any look whether something is left of them.
const LeastSifted = 1024

// sift drops leases that the index has no more, where there are many: a delete ends what it promised, and tells
// nobody. So there are never more than LeastSifted and twice those of blocks that are there. REQUIRES: l.mu.
func (l *Table) sift() {
	if l.n < max(l.look, LeastSifted) {
		return
	}
	l.n = 0
	for id, r := range l.m {
		ended := func(o leased) bool { return !l.x.Leased(o.id) }
		if slices.ContainsFunc(r.ids, ended) {
			r.ids = slices.Clone(slices.DeleteFunc(r.ids, ended))
			r.runs = r.runs.only(r.ids)
		}
		if l.n += len(r.ids); len(r.ids) == 0 {
			delete(l.m, id)
		}
	}
	l.look = 2 * l.n
}

// Add adds the index's lease id, and what it promises, to a caller's lease.
func (l *Table) Add(lease, id skep.LeaseID, p Promise) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sift()
	l.n++
	r := l.m[lease]
	if r == nil {
		r = &row{}
		l.m[lease] = r
	}
	r.ids = append(r.ids, leased{id, p.FP})
	r.promises = p
}

// Cover says what a lease of many runs covers.
func (l *Table) Cover(lease skep.LeaseID, v *Runs) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if r := l.m[lease]; r != nil {
		r.runs = v
	}
}

// Covered is how many leading blocks of a chain the lease covers at now.
func (l *Table) Covered(lease skep.LeaseID, c Chain, now time.Time) int {
	l.mu.Lock()
	r := l.m[lease]
	if r == nil {
		l.mu.Unlock()
		return 0
	}
	p, runs := r.promises, r.runs // a renewal may be changing it
	l.mu.Unlock()
	switch {
	case p.Until.Before(now) || p.Instance != c.Instance || p.Tag != c.Tag:
		return 0
	case runs != nil:
		return runs.of(c)
	case p.Blocks > c.Blocks || c.At(p.Blocks) != p.FP:
		return 0
	}
	return p.Blocks
}

// Expire forgets leases that are over.
func (l *Table) Expire(now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for id, r := range l.m {
		if r.promises.Until.Before(now) {
			l.n -= len(r.ids)
			delete(l.m, id)
		}
	}
}

// Renew has a lease last until a time. Errors: LeaseExpired.
func (l *Table) Renew(id skep.LeaseID, now, until time.Time) (skep.Lease, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	r := l.m[id]
	if r == nil || !r.promises.Until.After(now) {
		return skep.Lease{}, &skep.Error{Op: "renew", Kind: skep.LeaseExpired}
	}
	for _, o := range r.ids {
		// One whose block was deleted has nothing left to promise; the lease goes on, unless it was sifted out.
		if err := l.x.Renew(o.id, now, until); err != nil && skep.KindOf(err) != skep.LeaseExpired {
			return skep.Lease{}, err
		}
	}
	r.promises.Until = until
	return skep.Lease{ID: id, Until: until}, nil
}

// Release ends a lease, if there is one.
func (l *Table) Release(id skep.LeaseID) {
	l.mu.Lock()
	r := l.m[id]
	delete(l.m, id)
	var ids []leased
	if r != nil {
		ids = r.ids
	}
	l.n -= len(ids)
	l.mu.Unlock()
	for _, o := range ids {
		l.x.Release(o.id)
	}
}

// Held is how many leases are not over, and the bytes of the blocks that they cover, each block once.
func (l *Table) Held(now time.Time) (n int, bytes int64) {
	l.mu.Lock()
	for _, r := range l.m {
		if r.promises.Until.After(now) {
			n++
		}
	}
	l.mu.Unlock()
	return n, l.x.LeasedBytes(now)
}

// Len is how many rows are kept: leases of the index's, and what those of many runs cover.
func (l *Table) Len() (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, r := range l.m {
		n += len(r.ids)
		if r.runs != nil {
			n += len(r.runs.at)
		}
	}
	return n
}
