package device

import (
	"context"
	"fmt"
)

// InFlightError is returned by Run, ReadAt, WriteAt and Sync when their context
// ends first. The buffers stay lent to the device until Done is closed: the
// caller keeps them out of use, and may wait for Done to get them back. It wraps
// the context's error.
type InFlightError struct {
	Done <-chan struct{}
	Err  error
}

func (e *InFlightError) Error() string {
	return fmt.Sprintf("device: gave up waiting, buffers still lent: %v", e.Err)
}

func (e *InFlightError) Unwrap() error { return e.Err }

// Run submits ops and waits until all are done; it sets their Done. It returns
// the error of the first op, in the given order, that has one. When ctx ends
// first it returns an *InFlightError, and ops and buffers stay lent.
//
// Run must not be called from a Done: it waits for the goroutine that calls it.
func Run(ctx context.Context, d Device, ops ...*Op) error {
	if len(ops) == 0 {
		return nil
	}
	if err := ctx.Err(); err != nil {
		return err // nothing was lent
	}
	left := make(chan struct{}, len(ops)) // never blocks a Done
	for _, op := range ops {
		if op != nil {
			op.Done = func(*Op) { left <- struct{}{} }
		}
	}
	if err := d.Submit(ops); err != nil {
		return err
	}
	for n := range ops {
		select {
		case <-left:
		case <-ctx.Done():
			done := make(chan struct{})
			go func() { // ends with the last completion
				for range len(ops) - n {
					<-left
				}
				close(done)
			}()
			return &InFlightError{Done: done, Err: ctx.Err()}
		}
	}
	for _, op := range ops {
		if op.Err != nil {
			return op.Err
		}
	}
	return nil
}

// ReadAt fills buf (aligned, any multiple of Align long) from offset off. See
// Run for what happens to buf when ctx ends first.
func ReadAt(ctx context.Context, d Device, buf []byte, off int64) error {
	return Run(ctx, d, split(Read, buf, off)...)
}

// WriteAt writes buf (aligned, any multiple of Align long) at offset off. See
// Run for what happens to buf when ctx ends first.
func WriteAt(ctx context.Context, d Device, buf []byte, off int64) error {
	return Run(ctx, d, split(Write, buf, off)...)
}

// Sync submits a Flush and waits for it: every write that was done before is
// durable when it returns nil.
func Sync(ctx context.Context, d Device) error {
	return Run(ctx, d, &Op{Kind: Flush})
}

// split cuts one transfer into ops of at most MaxIO bytes. An empty buf yields
// one op, which Submit then refuses.
func split(kind Kind, buf []byte, off int64) []*Op {
	ops := make([]*Op, 0, 1+len(buf)/MaxIO)
	for {
		n := min(len(buf), MaxIO)
		ops = append(ops, &Op{Kind: kind, Offset: off, Bufs: [][]byte{buf[:n:n]}})
		buf, off = buf[n:], off+int64(n)
		if len(buf) == 0 {
			return ops
		}
	}
}
