//go:build cuda && cgo && linux

package cuda

/*
#include "driver.h"
*/
import "C"

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"gorgonia.org/cu"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/gpu"
)

// stream is a driver's stream. mu keeps the parts of one piece of work together.
type stream struct {
	device *device
	stream cu.Stream
	mu     sync.Mutex
	closed bool
}

var _ gpu.Batcher = (*stream)(nil)

// queue does what a call queues. What it cannot do is the device's sticky error.
func (s *stream) queue(f func() error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.device.usable() != nil {
		return
	}
	if err := f(); err != nil {
		_ = s.device.fail(err)
	}
}

// do makes a call of cu an error of the device.
func (s *stream) do(f func() error) error { return s.did(s.device.in(f)) }

func (s *stream) did(r result) error {
	if r == success {
		return nil
	}
	return &skep.Error{Op: "GPU", Kind: skep.DeviceFailed, Err: r}
}

// CopyIn implements gpu.Stream.
func (s *stream) CopyIn(to gpu.Place, from []byte) {
	s.queue(func() error {
		at, err := s.device.address(to, int64(len(from)))
		if err != nil || len(from) == 0 {
			return err
		}
		if s.device.direct(from) {
			return s.in(at, from)
		}
		return s.pieces(at, from, func(at uint64, b []byte, g *stage) error {
			copy(g.bytes, b)
			return s.in(at, g.bytes[:len(b)])
		})
	})
}

// CopyOut implements gpu.Stream.
func (s *stream) CopyOut(to []byte, from gpu.Place) {
	s.queue(func() error {
		at, err := s.device.address(from, int64(len(to)))
		if err != nil || len(to) == 0 {
			return err
		}
		if s.device.direct(to) {
			return s.out(to, at)
		}
		return s.pieces(at, to, func(at uint64, b []byte, g *stage) error {
			g.deliver(b)
			return s.out(g.bytes[:len(b)], at)
		})
	})
}

// in and out copy pinned memory.
func (s *stream) in(at uint64, b []byte) error {
	return s.do(func() error {
		return cu.MemcpyHtoDAsync(cu.DevicePtr(at), unsafe.Pointer(unsafe.SliceData(b)), int64(len(b)), s.stream)
	})
}

func (s *stream) out(b []byte, at uint64) error {
	return s.do(func() error {
		return cu.MemcpyDtoHAsync(unsafe.Pointer(unsafe.SliceData(b)), cu.DevicePtr(at), int64(len(b)), s.stream)
	})
}

// pieces copies memory that is not pinned through stages.
func (s *stream) pieces(at uint64, b []byte, one func(at uint64, b []byte, g *stage) error) error {
	for len(b) > 0 {
		n := min(len(b), maxStage)
		g, err := s.device.stages.take(s.device, n)
		if err != nil {
			return err
		}
		if err := one(at, b[:n], g); err != nil {
			return err
		}
		if err := s.did(result(C.skep_host_func(s.device.c(), raw(s.stream), g.c))); err != nil {
			return err
		}
		at, b = at+uint64(n), b[n:]
	}
	return nil
}

// Copy implements gpu.Stream.
func (s *stream) Copy(to, from gpu.Place, n int64) {
	s.CopyAll([]gpu.Transfer{{To: to, From: from, N: n}})
}

// CopyAll implements gpu.Batcher.
func (s *stream) CopyAll(batch []gpu.Transfer) {
	s.queue(func() error {
		var to, from, n []uint64
		for _, t := range batch {
			dst, err := s.device.address(t.To, t.N)
			if err != nil {
				return err
			}
			src, err := s.device.address(t.From, t.N)
			if err != nil {
				return err
			}
			if t.N > 0 {
				to, from, n = append(to, dst), append(from, src), append(n, uint64(t.N))
			}
		}
		switch len(to) {
		case 0:
			return nil
		case 1:
			return s.do(func() error {
				return cu.MemcpyDtoDAsync(cu.DevicePtr(to[0]), cu.DevicePtr(from[0]), int64(n[0]), s.stream)
			})
		}
		return s.did(result(C.skep_copy_all(s.device.c(), raw(s.stream), (*C.uint64_t)(&to[0]), (*C.uint64_t)(&from[0]),
			(*C.size_t)(unsafe.Pointer(&n[0])), C.size_t(len(to)))))
	})
}

// Wait implements gpu.Stream.
func (s *stream) Wait(c gpu.Counter, v uint64) {
	s.queue(func() error {
		at, err := counterOf(c)
		if err != nil {
			return err
		}
		return s.did(result(C.skep_wait64(s.device.c(), raw(s.stream), C.uint64_t(at), C.uint64_t(v))))
	})
}

// Signal implements gpu.Stream.
func (s *stream) Signal(c gpu.Counter, v uint64) {
	s.queue(func() error {
		at, err := counterOf(c)
		if err != nil {
			return err
		}
		return s.did(result(C.skep_write64(s.device.c(), raw(s.stream), C.uint64_t(at), C.uint64_t(v))))
	})
}

