package gpu

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout/elastic"
)

// way is what engines' streams have been told to copy from and are not past yet.
type way struct {
	device Device
	memory Memory         // of its own, for blocks
	arena  *elastic.Arena // nil: none

	mu    sync.Mutex
	items []*onWay // oldest first
	bytes int64    // of host memory, on its way or about to be
}

// onWay is given back when its counter is at 1.
type onWay struct {
	counter Counter
	holds   int // the list's, and of who waits: the last one closes the counter
	bytes   int64
	free    func()
}

// room is a block's place in own memory.
type room struct {
	at   Place
	free func()
}

func (w *way) open(d Device, blockBytes, bytes int64) (err error) {
	if w.device = d; bytes < blockBytes {
		return nil
	}
	if w.memory, err = d.Alloc(bytes / blockBytes * blockBytes); err != nil {
		return err
	}
	w.arena, err = ownArena(blockBytes, int(bytes/blockBytes))
	return err
}

// room takes a block's place, and waits for a stream to get past one where there is none.
func (w *way) room(ctx context.Context) (room, error) {
	for {
		w.mu.Lock()
		block, ok := w.arena.Alloc(elastic.Lender)
		w.mu.Unlock()
		if ok {
			return room{Place{w.memory, w.arena.Offset(elastic.Lender, block)}, func() {
				w.mu.Lock()
				defer w.mu.Unlock()
				_ = w.arena.Free(elastic.Lender, block) // in use: it is freed once
			}}, nil
		}
		if err := w.oldest(ctx, func(i *onWay) bool { return i.bytes == 0 }); err != nil {
			return room{}, err
		}
	}
}

// reserve waits until so many bytes more of host memory may be on their way, and counts them.
func (w *way) reserve(ctx context.Context, bytes int64) error {
	for {
		w.mu.Lock()
		enough := w.bytes == 0 || w.bytes+bytes <= maxOnWay
		if enough {
			w.bytes += bytes
		}
		w.mu.Unlock()
		if enough {
			return nil
		}
		if err := w.oldest(ctx, func(i *onWay) bool { return i.bytes > 0 }); err != nil {
			return err
		}
	}
}

// unreserve says that they are not on their way after all.
func (w *way) unreserve(bytes int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.bytes -= bytes
}

// queued notes what a stream was just told to copy from, of so many reserved bytes: free gives it back
// when it is past that.
func (w *way) queued(on Stream, bytes int64, free func()) error {
	c, err := w.device.NewCounter()
	if errors.Is(err, skep.DeviceFailed) { // it does nothing more
		free()
		w.unreserve(bytes)
	}
	if err != nil { // else nobody knows when it is done: it stays
		return err
	}
	on.Signal(c, 1)
	w.collect()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.items = append(w.items, &onWay{c, 1, bytes, free})
	return nil
}

// collect gives back what streams are past.
func (w *way) collect() {
	var past []*onWay
	w.mu.Lock()
	w.items = slices.DeleteFunc(w.items, func(i *onWay) bool {
		done := i.counter.Value() >= 1
		if done {
			past = append(past, i)
			w.bytes -= i.bytes
		}
		return done
	})
	w.mu.Unlock()
	for _, i := range past {
		i.free()
		w.let(i)
	}
}

// let gives up a hold on an item.
func (w *way) let(i *onWay) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if i.holds--; i.holds == 0 {
		_ = i.counter.Close()
	}
}

// oldest waits until a stream is past the oldest of some. Where none of them is on its way, others have
// them in hand.
func (w *way) oldest(ctx context.Context, of func(*onWay) bool) error {
	w.mu.Lock()
	n := slices.IndexFunc(w.items, of)
	var i *onWay
	if n >= 0 {
		i = w.items[n]
		i.holds++
	}
	w.mu.Unlock()
	if i == nil {
		select {
		case <-ctx.Done():
			return &skep.Error{Op: "restore to GPU memory", Kind: skep.Deadline, Field: "memory on its way", Value: "all", Err: ctx.Err()}
		case <-time.After(50 * time.Microsecond):
			return nil
		}
	}
	err := i.counter.Await(ctx, 1)
	w.let(i)
	w.collect()
	return err
}

// close waits for all that is on its way, as long as ctx goes. What a device that failed was told to
// copy it does not copy any more. False: something may still be read, and stays.
func (w *way) close(ctx context.Context) (idle bool, err error) {
	w.mu.Lock()
	items := w.items
	w.items = nil
	w.mu.Unlock()
	idle = true
	for _, i := range items {
		if err := i.counter.Await(ctx, 1); err != nil && !errors.Is(err, skep.DeviceFailed) {
			idle = false
			continue
		}
		i.free()
		w.let(i)
	}
	if idle && w.memory != nil {
		err = w.memory.Free()
	}
	return idle, err
}
