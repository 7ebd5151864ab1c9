// Package breaker keeps calls from waiting for a server that is not there: after a few failures in succession they fail
// at once for a while, which doubles, and then one is let through to see.
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
	until time.Time
}

// How many failures cost nothing but themselves, and how long calls fail after the next.
const (
	fails = 3
	first = 100 * time.Millisecond
	again = 10 * time.Millisecond // after one that saw nothing, for want of time
	most  = 5 * time.Second
)

// Allow lets a call through.
//
// Errors: Unavailable, with the time after which it may be let through.
func (b *Breaker) Allow() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if left := time.Until(b.until); left > 0 {
		return &skep.Error{Op: "dial", Kind: skep.Unavailable, Field: "circuit breaker", Value: "open", RetryAfter: left}
	}
	if b.fails >= fails { // half open: this one goes, the others wait for what becomes of it
		b.until = time.Now().Add(first)
	}
	return nil
}

// Failed says that a call did not reach the server.
func (b *Breaker) Failed() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.fails++; b.fails >= fails {
		b.until = time.Now().Add(min(first<<min(b.fails-fails, 10), most))
	}
}

// Ended says that a call did not reach the server, or that its caller gave it up before that was seen: then the next one
// sees, sooner than after a failure.
func (b *Breaker) Ended(gaveUp bool) {
	if !gaveUp {
		b.Failed()
		return
	}
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
