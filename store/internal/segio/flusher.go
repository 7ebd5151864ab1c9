package segio

import (
	"github.com/skepkv/skep/store/internal/locks"
	"sync/atomic"

	"github.com/skepkv/skep/store/device"
)

// Flusher lets any number of callers wait for one flush of a drive. A caller joins
// the round that starts after it asked, since a flush under way may have begun
// before the caller's write was done.
type Flusher struct {
	dev     device.Device
	mu      locks.Mutex[locks.Flusher]
	running *Flush
	next    *Flush

	// A flush that failed may have dropped what it was to make durable, and the next one says nothing
	// of that. So the drive is fenced, and nothing that was written before is confirmed by a later one.
	failures atomic.Uint64
	failed   func(error)
}

// Flush is one flush of a drive, which several callers may wait for.
type Flush struct {
	done chan struct{}
	err  error
	op   device.Op
}

// Done is closed when the flush has ended.
func (r *Flush) Done() <-chan struct{} { return r.done }

// Err is what it ended with. REQUIRES: Done is closed.
func (r *Flush) Err() error { return r.err }

// Use makes f the only way to flush dev: it gives dev for all other operations. A failed flush is
// reported once: were there two ways to flush a device, one could take the error of what the other
// is to confirm.
func (f *Flusher) Use(dev device.Device) device.Device {
	f.dev = dev
	return unflushed{dev}
}

// OnFailure has told called with the error of each flush that fails, before the next begins. It is
// called before the first flush.
func (f *Flusher) OnFailure(told func(error)) { f.failed = told }

// Failures is how many flushes have failed.
func (f *Flusher) Failures() uint64 { return f.failures.Load() }

// unflushed is a device that only its flusher flushes.
type unflushed struct{ device.Device }

func (u unflushed) Unwrap() device.Device { return u.Device }

func (u unflushed) Submit(ops []*device.Op) error {
	for i, op := range ops {
		if op != nil && op.Kind == device.Flush {
			return &device.ArgError{Op: i, Field: "Kind", Value: op.Kind, Limit: "a read or a write: its flusher flushes a drive"}
		}
	}
	return u.Device.Submit(ops)
}

// Start returns a flush that covers every write completed before the call.
func (f *Flusher) Start() *Flush {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.next == nil {
		f.next = &Flush{done: make(chan struct{})}
	}
	r := f.next
	if f.running == nil {
		f.launchLocked()
	}
	return r
}

// launchLocked makes next the running round. REQUIRES: f.mu.
func (f *Flusher) launchLocked() {
	r := f.next
	f.running, f.next = r, nil
	r.op = device.Op{Kind: device.Flush, Done: func(o *device.Op) { f.end(o.Err) }}
	if err := f.dev.Submit([]*device.Op{&r.op}); err != nil {
		f.finishLocked(err)
	}
}

func (f *Flusher) end(err error) {
	if err != nil { // before the next begins
		f.failures.Add(1)
		if f.failed != nil {
			f.failed(err)
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.finishLocked(err)
}

// finishLocked ends the running round and starts the next. REQUIRES: f.mu.
func (f *Flusher) finishLocked(err error) {
	r := f.running
	r.err = err
	close(r.done)
	f.running = nil
	if f.next != nil {
		f.launchLocked()
	}
}

// Queued says whether a flush waits for the one under way to end.
func (f *Flusher) Queued() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.next != nil
}
