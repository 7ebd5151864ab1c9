package main

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout"
)

// blockState is how a block of a restore under way stands; the numbers are skep.h's.
type blockState uint8

const (
	waiting blockState = 0
	landed  blockState = 1
	granted blockState = 2 // the engine's: it claimed it
	missed  blockState = 3 // did not come
)

// restoring is a restore by two pointers under way: a session with one chain, and a goroutine that puts what
// lands where the engine wants it.
//
// Invariants: states only leave waiting; over is closed once no more is written to the destination by the goroutine.
type restoring struct {
	of     *opened
	ses    skep.Session
	blocks skep.Range
	mem    skep.Memory // what chunks land in, of the store's; nil: none
	cancel context.CancelFunc
	over   chan struct{}

	mu      sync.Mutex
	states  []blockState
	waiting int
	err     error         // what ended the session before all was answered
	change  chan struct{} // closed and made anew when states change
	ended   bool
}

// begin starts restoring these blocks, c's, of a chain to t by two pointers, with claims through word where that is not nil.
// The session and its goroutine end with timeout, or with end.
func (o *opened) begin(c skep.Chain, blocks skep.Range, g layout.Geometry, t *target, word *atomic.Uint64, timeout time.Duration) (_ *restoring, err error) {
	if err := t.Validate(g); err != nil {
		return nil, err
	}
	if t.direct != nil {
		return nil, &skep.Error{Op: op, Kind: skep.Unsupported, Field: "where", Value: "the simulated GPU", Limit: "host or CUDA"}
	}
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	r := &restoring{of: o, blocks: blocks, cancel: cancel, over: make(chan struct{}), change: make(chan struct{}), states: make([]blockState, blocks.Len()), waiting: blocks.Len()}
	queued := func() error { return nil }
	defer func() {
		if err != nil {
			cancel()
			err = errors.Join(err, queued())
			r.release()
		}
	}()
	t.first = blocks.From
	c.Direction = skep.TailFirst
	if queued, err = r.land(ctx, o, &c, g, t, word != nil); err != nil {
		queued = func() error { return nil }
		return nil, err
	}
	if r.ses, err = o.Restore(ctx, &skep.RestoreRequest{Chains: []skep.Chain{c}}); err != nil {
		return nil, err
	}
	if word != nil {
		if err = r.ses.ShareClaimWord(ctx, 0, word); err != nil {
			end, stop := context.WithTimeout(context.Background(), patience)
			defer stop()
			if left := r.ses.Close(end); left != nil { // something may write yet: what it lands in is never used again
				r.ended, queued = true, func() error { return nil }
				err = errors.Join(err, left)
			}
			return nil, err
		}
	}
	go r.run(ctx, c.Dest, g, t, queued)
	return r, nil
}

// land says where chunks land before they are written to t: pinned memory of a GPU's, memory shared with the
// server where a word has to be, else memory that the Store lends chunk by chunk. done is called
// when all was written from there.
func (r *restoring) land(ctx context.Context, o *opened, c *skep.Chain, g layout.Geometry, t *target, word bool) (done func() error, err error) {
	done = func() error { return nil }
	step := layout.Padded(g.PartBytes())
	n := int64(r.blocks.Len()) * step
	switch {
	case t.take != nil && n > landingBytes:
		return done, skep.Invalidf(op, "bytes of a restore by two pointers to a GPU", n, int64(landingBytes))
	case t.take != nil:
		c.Dest.Memory, done, err = t.take(ctx, n)
	case o.client != nil && word:
		if r.mem, err = o.Alloc(ctx, n); err == nil {
			c.Dest.Memory = r.mem.Bytes()
		}
	default:
		return done, nil
	}
	c.Dest.Stride = step
	return done, err
}

// run puts blocks in their places as they land, until every one is answered or ctx ends.
func (r *restoring) run(ctx context.Context, d skep.Destination, g layout.Geometry, t *target, queued func() error) {
	defer close(r.over)
	err := skep.Drain(ctx, r.ses, func(c *skep.Chunk) error {
		i := c.Block - r.blocks.From
		if c.Err != nil {
			s := missed
			if skep.KindOf(c.Err) == skep.Claimed {
				s = granted
			}
			r.set(i, s)
			return nil
		}
		block := []byte(nil)
		if d.Memory != nil {
			block = d.Memory[int64(i)*d.Stride:][:c.Bytes]
		} else {
			block = whole(c.Data)
		}
		if err := t.scatter(g, i, block); err != nil {
			r.set(i, missed)
			return err
		}
		r.set(i, landed)
		return nil
	})
	if stopped := r.stop(err); stopped != nil { // a drive may write to pinned memory yet: it is never used again
		err = errors.Join(err, stopped)
	} else {
		err = errors.Join(err, queued())
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.err = err
	for i := range r.states {
		if r.states[i] == waiting {
			r.setLocked(i, missed)
		}
	}
	r.changedLocked()
}

// stop has nothing more read, unless all is answered: then what did not come can still be claimed.
func (r *restoring) stop(err error) error {
	if err == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return r.ses.Stop(ctx, -1)
}

func (r *restoring) set(i int, s blockState) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.setLocked(i, s)
	r.changedLocked()
}

// setLocked REQUIRES: r.mu.
func (r *restoring) setLocked(i int, s blockState) {
	if r.states[i] == waiting {
		r.waiting--
	}
	r.states[i] = s
}

// changedLocked REQUIRES: r.mu.
func (r *restoring) changedLocked() {
	close(r.change)
	r.change = make(chan struct{})
}

// poll copies how blocks stand to states, once anything is not as it is there or d has passed, and
// says how many wait.
func (r *restoring) poll(d time.Duration, states []blockState) int {
	var late <-chan time.Time
	if d > 0 {
		timer := time.NewTimer(d)
		defer timer.Stop()
		late = timer.C
	}
	for {
		r.mu.Lock()
		same := true
		for i, s := range r.states {
			same = same && states[i] == s
		}
		copy(states, r.states)
		n, change := r.waiting, r.change
		r.mu.Unlock()
		if !same || n == 0 || late == nil {
			return n
		}
		select {
		case <-change:
		case <-late:
			late = nil
		}
	}
}

// end stops what is left. When it returns nil nothing is written to the destination or the word any more.
func (r *restoring) end(ctx context.Context) error {
	r.cancel()
	select {
	case <-r.over:
	case <-ctx.Done():
		return &skep.Error{Op: op, Kind: skep.NotReleased, Err: ctx.Err()}
	}
	if err := r.ses.Close(ctx); err != nil {
		return err
	}
	r.release()
	return nil
}

// release gives the memory back that chunks landed in. REQUIRES: nothing writes to it any more.
func (r *restoring) release() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mem != nil && !r.ended {
		r.mem.Release()
	}
	r.ended = true
}
