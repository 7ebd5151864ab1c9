// Package breaker keeps calls from waiting for a server that is not there: after a few failures in succession, or one
// that waited in vain, calls fail at once, and somebody looks in the background whether the server is back.
//
//	calls are let through ── failures ──▶ calls fail at once; Look says when to try, Failed and Worked what came of it
//	 ▲                │                          │
//	 │             Worked                        │ nobody has asked for a minute
//	 │                ▼                          ▼
//	 └──────────── Worked ◀── one call is let through to see
package breaker

import (
	"sync"
	"time"

	"github.com/skepkv/skep"
)

// Breaker is one server's. The zero value is ready, and lets everything through.
type Breaker struct {
	mu    sync.Mutex
	fails int
	until time.Time // no call is let through, and nobody looks, before
	asked time.Time // when a call was refused last
	looks bool      // somebody does
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

// Allow lets a call through.
//
// Errors: Unavailable, with the time after which somebody looks again.
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
	return &skep.Error{Op: "dial", Kind: skep.Unavailable, Field: "circuit breaker", Value: "open", RetryAfter: max(left, time.Millisecond)}
}

// Look says whether whoever asks has to look for the server, and after how long. It ends a look where it says no: the
// server is there, or nobody has asked for it for a while.
func (b *Breaker) Look() (after time.Duration, look bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.looks = b.fails >= fails && time.Since(b.asked) < wants
	return max(time.Until(b.until), 0), b.looks
}

// Failed says that a call did not reach the server, or had no answer in time. True: calls fail from now on, and somebody
// is to Look.
func (b *Breaker) Failed() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.failed(1)
}

// Silent is Failed of a server that says nothing at all: who waits for it waits in vain, and one such wait is enough.
func (b *Breaker) Silent() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.failed(max(fails-b.fails, 1))
}

func (b *Breaker) failed(n int) bool {
	b.fails += n
	if b.fails < fails {
		return false
	}
	now := time.Now()
	b.until = now.Add(min(first<<min(b.fails-fails, 10), most))
	if !b.looks {
		b.asked = now
	}
	return true
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
	b.fails, b.until = 0, time.Time{}
	b.mu.Unlock()
}
