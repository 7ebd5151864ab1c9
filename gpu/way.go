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
	over  bool     // nothing more is put on its way

	hands sync.WaitGroup // who has a place, or bytes, that no stream was told of yet
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
	at      Place
	counter Counter // for queued, or unused
	free    func()
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
func (w *way) room(ctx context.Context) (_ room, err error) {
	c, err := w.device.NewCounter() // before a stream is told of anything
	if err != nil {
		return room{}, err
	}
	defer func() {
		if err != nil {
			_ = c.Close()
		}
	}()
	for {
		w.collect()
		w.mu.Lock()
		block, ok := 0, false
		if err := w.openLocked(); err != nil {
			w.mu.Unlock()
			return room{}, err
		}
		if block, ok = w.arena.Alloc(elastic.Lender); ok {
			w.hands.Add(1)
		}
		w.mu.Unlock()
		if ok {
			return room{Place{w.memory, w.arena.Offset(elastic.Lender, block)}, c, func() {
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

// reserve waits until so many bytes more of host memory may be on their way, and counts them. The counter is for queued,
// unused or lost.
func (w *way) reserve(ctx context.Context, bytes int64) (_ Counter, err error) {
	c, err := w.device.NewCounter() // before a stream is told of anything
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			_ = c.Close()
		}
	}()
	for {
		w.collect()
		w.mu.Lock()
		if err := w.openLocked(); err != nil {
			w.mu.Unlock()
			return nil, err
		}
		enough := w.bytes == 0 || w.bytes+bytes <= maxOnWay
		if enough {
			w.bytes += bytes
			w.hands.Add(1)
		}
		w.mu.Unlock()
		if enough {
			return c, nil
		}
		if err := w.oldest(ctx, func(i *onWay) bool { return i.bytes > 0 }); err != nil {
			return nil, err
		}
	}
}

func (w *way) openLocked() error {
	if w.over {
		return &skep.Error{Op: "restore to GPU memory", Kind: skep.Closed}
	}
	return nil
}

// unused gives back a place, or so many bytes reserved, of which no stream was told.
func (w *way) unused(c Counter, bytes int64, free func()) {
	_ = c.Close()
	free()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.bytes -= bytes
	w.hands.Done()
}

// came gives back so many bytes of which streams were told as 0 bytes: others used them, too.
func (w *way) came(bytes int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.bytes -= bytes
}

// lost leaves what was reserved as it is: something may use it yet.
func (w *way) lost(c Counter) {
	_ = c.Close()
	w.hands.Done()
}

// queued notes what a stream was just told to copy from, of so many reserved bytes: free gives it back
// when it is past that. DeviceFailed where it does nothing more.
func (w *way) queued(on Stream, c Counter, bytes int64, free func()) error {
	on.Signal(c, 1)
	if err := c.Await(ended, 1); errors.Is(err, skep.DeviceFailed) {
		w.unused(c, bytes, free)
		return err
	}
	w.collect()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.items = append(w.items, &onWay{c, 1, bytes, free})
	w.hands.Done()
	return nil
}

// ended is for who looks and does not wait.
var ended = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()

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

// end lets nothing more on its way, and waits for what is, as long as ctx goes. What a device that failed was told to
// copy it does not copy any more. False: something may still be read.
func (w *way) end(ctx context.Context) (idle bool) {
	w.mu.Lock()
	w.over = true
	w.mu.Unlock()
	told := make(chan struct{})
	go func() {
		w.hands.Wait()
		close(told)
	}()
	select {
	case <-told:
	case <-ctx.Done():
		return false
	}
	w.mu.Lock()
	items := w.items
	w.items = nil
	w.mu.Unlock()
	var left []*onWay
	for _, i := range items {
		if err := i.counter.Await(ctx, 1); err != nil && !errors.Is(err, skep.DeviceFailed) {
			left = append(left, i)
			continue
		}
		i.free()
		w.let(i)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.items = left
	return len(left) == 0
}

// free gives its memory back.
func (w *way) free() error {
	m := w.memory
	if w.memory = nil; m == nil {
		return nil
	}
	return m.Free()
}
