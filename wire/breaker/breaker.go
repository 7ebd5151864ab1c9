// Package breaker keeps calls from waiting for a server that is not there: after a few failures in succession, or one
// that waited in vain, calls fail at once, and somebody looks in the background whether the server is back.
//
//	calls are let through ── failures ──▶ calls fail at once, and Watch looks now and then
//	 ▲                │                          │
//	 │             Worked                        │ nobody has asked for a minute
//	 │                ▼                          ▼
//	 └──────────── Worked ◀── one call is let through to see
package breaker

import (
	"context"
	"sync"
	"time"

	"github.com/skepkv/skep"
)

// Breaker is one server's.
type Breaker struct {
	open  chan struct{} // has an element when calls fail, and nobody may be looking
	mu    sync.Mutex
	fails int
	until time.Time // no call is let through, and nobody looks, before
	asked time.Time // when a call was refused last
	looks bool      // somebody does
	said  error     // by the server, which is there and lets nobody in; nil: nothing
}

// How many failures cost nothing but themselves, how long calls fail after the next, and how long somebody looks for a
// server that no call asks for.
const (
	fails = 3
	first = 100 * time.Millisecond
	again = 10 * time.Millisecond // after one that saw nothing, for want of time
	most  = 5 * time.Second
	wants = time.Minute
)

// New makes a Breaker that lets everything through.
func New() *Breaker { return &Breaker{open: make(chan struct{}, 1)} }

// Allow lets a call through.
//
// Errors: Unavailable, with the time after which somebody looks again; what the server said where it lets nobody in.
func (b *Breaker) Allow() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.fails < fails {
		return nil
	}
	now := time.Now()
	left := b.until.Sub(now)
	if !b.looks && left <= 0 { // this one sees, and the others wait for what becomes of it
		b.until = now.Add(first)
		return nil
	}
	b.asked = now
	if b.said != nil {
		return b.said
	}
	return &skep.Error{Op: "dial", Kind: skep.Unavailable, Field: "circuit breaker", Value: "open", RetryAfter: max(left, time.Millisecond)}
}

// Open says whether calls fail at once.
func (b *Breaker) Open() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.fails >= fails
}

// Watch has reach say why the server cannot be used, while calls fail and somebody makes them. It ends with ctx.
func (b *Breaker) Watch(ctx context.Context, reach func() error) {
	for {
		select {
		case <-b.open:
		case <-ctx.Done():
			return
		}
		for after, look := b.look(); look; after, look = b.look() {
			select {
			case <-time.After(after):
			case <-ctx.Done():
				return
			}
			if err := reach(); err != nil {
				b.Failed(err)
			} else {
				b.Worked()
			}
		}
	}
}

// look says whether the server is to be looked for, and after how long. It ends a look where it says no: the server is
// there, or nobody has asked for it for a while.
func (b *Breaker) look() (after time.Duration, look bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.looks = b.fails >= fails && time.Since(b.asked) < wants
	return max(time.Until(b.until), 0), b.looks
}

// Failed says why a call did not reach the server; nil: it had no answer in time.
func (b *Breaker) Failed(why error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.said = nil
	switch skep.KindOf(why) {
	case skep.Other, skep.Unavailable, skep.Overloaded, skep.Deadline:
	default:
		b.said = why
	}
	b.failed(1)
}

// Silent is Failed of a server that says nothing at all: who waits for it waits in vain, and one such wait is enough.
func (b *Breaker) Silent() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.said = nil
	b.failed(max(fails-b.fails, 1))
}

func (b *Breaker) failed(n int) {
	now := time.Now()
	if b.fails < fails || !now.Before(b.until) { // else the call began before calls failed, and says nothing new
		if b.fails += n; b.fails < fails {
			return
		}
		b.until = now.Add(min(first<<min(b.fails-fails, 10), most))
	}
	if b.looks {
		return
	}
	b.asked = now
	select {
	case b.open <- struct{}{}:
	default:
	}
}

// GaveUp says that a call was given up by its caller before it was seen whether the server is there: the next one sees,
// sooner than after a failure.
func (b *Breaker) GaveUp() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.fails >= fails {
		b.until = time.Now().Add(again)
	}
}

// Worked says that a call reached it.
func (b *Breaker) Worked() {
	b.mu.Lock()
	b.fails, b.until, b.said = 0, time.Time{}, nil
	b.mu.Unlock()
}
