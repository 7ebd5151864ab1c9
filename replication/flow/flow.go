// Package flow paces what a node sends others of its own accord, by whether clients are held up by it: those of the
// node, and those of the one that it goes to.
package flow

import (
	"context"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/replication/runs"
)

// How nodes are looked at that something is sent to.
const (
	idleLooks = 500 * time.Millisecond // so often a node is asked whether clients use it
	slowPut   = time.Second            // who takes that long for a run has enough to do
	slowFor   = 10 * time.Second       // and is left in peace for so long
)

// Options of New. Rates are bytes a second.
type Options struct {
	// Rate is what goes to other nodes, all together; 0: as much as they take.
	Rate int64
	// IdleRate takes its place where it is more, Idle says that clients have left this node, and the other one says so in
	// its Stats. Idle may be nil: they have not.
	IdleRate int64
	Idle     func() bool
	// Told is told which of the two it is, whenever that changes, one call at a time; nil: nobody.
	Told func(rate int64)
}

// Flow paces what goes to other nodes: to IdleRate, all together, while clients use neither this node nor the one that
// it goes to. To one that they use goes Rate at most, and all together where they use this node. It is safe for
// concurrent use. Make it with New.
type Flow struct {
	o   Options
	all *rate.Limiter // nil: there is no limit

	mu  sync.Mutex
	now int64 // what Told was told last
	to  map[uint64]*receiver
}

// receiver is a node that is sent copies.
type receiver struct {
	pace *rate.Limiter

	mu    sync.Mutex
	asked time.Time // whether clients use it; zero: not yet
	idle  bool
	slow  time.Time // it took long for a run
}

// New makes a Flow.
func New(o Options) *Flow {
	f := &Flow{o: o, to: map[uint64]*receiver{}}
	if o.Rate > 0 {
		f.all = limiter(o.Rate)
	}
	return f
}

func limiter(bytes int64) *rate.Limiter { return rate.NewLimiter(rate.Limit(bytes), runs.MaxBytes) }

// receiver gives a node's.
func (f *Flow) receiver(n uint64) *receiver {
	f.mu.Lock()
	defer f.mu.Unlock()
	r := f.to[n]
	if r == nil {
		r = &receiver{pace: limiter(f.o.Rate)}
		f.to[n] = r
	}
	return r
}

// Wait waits until so many bytes may go to a node, which is given by its number and by what tells of it. It decides
// anew for each piece of them, several times a second. Errors: those of ctx.
func (f *Flow) Wait(ctx context.Context, n uint64, of skep.Observer, bytes int64) error {
	if f.all == nil {
		return nil
	}
	r := f.receiver(n)
	for bytes > 0 {
		piece := min(bytes, max(f.o.Rate/8, 4<<10), runs.MaxBytes)
		bytes -= piece
		at, here := f.o.Rate, f.o.Idle != nil && f.o.IdleRate > f.o.Rate && f.o.Idle()
		if here {
			f.all.SetLimit(rate.Limit(f.o.IdleRate))
			if r.isIdle(ctx, of) {
				at = f.o.IdleRate
			} else if err := r.pace.WaitN(ctx, int(piece)); err != nil {
				return err
			}
		} else {
			f.all.SetLimit(rate.Limit(f.o.Rate))
		}
		f.tell(at)
		if err := f.all.WaitN(ctx, int(piece)); err != nil {
			return err
		}
	}
	return nil
}

func (f *Flow) tell(at int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if at != f.now && f.o.Told != nil {
		f.o.Told(at)
	}
	f.now = at
}

// isIdle says whether a node says that clients have left it, and does not take long for what it is sent. One that does
// not answer in time, or is of a version that does not say, is used.
func (r *receiver) isIdle(ctx context.Context, of skep.Observer) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if now := time.Now(); r.asked.IsZero() || now.Sub(r.asked) >= idleLooks {
		call, cancel := context.WithTimeout(ctx, idleLooks)
		defer cancel()
		said, err := of.Stats(call)
		r.asked, r.idle = time.Now(), err == nil && said.Idle
	}
	return r.idle && (r.slow.IsZero() || time.Since(r.slow) >= slowFor)
}

// Took notes how long a node took for a run.
func (f *Flow) Took(n uint64, d time.Duration) {
	if f.all == nil || d < slowPut {
		return
	}
	r := f.receiver(n)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.slow = time.Now()
}
