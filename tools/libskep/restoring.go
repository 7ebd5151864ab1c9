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
	room   *room // what chunks land in
	cancel context.CancelFunc
	over   chan struct{}

	mu      sync.Mutex
	states  []blockState
	waiting int
	err     error         // why what lands does not get where it is wanted, or nothing more lands
	change  chan struct{} // closed and made anew when states change

	released sync.Once
}

var restorings sync.Map // of *restoring, by number

// begin starts restoring these blocks, c's, of a chain to t by two pointers, with claims through word where that is not
// nil. The session and its goroutine end with timeout, or with end.
func (o *opened) begin(
	c skep.Chain, blocks skep.Range, g layout.Geometry, t *target, word *atomic.Uint64, timeout time.Duration,
) (_ *restoring, err error) {
	if err := t.Validate(g); err != nil {
		return nil, err
	}
	if t.direct != nil {
		return nil, &skep.Error{Op: op, Kind: skep.Unsupported, Field: "where", Value: "the simulated GPU", Limit: "host or CUDA"}
	}
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	r := &restoring{of: o, blocks: blocks, cancel: cancel, over: make(chan struct{}), change: make(chan struct{}),
		states: make([]blockState, blocks.Len()), waiting: blocks.Len()}
	defer func() {
		if err != nil {
			cancel()
		}
	}()
	t.first = blocks.From
	c.Direction = skep.TailFirst
	if r.room, err = r.land(ctx, o, g, t, word != nil); err != nil {
		return nil, err
	}
	if c.Dest.Memory = r.room.bytes; r.room.bytes != nil {
		c.Dest.Stride = layout.Padded(g.PartBytes())
	}
	if r.ses, err = o.Restore(ctx, &skep.RestoreRequest{Chains: []skep.Chain{c}}); err != nil {
		queued := r.room.queued()
		o.leave(r.room, nil, err)
		return nil, errors.Join(queued, notOurs(ctx, err)) // first that the GPU failed
	}
	if word != nil {
		if err = r.ses.ShareClaimWord(ctx, 0, word); err != nil {
			end, stop := context.WithTimeout(context.Background(), patience)
			defer stop()
			queued, left := r.room.queued(), r.ses.Close(end)
			if left != nil { // whatever went wrong, the room and the word may be the session's yet
				left = &skep.Error{Op: op, Kind: skep.NotReleased, Err: left}
			}
			o.leave(r.room, r.ses, left)
			return nil, inUse(errors.Join(queued, err, left))
		}
	}
	go r.run(ctx, c.Dest, g, t)
	return r, nil
}

// land says where chunks land before they are written to t: pinned memory of a GPU's, memory shared with the
// server where a word has to be, else memory that the Store lends chunk by chunk.
func (r *restoring) land(ctx context.Context, o *opened, g layout.Geometry, t *target, word bool) (*room, error) {
	nothing := func() {}
	out := &room{queued: func() error { return nil }, back: nothing, lose: nothing, hung: nothing}
	n := int64(r.blocks.Len()) * layout.Padded(g.PartBytes())
	switch {
	case t.take != nil && n > landingBytes:
		return nil, skep.Invalidf(op, "bytes of a restore by two pointers to a GPU", n, int64(landingBytes))
	case t.take != nil:
		return t.take(ctx, n)
	case o.client != nil && word:
		m, err := o.Alloc(ctx, n)
		if err != nil {
			return nil, err
		}
		out.bytes, out.back, out.lose = m.Bytes(), m.Release, m.Release
	}
	return out, nil
}

// run puts blocks in their places as they land, until every one is answered or ctx ends.
func (r *restoring) run(ctx context.Context, d skep.Destination, g layout.Geometry, t *target) {
	defer close(r.over)
	queued := sync.OnceValue(r.room.queued)
	answer := func(i int, s blockState, err error) error {
		if r.left() == 1 { // nothing is copied after the last block
			err = errors.Join(queued(), err)
		}
		r.set(i, s, err)
		return err
	}
	err := skep.Drain(ctx, r.ses, func(c *skep.Chunk) error {
		i := c.Block - r.blocks.From
		if c.Err != nil {
			s := missed
			if skep.KindOf(c.Err) == skep.Claimed {
				s = granted
			}
			return answer(i, s, nil)
		}
		block := []byte(nil)
		if d.Memory != nil {
			block = d.Memory[int64(i)*d.Stride:][:c.Bytes]
		} else {
			block = whole(c.Data)
		}
		if err := t.scatter(g, i, block); err != nil {
			return answer(i, missed, err)
		}
		return answer(i, landed, nil)
	})
	late := queued()
	// Pinned memory others wait for; what a server maps is the session's until that is closed, by end.
	if stopped := r.stop(err); stopped == nil && t.take != nil {
		r.release()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.waiting > 0 { // else late was told with the last block
		if r.err == nil && skep.KindOf(err) != skep.Deadline { // that is what missed says
			r.err = err
		}
		r.err = errors.Join(late, r.err)
	}
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

// set says how a block stands, and what went wrong with it.
func (r *restoring) set(i int, s blockState, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err == nil {
		r.err = err
	}
	r.setLocked(i, s)
	r.changedLocked()
}

// left is how many blocks wait.
func (r *restoring) left() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.waiting
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
// says how many wait. Where none does, an error says what else went wrong than that blocks are missed, or late.
func (r *restoring) poll(d time.Duration, states []blockState) (int, error) {
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
		n, change, err := r.waiting, r.change, r.err
		r.mu.Unlock()
		switch {
		case n == 0:
			return 0, err
		case !same || late == nil:
			return n, nil
		}
		select {
		case <-change:
		case <-late:
			late = nil
		}
	}
}

// number keeps r, and gives the number that a C program has of it. Of a store that is being closed it ends r, and is as
// patient as a call that does not say: r's goroutine writes to what the caller gave. NotReleased: it may write yet.
func (r *restoring) number() (uint64, error) {
	id, err := r.of.keep(&restorings, r)
	if err != nil {
		ctx, cancel := timeout(0)
		defer cancel()
		err = inUse(errors.Join(err, r.end(ctx)))
	}
	return id, err
}

// end stops what is left. When it returns nil nothing is written to the destination or the word any more; else that is
// not sure, whatever went wrong: NotReleased.
func (r *restoring) end(ctx context.Context) error {
	r.cancel()
	select {
	case <-r.over:
	case <-ctx.Done():
		return &skep.Error{Op: op, Kind: skep.NotReleased, Err: ctx.Err()}
	}
	if err := r.ses.Close(ctx); err != nil {
		return &skep.Error{Op: op, Kind: skep.NotReleased, Err: err}
	}
	r.release()
	return nil
}

// release gives the memory back that chunks landed in, once. REQUIRES: nothing writes to it any more.
func (r *restoring) release() { r.released.Do(r.room.back) }
