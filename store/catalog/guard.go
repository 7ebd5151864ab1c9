package catalog

import (
	"context"
	"errors"
	"fmt"
	"github.com/skepkv/skep/store/internal/locks"
	"log/slog"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/skepkv/skep"
)

// guard stands between callers and Pebble: it runs calls so that no caller hangs,
// and keeps what is known of the catalog's health.
type guard struct {
	log       *slog.Logger
	timeout   time.Duration
	patience  time.Duration // of changes, for a descriptor or space
	onFailure func(error)
	refusal   func() error // Options.Refuse
	makeRoom  func() bool  // Options.MakeRoom

	opened  atomic.Bool   // Open is through; from here on OnFailure is told
	failed  chan struct{} // closed when the catalog fails
	closing chan struct{} // closed when Close begins
	leaving chan struct{} // closed by Leave, or when Close begins
	left    sync.Once
	writes  atomic.Int64 // changes to the filesystem under way, see admit
	once    sync.Once
	cause   error // valid once failed is closed

	mu struct {
		locks.RWMutex[locks.CatalogFiles]
		closed bool // no call enters any more
	}
	inFlight sync.WaitGroup // calls inside Pebble; Add under mu.RLock

	health health
	spares spares
}

// health is what Pebble's events say of its background work.
type health struct {
	stalled     atomic.Bool // commits wait for flushes or compactions
	tableErrors atomic.Int32
	mu          struct {
		locks.Mutex[locks.CatalogHealth]
		err   error     // last background error since background work last succeeded
		since time.Time // of the first of them
		ends  time.Time // of the first that fails the catalog when it goes on
		last  time.Time // of the last such one
	}
}

func newGuard(o *Options) *guard {
	return &guard{log: o.Logger, timeout: o.Timeout, patience: o.Patience, onFailure: o.OnFailure, refusal: o.Refuse, makeRoom: o.MakeRoom,
		failed: make(chan struct{}), closing: make(chan struct{}), leaving: make(chan struct{})}
}

// fail makes the catalog failed. It may be called from inside Pebble, with its
// locks held.
func (g *guard) fail(cause error) {
	g.once.Do(func() {
		g.cause = cause
		close(g.failed)
		g.log.Error("catalog failed; it accepts nothing until it is closed and opened again", "err", cause.Error())
		if g.onFailure != nil && g.opened.Load() {
			go g.onFailure(&skep.Error{Op: "catalog", Kind: skep.Failed, Err: cause})
		}
	})
}

func (g *guard) isFailed() bool {
	select {
	case <-g.failed:
		return true
	default:
		return false
	}
}

func (g *guard) failure(op string) error {
	return &skep.Error{Op: op, Kind: skep.Failed, Field: "catalog", Err: g.cause}
}

// park ends the use of the calling goroutine without unwinding it: Pebble's
// deferred unlocks must not run. REQUIRES: the catalog has failed, so that nobody
// waits for this goroutine any more.
func park() { select {} }

// quiet waits until nothing is being written and says whether that came to be.
// REQUIRES: the catalog has failed, so that nothing is written after either.
func (g *guard) quiet() bool {
	for end := time.Now().Add(g.timeout); g.writes.Load() > 0; {
		if time.Now().After(end) {
			return false
		}
		time.Sleep(time.Millisecond)
	}
	return true
}

// enter admits a call; leave must follow.
func (g *guard) enter(op string) error {
	g.mu.RLock()
	defer g.mu.RUnlock()
	if g.mu.closed {
		return &skep.Error{Op: op, Kind: skep.Closed, Field: "catalog"}
	}
	if g.isFailed() {
		return g.failure(op)
	}
	g.inFlight.Add(1)
	return nil
}

func (g *guard) leave() { g.inFlight.Done() }

// call runs f, which may use Pebble, on a goroutine of its own and waits for it,
// for ctx, for the timeout without progress, or for the catalog's failure,
// whichever is first. f must hand everything it gives the caller through v. After
// an early end f may still be running.
func (g *guard) call(ctx context.Context, op string, f func(v *visitor) error) error {
	if err := g.enter(op); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		g.leave()
		return waitError(op, err)
	}
	return g.run(ctx, op, f)
}

