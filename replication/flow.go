package replication

import (
	"context"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/replication/runs"
)

// How a repair looks at those that it sends to.
const (
	idleLooks = 500 * time.Millisecond // so often a node is asked whether clients use it
	slowPut   = time.Second            // who takes that long for a run has enough to do
	slowFor   = 10 * time.Second       // and is left in peace for so long
)

// flow paces what a repair sends: to IdleRate, all together, while clients use neither this node nor the one that it
// goes to. To one that they use goes Rate at most, and all together where they use this node.
type flow struct {
	o   *RepairOptions
	all *rate.Limiter // nil: there is no limit

	mu  sync.Mutex
	now int64 // what Told was told last
	to  map[*node]*receiver
}

// receiver is a node that is sent copies.
type receiver struct {
	pace *rate.Limiter

	mu    sync.Mutex
	asked time.Time // whether clients use it; zero: not yet
	idle  bool
	slow  time.Time // it took long for a run
}

func newFlow(o *RepairOptions) *flow {
	f := &flow{o: o, to: map[*node]*receiver{}}
	if o.Rate > 0 {
		f.all = limiter(o.Rate)
	}
	return f
}

func limiter(bytes int64) *rate.Limiter { return rate.NewLimiter(rate.Limit(bytes), runs.MaxBytes) }

// receiver gives a node's.
func (f *flow) receiver(n *node) *receiver {
	f.mu.Lock()
	defer f.mu.Unlock()
	r := f.to[n]
	if r == nil {
		r = &receiver{pace: limiter(f.o.Rate)}
		f.to[n] = r
	}
	return r
}

// wait waits until so many bytes may go to a node. It decides anew for each piece of them, several times a second.
func (f *flow) wait(ctx context.Context, n *node, bytes int64) error {
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
			if r.isIdle(ctx, n.st) {
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

func (f *flow) tell(at int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if at != f.now && f.o.Told != nil {
		f.o.Told(at)
	}
	f.now = at
}

// isIdle says whether a node says that clients have left it, and does not take long for what it is sent. One that does
// not answer in time, or is of a version that does not say, is used.
func (r *receiver) isIdle(ctx context.Context, st skep.Store) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if now := time.Now(); r.asked.IsZero() || now.Sub(r.asked) >= idleLooks {
		call, cancel := context.WithTimeout(ctx, idleLooks)
		defer cancel()
		said, err := st.Stats(call)
		r.asked, r.idle = time.Now(), err == nil && said.Idle
	}
	return r.idle && (r.slow.IsZero() || time.Since(r.slow) >= slowFor)
}

// took notes how long a node took for a run.
func (f *flow) took(n *node, d time.Duration) {
	if f.all == nil || d < slowPut {
		return
	}
	r := f.receiver(n)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.slow = time.Now()
}
