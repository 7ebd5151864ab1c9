package gate

import (
	"context"
	"math"
	"sync/atomic"

	"github.com/skepkv/skep"
)

// Gate lets calls in until it is shut. It is safe for any number of goroutines. Make it with New.
type Gate struct {
	readOnly bool
	failed   func() error
	calls    atomic.Int64  // under way; shut more once it is shut
	idle     chan struct{} // has one when it is shut and no call is under way; of capacity 1
}

const shut = math.MinInt64 / 2

// ErrClosed is what a closed store answers.
var ErrClosed = &skep.Error{Op: "store", Kind: skep.Closed}

// New makes the open gate of a store. failed says why the store takes no writes any more; nil: it does.
func New(readOnly bool, failed func() error) *Gate {
	return &Gate{readOnly: readOnly, failed: failed, idle: make(chan struct{}, 1)}
}

// Why says why writes are refused; empty: they are not.
func (g *Gate) Why() string {
	if err := g.failed(); err != nil {
		return "failed: " + err.Error()
	}
	if g.readOnly {
		return "read-only"
	}
	return ""
}

// Enter begins a call; Leave ends it. Errors: Deadline (ctx has ended), Closed.
func (g *Gate) Enter(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return &skep.Error{Op: "store", Kind: skep.Deadline, Err: err}
	}
	if !g.Pass() {
		return ErrClosed
	}
	return nil
}

// EnterWrite begins a call that changes the store. Errors: as Enter, ReadOnly, Failed.
func (g *Gate) EnterWrite(ctx context.Context, op string) error {
	if err := g.Enter(ctx); err != nil {
		return err
	}
	if g.readOnly {
		g.Leave()
		return &skep.Error{Op: op, Kind: skep.ReadOnly}
	}
	if err := g.failed(); err != nil {
		g.Leave()
		return &skep.Error{Op: op, Kind: skep.Failed, Err: err}
	}
	return nil
}

// Pass is Enter for a call without a context. False: the gate is shut.
func (g *Gate) Pass() bool {
	if g.calls.Add(1) < 0 {
		g.Leave()
		return false
	}
	return true
}

// Leave ends a call that was let in.
func (g *Gate) Leave() {
	if g.calls.Add(-1) == shut {
		select {
		case g.idle <- struct{}{}:
		default:
		}
	}
}

// Shut lets nobody in any more and waits for the calls under way. Once only.
func (g *Gate) Shut() {
	if g.calls.Add(shut) != shut {
		<-g.idle
	}
}

// Closing says whether Shut was called.
func (g *Gate) Closing() bool { return g.calls.Load() < 0 }
