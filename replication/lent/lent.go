// Package lent says whether a node's server writes to memory of a caller's by itself, as it does to memory that it
// maps. A call that is given up leaves such memory in doubt: nobody else may write there until the server is known to
// be done.
package lent

import (
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/skepkv/skep"
)

// writer is a Store whose server may write to memory of the caller's by itself.
type writer interface {
	Shares(p []byte) bool
	InDoubt(p []byte) bool // it may do so although it was given up
}

// destinations are where a restore's blocks go.
func destinations(r *skep.RestoreRequest) (all [][]byte) {
	for i := range r.Chains {
		d := &r.Chains[i].Dest
		all = append(all, d.Memory)
		if d.Paged != nil {
			for _, p := range d.Paged.Planes {
				all = append(all, p[:]...)
			}
		}
	}
	return slices.DeleteFunc(all, func(p []byte) bool { return len(p) == 0 })
}

// Lends says whether the server of a Store may write to destinations of a restore by itself.
func Lends(st skep.Store, r *skep.RestoreRequest) bool {
	w, ok := skep.As[writer](st)
	return ok && slices.ContainsFunc(destinations(r), w.Shares)
}

// InDoubt says whether it may do so yet, of a restore that was given up. Of a Store that does not say it may.
func InDoubt(st skep.Store, r *skep.RestoreRequest) bool {
	w, ok := skep.As[writer](st)
	return !ok || slices.ContainsFunc(destinations(r), w.InDoubt)
}

// Doubts are restores that have ended while their node may have written yet. It is safe for concurrent use.
type Doubts struct {
	mu   sync.Mutex
	list []doubt
}

type doubt struct {
	chain int
	st    skep.Store
	ses   skep.Session // nil: it did not begin, as far as is known
	r     *skep.RestoreRequest
}

// Add notes one, of a chain of the caller's.
func (d *Doubts) Add(chain int, st skep.Store, ses skep.Session, r *skep.RestoreRequest) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.list = append(d.list, doubt{chain, st, ses, r})
}

// Standing is an error of kind NotReleased while a node may write to destinations of the chain; -1: of any.
func (d *Doubts) Standing(ctx context.Context, op string, chain int) error {
	d.mu.Lock()
	list := slices.Clone(d.list)
	d.mu.Unlock()
	for _, x := range list {
		if chain != -1 && x.chain != chain {
			continue
		}
		if x.ses != nil {
			if err := x.ses.Close(ctx); skep.KindOf(err) == skep.NotReleased {
				return &skep.Error{Op: op, Kind: skep.NotReleased, Err: err}
			}
		} else if InDoubt(x.st, x.r) {
			return &skep.Error{Op: op, Kind: skep.NotReleased, Err: errDoubt}
		}
	}
	return nil
}

var errDoubt = errors.New("a node that was given up may write there yet")

// Parts is who holds memory that a call was lent: the call, and calls of nodes that it makes. When the last of them
// lets it go, released tells its caller, where a node held some after its call; nil: nobody is told. Use NewParts.
type Parts struct {
	released func()

	mu   sync.Mutex
	open int
	kept bool
}

// NewParts is the parts of a call that has made none yet.
func NewParts(released func()) *Parts { return &Parts{released: released, open: 1} }

// Begin has a node hold memory until its call ends.
func (p *Parts) Begin() {
	p.mu.Lock()
	p.open++
	p.mu.Unlock()
}

// End ends a node's call, which says whether it holds memory yet: Release comes then.
func (p *Parts) End(held bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if held {
		p.kept = true
	} else {
		p.open--
	}
}

// Held says whether a node held memory after its call. If so, Release has yet to be called for the call itself.
func (p *Parts) Held() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.kept
}

// Release lets memory go that was held.
func (p *Parts) Release() {
	p.mu.Lock()
	p.open--
	last := p.open == 0 && p.kept
	p.mu.Unlock()
	if last && p.released != nil {
		p.released()
	}
}
