package wire

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/skepkv/skep/wire/frames"
)

// Who reads a connection.
//
// Its reader does: a goroutine that hands every answer to the caller that waits for it. That is two goroutines woken
// for an answer of 80 bytes, and the processor that the second needs may be the one a server on the same machine runs
// on. So a call that is answered at once reads its own answer, when nobody else reads:
//
//	reading ──an answer of such a call, and nothing else is under way──▶ resting
//	   ▲  reader has the turn                     turn is free: the next such call takes it, reads │
//	   │                                          until its answer is there, and gives it back     │
//	   └──a call that does not read, a frame longer than the buffer, lingering without a call─────┘
//
// Whoever has the turn hands every frame to whom it belongs. A caller that reads takes frames that lie in
// the buffer whole and have no payload, and leaves all others to the reader: it does
// nothing that could outlast its context, which cuts its wait off and leaves what was read in the buffer.
type readers struct {
	turn  chan struct{} // one token: who has it reads
	wake  chan struct{} // one token: the reader is to read
	rests atomic.Bool   // the reader waits for wake
	own   atomic.Int64  // answers that callers read
	short bool          // the last frame answered a call that may read; of who has the turn
}

// lingering is how long the reader rests without a call before it reads again: so long, that a server that
// closes the connection is not noticed.
const lingering = 10 * time.Millisecond

func (r *readers) init() {
	r.turn, r.wake = make(chan struct{}, 1), make(chan struct{}, 1)
	r.turn <- struct{}{}
}

// readsOnly says which calls are answered at once.
func readsOnly(t frames.Type) bool {
	return t == frames.TypeLookup || t == frames.TypeLookupRuns || t == frames.TypeRenew || t == frames.TypeRelease || t == frames.TypeWant
}

// quietLocked says that nothing is under way. REQUIRES: x.mu.
func (x *clientConn) quietLocked() bool { return len(x.pending)+len(x.sessions)+len(x.streams) == 0 }

// rest returns when the reader is to read: at once, unless calls read their own answers now.
// REQUIRES: it is the reader that asks, and it has not the turn.
func (x *clientConn) rest() {
	r := &x.readers
	x.mu.Lock()
	rests := x.err == nil && x.quietLocked()
	if rests {
		select {
		case <-r.wake: // of before
		default:
		}
		r.rests.Store(true) // who begins something from here on sees it
	}
	x.mu.Unlock()
	if !rests {
		return
	}
	defer r.rests.Store(false)
	last := r.own.Load()
	t := time.NewTicker(lingering)
	defer t.Stop()
	for {
		select {
		case <-r.wake:
			return
		case <-x.dead:
			return
		case <-t.C:
			now := r.own.Load()
			if now == last {
				return
			}
			last = now
		}
	}
}

// rouse has the reader read, if it rests.
func (x *clientConn) rouse() {
	if r := &x.readers; r.rests.Load() {
		select {
		case r.wake <- struct{}{}:
		default:
		}
	}
}

// readOwn reads until p is answered, where nobody else reads. Without an answer the reader goes on, and p waits for it.
func (x *clientConn) readOwn(ctx context.Context, p *pendingCall) {
	r := &x.readers
	select {
	case <-r.turn:
	default:
		return // whoever reads sees p before it rests
	}
	x.l.SetRead(0)
	cut := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		x.l.Conn.SetReadDeadline(time.Unix(1, 0))
		close(cut)
	})
	for len(p.reply) == 0 && x.readShort() {
	}
	if !stop() {
		<-cut // the deadline is the next reader's to set
	}
	if len(p.reply) > 0 {
		r.own.Add(1)
	}
	r.turn <- struct{}{}
	x.mu.Lock()
	quiet := x.quietLocked()
	x.mu.Unlock()
	if !quiet { // others began something meanwhile, or p is the reader's now
		x.rouse()
	}
}

// readShort reads once, or carries out a frame that was read. False: the reader is to see to what comes.
func (x *clientConn) readShort() bool {
	whole, short := x.l.HoldsFrame()
	switch {
	case whole:
		if err := x.frame(); err != nil {
			x.end(x.broke(err))
			return false
		}
		return true
	case !short:
		return false
	}
	return x.l.Fill() == nil // an error comes again
}