// Compute implements gpu.Stream: one thread of the GPU spins.
func (s *stream) Compute(d time.Duration, _ func()) {
	s.queue(func() error {
		ns := uint64(max(d, 0))
		return s.do(func() error {
			return s.device.spin.Launch(1, 1, 1, 1, 1, 1, 0, s.stream, []unsafe.Pointer{unsafe.Pointer(&ns)})
		})
	})
}

// Sync implements gpu.Stream.
func (s *stream) Sync(ctx context.Context) error {
	d := s.device
	if err := d.usable(); err != nil {
		return err
	}
	var done cu.Event
	r := d.in(func() (err error) {
		if done, err = cu.MakeEvent(cu.DisableTiming); err == nil {
			err = done.Record(s.stream)
		}
		return err
	})
	if done != (cu.Event{}) {
		defer d.in(func() error { return cu.DestroyEvent(&done) })
	}
	if r != success {
		return d.fail(s.did(r))
	}
	return d.until(ctx, func() (bool, result) {
		r := d.in(done.Query)
		return r == success, r
	})
}

// until asks until ok says yes, an error lasts, or ctx ends: often at first, then less.
func (d *device) until(ctx context.Context, ok func() (bool, result)) error {
	for i := 0; ; i++ {
		if err := d.usable(); err != nil {
			return err
		}
		done, r := ok()
		if done {
			return nil
		}
		if r != success && r != notReady {
			return d.fail(&skep.Error{Op: "GPU", Kind: skep.DeviceFailed, Err: r})
		}
		if ctx.Err() != nil {
			return &skep.Error{Op: "wait for a GPU", Kind: skep.Deadline, Err: ctx.Err()}
		}
		if i < 200 {
			runtime.Gosched()
			continue
		}
		select {
		case <-ctx.Done():
		case <-time.After(20 * time.Microsecond):
		}
	}
}

// Close implements gpu.Stream.
func (s *stream) Close() error {
	d := s.device
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	if d.usable() == nil {
		if r := result(C.skep_query(d.c(), raw(s.stream))); r == notReady {
			return &skep.Error{Op: "close stream", Kind: skep.NotReleased, Field: "work queued", Value: "some"}
		}
	}
	s.closed = true
	d.mu.Lock()
	_, mine := d.streams[s]
	delete(d.streams, s)
	d.mu.Unlock()
	if !mine { // the device is closed, and the stream with it
		return nil
	}
	r := d.in(s.stream.Destroy)
	if d.usable() != nil {
		return nil
	}
	return d.check("close stream", r)
}

// counter is 8 bytes of pinned memory.
type counter struct {
	device *device
	at     uint64
	closed atomic.Bool
}

const countersAtOnce = 512

// NewCounter implements gpu.Device.
func (d *device) NewCounter() (gpu.Counter, error) {
	if err := d.usable(); err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.slots) == 0 {
		page, r := d.allocHost(8 * countersAtOnce)
		if r != success {
			return nil, failure("new counter", r)
		}
		d.pages = append(d.pages, page)
		for i := range countersAtOnce {
			d.slots = append(d.slots, uint64(addressOf(page))+8*uint64(i))
		}
	}
	last := len(d.slots) - 1
	c := &counter{device: d, at: d.slots[last]}
	d.slots = d.slots[:last]
	atomic.StoreUint64(c.word(), 0)
	return c, nil
}

// word is the number itself, in memory of the driver's, which Go does not move or free.
func (c *counter) word() *uint64 { return *(**uint64)(unsafe.Pointer(&c.at)) }

func counterOf(c gpu.Counter) (uint64, error) {
	k, _ := c.(*counter)
	if k == nil || k.closed.Load() {
		return 0, &skep.Error{Op: "GPU", Kind: skep.DeviceFailed, Field: "counter", Value: fmt.Sprintf("%T", c), Limit: "one of a CUDA device, not closed"}
	}
	return k.at, nil
}

// Value implements gpu.Counter.
func (c *counter) Value() uint64 {
	if c.closed.Load() {
		return 0
	}
	return atomic.LoadUint64(c.word())
}

// Await implements gpu.Counter.
func (c *counter) Await(ctx context.Context, v uint64) error {
	return c.device.until(ctx, func() (bool, result) {
		if c.Value() >= v {
			return true, success
		}
		return false, c.device.pulse()
	})
}

// pulse asks the driver for an error that lasts.
func (d *device) pulse() result {
	r := result(C.skep_query(d.c(), nil))
	if r.lasting() {
		return r
	}
	return success
}

// Close implements gpu.Counter.
func (c *counter) Close() error {
	if c.closed.Swap(true) {
		return nil
	}
	d := c.device
	d.mu.Lock()
	defer d.mu.Unlock()
	d.slots = append(d.slots, c.at)
	return nil
}
