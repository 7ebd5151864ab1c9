package segio

import (
	"context"
	"errors"
	"github.com/skepkv/skep/store/internal/locks"
	"sync/atomic"
	"time"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/device"
	"github.com/skepkv/skep/store/segment"
)

// Drive is a device that has segments.
type Drive struct {
	Dev          device.Device
	ID           segment.DeviceID
	SegmentBytes int64
}

// Offset is where on the device a segment begins.
func (d Drive) Offset(seg uint32) int64 { return layout.SegmentOffset(int(seg), d.SegmentBytes) }

// Batch collects the completions of several device operations.
type Batch struct {
	left  atomic.Int64
	done  chan struct{}
	mu    locks.Mutex[locks.Waiter]
	errs  []error
	last  func() // called once, when all have ended
	ended bool
	owed  []owed
}

// owed is how many operations of a batch a device has.
type owed struct {
	dev device.Device
	n   int
}

// NewBatch is one of n operations.
func NewBatch(n int) *Batch {
	b := &Batch{done: make(chan struct{})}
	b.left.Store(int64(n))
	if n == 0 {
		close(b.done)
	}
	return b
}

// Submit hands op to dev and counts its end, whichever way it comes. op.Done, where there is one,
// is called before that, unless dev refuses the operation.
func (b *Batch) Submit(dev device.Device, op *device.Op) {
	told := op.Done
	op.Done = func(o *device.Op) {
		if told != nil {
			told(o)
		}
		b.EndOf(dev, o.Err)
	}
	b.Owe(dev, 1)
	if err := dev.Submit([]*device.Op{op}); err != nil {
		b.EndOf(dev, err)
	}
}

// Owe notes that a device is about to be given n of the operations. EndOf says that it has one no more.
func (b *Batch) Owe(dev device.Device, n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for i := range b.owed {
		if b.owed[i].dev == dev {
			b.owed[i].n += n
			return
		}
	}
	b.owed = append(b.owed, owed{dev, n})
}

// EndOf counts the end of an operation that a device was given, or refused.
func (b *Batch) EndOf(dev device.Device, err error) {
	b.Owe(dev, -1)
	b.End(err)
}

// Owes says whether a device has operations that have not ended.
func (b *Batch) Owes(dev device.Device) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, o := range b.owed {
		if o.dev == dev {
			return o.n > 0
		}
	}
	return false
}

// OwedOnlyBy says whether some operations have not ended, and all those are with devices of which gone says so.
func (b *Batch) OwedOnlyBy(gone func(device.Device) bool) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := int64(0)
	for _, o := range b.owed {
		if o.n > 0 && !gone(o.dev) {
			return false
		}
		n += int64(o.n)
	}
	return n > 0 && n == b.left.Load()
}

// End counts the end of one operation.
func (b *Batch) End(err error) {
	if err != nil {
		b.mu.Lock()
		b.errs = append(b.errs, err)
		b.mu.Unlock()
	}
	if b.left.Add(-1) == 0 {
		b.mu.Lock()
		last := b.last
		b.ended = true
		b.mu.Unlock()
		if last != nil {
			last()
		}
		close(b.done)
	}
}

// After has f called once all operations have ended, also when nobody waits any more.
// It is called before Wait returns.
func (b *Batch) After(f func()) {
	b.mu.Lock()
	if !b.ended && b.left.Load() > 0 {
		b.last = f
		b.mu.Unlock()
		return
	}
	b.mu.Unlock()
	f()
}

// Wait returns when all have ended, or early with Deadline: then operations are
// still under way.
func (b *Batch) Wait(ctx context.Context, timeout time.Duration) error {
	return b.WaitOr(ctx, timeout, nil)
}

// WaitOr also returns, with DeviceFailed, when lost is closed: operations are still under
// way then, too.
func (b *Batch) WaitOr(ctx context.Context, timeout time.Duration, lost <-chan struct{}) error {
	select {
	case <-b.done:
		return b.err()
	default:
	}
	t := time.NewTimer(timeout)
	defer t.Stop()
	select {
	case <-b.done:
		return b.err()
	case <-lost:
		return &skep.Error{Op: "device I/O", Kind: skep.DeviceFailed, Field: "drive", Value: "dead"}
	case <-ctx.Done():
		return &skep.Error{Op: "device I/O", Kind: skep.Deadline, Err: ctx.Err()}
	case <-t.C:
		return &skep.Error{Op: "device I/O", Kind: skep.Deadline, Field: "time", Value: timeout}
	}
}

// err joins what failed; the batch must be done.
func (b *Batch) err() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.errs) == 0 {
		return nil
	}
	return &skep.Error{Op: "device I/O", Kind: skep.DeviceFailed, Err: errors.Join(b.errs...)}
}

// read reads buf from off of dev. After an error of kind Deadline the drive may still write to buf.
func read(ctx context.Context, dev device.Device, buf []byte, off int64, timeout time.Duration) error {
	b := NewBatch(1)
	b.Submit(dev, &device.Op{Kind: device.Read, Bufs: [][]byte{buf}, Offset: off})
	return b.Wait(ctx, timeout)
}
