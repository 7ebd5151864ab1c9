package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/skepkv/skep"
)

// maxDepth is the most operations that a queue has.
const maxDepth = 4096

// operation is a call that runs in a goroutine of a queue's.
type operation struct {
	tag     uint64
	what    uint32
	timeout time.Duration
	do      func(ctx context.Context, done *completion) error
	tell    func() // writes results to the caller's memory, in drain; nil: there are none
}

// completion is an operation that is over.
type completion struct {
	tag                   uint64
	what                  uint32
	blocks, tokens, bytes int64
	lease                 skep.LeaseID
	err                   error
	tell                  func()
}

// queue has operations under way, and those that are over, until they are drained.
//
// Invariants: taken is how many are under way or in over, at most depth. The signal is on exactly while over is not
// empty.
type queue struct {
	of     *opened
	depth  int
	signal signal
	life   context.Context // ends with close
	end    context.CancelFunc

	mu      sync.Mutex
	taken   int
	running int // operations and drains
	over    []completion
	closed  bool          // it takes no more
	ended   bool          // nothing runs, and the signal is gone
	quiet   chan struct{} // closed when nothing runs; nil: nobody waits for that
}

var queues sync.Map // of *queue, by number

func queueOf(id uint64) (*queue, error) {
	if q, ok := queues.Load(id); ok {
		return q.(*queue), nil
	}
	return nil, skep.Invalidf(op, "queue", id, "one that is open")
}

// newQueue makes a queue, and gives its number.
func (o *opened) newQueue(depth int) (uint64, *queue, error) {
	if depth < 1 || depth > maxDepth {
		return 0, nil, skep.Invalidf(op, "depth of a queue", depth, fmt.Sprintf("1 to %d", maxDepth))
	}
	s, err := newSignal()
	if err != nil {
		return 0, nil, err
	}
	q := &queue{of: o, depth: depth, signal: s}
	q.life, q.end = context.WithCancel(o.life)
	id, err := o.keep(&queues, q)
	if err != nil {
		q.end()
		return 0, nil, errors.Join(err, s.close())
	}
	return id, q, nil
}

// begin begins an operation. False: the queue is full.
func (q *queue) begin(op operation) (bool, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return false, &skep.Error{Op: "submit", Kind: skep.Closed}
	}
	if q.taken == q.depth {
		return false, nil
	}
	q.taken++
	q.running++
	go q.run(op)
	return true, nil
}

// run does an operation. A panic of ours is not the engine's end.
func (q *queue) run(x operation) {
	done := completion{tag: x.tag, what: x.what, tell: x.tell}
	defer func() {
		if p := recover(); p != nil {
			done.err = fmt.Errorf("skep: internal error: %v", p)
		}
		q.mu.Lock()
		defer q.mu.Unlock()
		if q.over = append(q.over, done); len(q.over) == 1 {
			q.signal.on()
		}
		q.endedLocked()
	}()
	ctx, cancel := context.WithTimeout(q.life, x.timeout)
	defer cancel()
	done.err = x.do(ctx, &done)
}

// endedLocked says that what q.running counts is one less. REQUIRES: q.mu.
func (q *queue) endedLocked() {
	if q.running--; q.running == 0 && q.quiet != nil {
		close(q.quiet)
		q.quiet = nil
	}
}

// drain takes at most n of what is over, and has their results told. It is running until they are: close waits for it.
func (q *queue) drain(n int) ([]completion, error) {
	q.mu.Lock()
	if q.closed {
		q.mu.Unlock()
		return nil, &skep.Error{Op: "drain", Kind: skep.Closed}
	}
	n = min(n, len(q.over))
	out := q.over[:n:n]
	q.over = q.over[n:]
	q.taken -= n
	if n > 0 && len(q.over) == 0 {
		q.over = nil
		q.signal.off()
	}
	q.running++
	q.mu.Unlock()
	defer func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		q.endedLocked()
	}()
	for _, c := range out {
		if c.tell != nil {
			c.tell()
		}
	}
	return out, nil
}

// close ends what is under way. NotReleased: it is not all over, and the queue is as it was, but that it takes no more.
func (q *queue) close(ctx context.Context) error {
	q.end()
	q.mu.Lock()
	q.closed = true
	if q.running > 0 {
		if q.quiet == nil {
			q.quiet = make(chan struct{})
		}
		quiet := q.quiet
		q.mu.Unlock()
		select {
		case <-quiet:
		case <-ctx.Done():
			return &skep.Error{Op: op, Kind: skep.NotReleased, Err: ctx.Err()}
		}
		q.mu.Lock()
	}
	defer q.mu.Unlock()
	if q.ended {
		return nil
	}
	q.ended = true
	return q.signal.close()
}

// held is NotReleased where something that was not drained left memory that a drive may write to until the store is
// closed, whose own close says whether it is over then.
func (q *queue) held() error {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, c := range q.over {
		if skep.KindOf(c.err) == skep.NotReleased {
			return c.err
		}
	}
	return nil
}

// endQueues ends those of a store that is closed. NotReleased: not all of it is over.
func (o *opened) endQueues(ctx context.Context) (err error) {
	queues.Range(func(id, x any) bool {
		if q := x.(*queue); q.of == o {
			err = errors.Join(err, q.close(ctx))
			queues.Delete(id)
		}
		return true
	})
	return err
}
