// Package turns lets few frames of payload be written at once.
package turns

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

// Turns lets few frames of payload be written at once, over all connections. A frame that many others
// are written beside takes as many times longer, and what is to be told on its connection meanwhile, a
// refusal for one, waits behind it. A session that waits for its turn keeps no connection busy.
//
// A peer that takes its bytes slowly has a turn for lasts only, and none for its next frames until
// one of them was taken in that time: it holds nobody up, and costs no processor while it is waited for.
// Nobody waits for a turn longer than waits.
type Turns struct {
	Free         chan struct{} // a token each
	lasts, waits time.Duration
}

// Bytes is the shortest payload that takes a turn.
const Bytes = 64 << 10

// New is four turns a processor: measured on two (docs/notebook/serving.md), with eight more refusals come late.
func New() Turns { return Of(4*runtime.GOMAXPROCS(0), 100*time.Millisecond, time.Second) }

// Of is n turns, each for lasts; nobody waits for one longer than waits.
func Of(n int, lasts, waits time.Duration) Turns {
	t := Turns{Free: make(chan struct{}, n), lasts: lasts, waits: waits}
	for range n {
		t.Free <- struct{}{}
	}
	return t
}

// Take waits for a turn to write a frame to a peer, of whom late says that its last frame took too long. It
// gives what is to be called when the frame is written. An error is that ctx has ended.
func (t *Turns) Take(ctx context.Context, late *atomic.Bool) (written func(), err error) {
	has := false
	if !late.Load() {
		if has, err = t.wait(ctx); err != nil {
			return nil, err
		}
	}
	if !has {
		began := time.Now()
		return func() { late.Store(time.Since(began) > t.lasts) }, nil
	}
	var once sync.Once
	give := func() { once.Do(func() { t.Free <- struct{}{} }) }
	over := time.AfterFunc(t.lasts, func() {
		late.Store(true)
		give()
	})
	return func() {
		over.Stop()
		give()
	}, nil
}

// wait says whether there was a turn in time.
func (t *Turns) wait(ctx context.Context) (bool, error) {
	select {
	case <-t.Free:
		return true, nil
	default:
	}
	late := time.NewTimer(t.waits)
	defer late.Stop()
	select {
	case <-t.Free:
		return true, nil
	case <-late.C:
		return false, nil
	case <-ctx.Done():
		return false, ctx.Err()
	}
}
