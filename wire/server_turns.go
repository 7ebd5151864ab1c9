package wire

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

// turns lets few frames of payload be written at once, over all connections. A frame that many others
// are written beside takes as many times longer, and what is to be told on its connection meanwhile, a
// refusal for one, waits behind it. A session that waits for its turn keeps no connection busy.
//
// A peer that takes its bytes slowly has a turn for lasts only, and none for its next frames until
// one of them was taken in that time: it holds nobody up, and costs no processor while it is waited for.
// Nobody waits for a turn longer than waits.
type turns struct {
	free         chan struct{} // a token each
	lasts, waits time.Duration
}

// turnBytes is the shortest payload that takes a turn.
const turnBytes = 64 << 10

// newTurns is four turns a processor: measured on two (docs/notebook/serving.md), with eight more refusals come late.
func newTurns() turns { return turnsOf(4*runtime.GOMAXPROCS(0), 100*time.Millisecond, time.Second) }

func turnsOf(n int, lasts, waits time.Duration) turns {
	t := turns{free: make(chan struct{}, n), lasts: lasts, waits: waits}
	for range n {
		t.free <- struct{}{}
	}
	return t
}

// take waits for a turn to write a frame to a peer, of whom late says that its last frame took too long. It
// gives what is to be called when the frame is written. An error is that ctx has ended.
func (t *turns) take(ctx context.Context, late *atomic.Bool) (written func(), err error) {
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
	give := func() { once.Do(func() { t.free <- struct{}{} }) }
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
func (t *turns) wait(ctx context.Context) (bool, error) {
	select {
	case <-t.free:
		return true, nil
	default:
	}
	late := time.NewTimer(t.waits)
	defer late.Stop()
	select {
	case <-t.free:
		return true, nil
	case <-late.C:
		return false, nil
	case <-ctx.Done():
		return false, ctx.Err()
	}
}