// run is call for a caller that has entered; it sees to leaving.
func (g *guard) run(ctx context.Context, op string, f func(v *visitor) error) error {
	v := &visitor{}
	done := make(chan error, 1)
	go func() {
		defer g.leave()
		finished := false
		defer func() {
			if !finished { // a panic in Pebble, on a commit or read path
				g.fail(fmt.Errorf("pebble panicked: %v\n%s", recover(), debug.Stack()))
			}
		}()
		err := f(v)
		finished = true
		done <- err
	}()
	timer := time.NewTimer(g.timeout)
	defer timer.Stop()
	end := time.Now().Add(g.patience) // for a flush that finds no space; other waits for some end by themselves
	for seen, waited := int64(0), g.spares.waited.Load(); ; {
		var early error
		select {
		case err := <-done:
			if v.panicked {
				panic(v.panicValue)
			}
			if err != nil && err == v.own {
				return err
			}
			return translate(op, err)
		case <-g.failed:
			early = g.failure(op)
		case <-ctx.Done():
			early = waitError(op, ctx.Err())
		case <-timer.C:
			moved, waits := v.moved(&seen), g.spares.waits(&waited)
			waits = waits || g.unflushed() != nil && time.Now().Before(end)
			if moved || waits { // not known whether it happened would fail the store
				timer.Reset(g.timeout)
				continue
			}
			if err := ctx.Err(); err != nil { // both are over: it was the caller's that came first, or it says more
				early = waitError(op, err)
				break
			}
			early = &skep.Error{Op: op, Kind: skep.Deadline, Field: "catalog", Limit: "an answer within " + g.timeout.String()}
		}
		v.leave()
		return early
	}
}

func waitError(op string, err error) error {
	return &skep.Error{Op: op, Kind: skep.Deadline, Field: "catalog", Err: err}
}

// translate gives Pebble's errors their kind.
func translate(op string, err error) error {
	var known *skep.Error
	switch {
	case err == nil:
		return nil
	case errors.As(err, &known):
		return err
	case pebble.IsCorruptionError(err):
		return &skep.Error{Op: op, Kind: skep.Damaged, Field: "catalog", Err: err}
	case vfs.IsNoSpaceError(err):
		return &skep.Error{Op: op, Kind: skep.Full, Field: "catalog", Err: err}
	case errors.Is(err, pebble.ErrReadOnly):
		return &skep.Error{Op: op, Kind: skep.ReadOnly, Field: "catalog", Err: err}
	case errors.Is(err, pebble.ErrClosed):
		return &skep.Error{Op: op, Kind: skep.Closed, Field: "catalog", Err: err}
	}
	return fmt.Errorf("skep: %s: catalog: %w", op, err)
}

// visitor is the one place where a call's goroutine touches what belongs to its
// caller. Once the caller has left it touches nothing more.
type visitor struct {
	mu         locks.Mutex[locks.CatalogVisitor]
	left       bool
	steps      int64
	own        error // of fn: not Pebble's, returned as it is
	panicked   bool
	panicValue any
}

var (
	errLeft     = errors.New("caller has left")
	errPanicked = errors.New("visitor panicked")
)

// do runs fn unless the caller has left. A panic of fn is the caller's own and is
// raised again on its goroutine.
func (v *visitor) do(fn func() error) (err error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.left {
		return errLeft
	}
	v.steps++
	v.panicked = true
	defer func() {
		if v.panicked {
			v.panicValue = recover()
			err = errPanicked
		}
	}()
	v.own = fn()
	v.panicked = false
	return v.own
}

// leave waits for an fn under way, which is the caller's own code.
func (v *visitor) leave() {
	v.mu.Lock()
	v.left = true
	v.mu.Unlock()
}

// moved says whether there was a step since seen, or is one now.
func (v *visitor) moved(seen *int64) bool {
	if !v.mu.TryLock() {
		return true
	}
	defer v.mu.Unlock()
	moved := v.steps != *seen
	*seen = v.steps
	return moved
}
