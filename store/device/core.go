package device

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"
)

// gate counts what is in flight and lets Close wait for it. One word holds both,
// so that an op is either counted before Close looks or refused.
type gate struct {
	state   atomic.Int64 // 2·(in flight) + 1 if closed
	once    sync.Once
	drained chan struct{} // closed when closed and nothing is in flight
}

func (g *gate) enter(n int) error {
	if g.state.Add(2*int64(n))&1 != 0 {
		g.exit(n)
		return ErrClosed
	}
	return nil
}

func (g *gate) exit(n int) {
	if g.state.Add(-2*int64(n)) == 1 {
		g.once.Do(func() { close(g.drained) })
	}
}

func (g *gate) shut() {
	if g.state.Or(1)|1 == 1 {
		g.once.Do(func() { close(g.drained) })
	}
}

func (g *gate) count() int { return int(g.state.Load() >> 1) }

// core is what every device has in common: who may submit, what was counted, and
// how it ends.
type core struct {
	gate
	counters
	info         Info // Size is kept in size
	size         atomic.Int64
	closeTimeout time.Duration

	closeOnce sync.Once
	closeErr  error
}

const defaultCloseTimeout = 5 * time.Second

func (c *core) init(info Info, size int64, closeTimeout time.Duration) {
	c.drained = make(chan struct{})
	c.info = info
	c.size.Store(size)
	if closeTimeout <= 0 {
		closeTimeout = defaultCloseTimeout
	}
	c.closeTimeout = closeTimeout
}

func (c *core) Info() Info {
	i := c.info
	i.Size = c.size.Load()
	return i
}

func (c *core) Size() int64  { return c.size.Load() }
func (c *core) Stats() Stats { return c.counters.snapshot() }

// begin takes all ops or none: after nil, each will see exactly one finish.
func (c *core) begin(ops []*Op) error {
	if err := c.enter(len(ops)); err != nil {
		return err
	}
	if err := c.claim(ops); err != nil {
		c.exit(len(ops))
		return err
	}
	t := now()
	for _, op := range ops {
		op.Start, op.End, op.Err, op.next = t, 0, nil, nil
		c.began(op.Kind, t)
	}
	c.submitted(len(ops))
	return nil
}

// abandon takes back a begin whose ops reached nobody. The caller of Submit gets
// the error instead of Done.
func (c *core) abandon(ops []*Op) {
	for _, op := range ops {
		c.ended(op.Kind, op.Start)
		op.busy.Store(false)
	}
	c.counters.inFlight.Add(-int64(len(ops)))
	c.exit(len(ops))
}

// finish ends one op. The op is the caller's again when Done is called, so it is
// not touched afterwards.
func (c *core) finish(op *Op, err error) {
	op.End = now()
	op.Err = c.describe(op, err)
	// Memory that the kernel cannot get at is the caller's fault, and no sign of the drive's health.
	failed := err != nil && !errors.Is(err, syscall.EFAULT)
	if e := op.Err; failed {
		c.lastError.Store(&e)
	}
	c.ended(op.Kind, op.End)
	moved := op.total
	if err != nil {
		moved = 0
	}
	c.counters.done(op.Kind, moved, op.End-op.Start, failed)
	op.busy.Store(false)
	op.Done(op)
	c.exit(1)
}

func (c *core) describe(op *Op, err error) error {
	var known *IOError
	if err == nil || errors.Is(err, ErrClosed) || errors.As(err, &known) {
		return err
	}
	return &IOError{Path: c.info.Path, Kind: op.Kind, Offset: op.Offset, Len: op.total, Err: err}
}

// claim validates ops and marks them busy, all or none.
func (c *core) claim(ops []*Op) error {
	size := c.size.Load()
	for i, op := range ops {
		err := validate(op, size, c.info.ReadOnly)
		if err == nil && !op.busy.CompareAndSwap(false, true) {
			err = &ArgError{Field: "Op", Value: "already submitted", Limit: "one submit until Done"}
		}
		if err != nil {
			for _, taken := range ops[:i] {
				taken.busy.Store(false)
			}
			var arg *ArgError
			if errors.As(err, &arg) {
				arg.Op = i
			}
			return err
		}
		op.total = op.Len()
	}
	return nil
}

// validate checks one op against a device of size bytes.
func validate(op *Op, size int64, readOnly bool) error {
	bad := func(field string, value, limit any) error {
		return &ArgError{Op: -1, Field: field, Value: value, Limit: limit}
	}
	switch {
	case op == nil:
		return bad("Op", nil, "not nil")
	case op.Kind >= numKinds:
		return bad("Kind", uint8(op.Kind), "Read, Write or Flush")
	case op.Done == nil:
		return bad("Done", nil, "a function")
	case readOnly && op.Kind != Read:
		return fmt.Errorf("device: %s on a device opened read-only: %w", op.Kind, syscall.EROFS)
	case op.Kind == Flush && (len(op.Bufs) != 0 || op.Offset != 0):
		return bad("Bufs", len(op.Bufs), "no buffers and offset 0 in a flush")
	case op.Kind == Flush:
		return nil
	case op.Offset < 0 || !aligned(op.Offset):
		return bad("Offset", op.Offset, fmt.Sprintf("a multiple of %d, not negative", Align))
	case len(op.Bufs) == 0 || len(op.Bufs) > MaxBufs:
		return bad("len(Bufs)", len(op.Bufs), fmt.Sprintf("1 to %d", MaxBufs))
	}
	total := 0
	for i, b := range op.Bufs {
		if len(b) == 0 || len(b)%Align != 0 {
			return bad(fmt.Sprintf("len(Bufs[%d])", i), len(b), fmt.Sprintf("a positive multiple of %d", Align))
		}
		if a := uintptr(unsafe.Pointer(unsafe.SliceData(b))) % Align; a != 0 {
			return bad(fmt.Sprintf("address of Bufs[%d]", i), fmt.Sprintf("%d past a multiple of %d", a, Align), fmt.Sprintf("a multiple of %d", Align))
		}
		if total += len(b); total > MaxIO {
			return bad("bytes in Bufs", total, fmt.Sprintf("at most %d", MaxIO))
		}
	}
	if op.Offset > size-int64(total) {
		return bad("Offset", op.Offset, fmt.Sprintf("at most %d for %d bytes on a device of %d", size-int64(total), total, size))
	}
	return nil
}

// checkGrow validates the argument of Grow.
func (c *core) checkGrow(size int64) error {
	if cur := c.size.Load(); size < cur || !aligned(size) {
		return &ArgError{Op: -1, Field: "size", Value: size, Limit: fmt.Sprintf("a multiple of %d, at least %d", Align, cur)}
	}
	return nil
}

// shutdown is Close. refuse is called when the timeout has passed, to end the ops
// the drive never saw; release frees what the device holds, once, after the last
// op is done, however late that is. leaked is kept reachable until then.
func (c *core) shutdown(refuse func(), release func() error, leaked any) error {
	c.closeOnce.Do(func() {
		c.shut()
		timer := time.NewTimer(c.closeTimeout)
		defer timer.Stop()
		select {
		case <-c.drained:
			c.closeErr = release()
			return
		case <-timer.C:
		}
		if refuse != nil {
			refuse()
		}
		select {
		case <-c.drained:
			c.closeErr = release()
			return
		default:
		}
		c.closeErr = &BusyError{Path: c.info.Path, InFlight: c.count(), Waited: c.closeTimeout}
		// The one goroutine that may outlive Close: it holds everything the kernel
		// may still write to, and ends with the last completion.
		go func() {
			<-c.drained
			_ = release() // nobody is left to tell
			hold(leaked)
		}()
	})
	return c.closeErr
}

// hold keeps v reachable up to the call.
//
//go:noinline
func hold(any) {}

// opList is a list of waiting ops, first in first out, linked through the ops so
// that waiting costs no memory.
type opList struct{ head, tail *Op }

func (l *opList) push(op *Op) {
	op.next = nil
	if l.tail == nil {
		l.head = op
	} else {
		l.tail.next = op
	}
	l.tail = op
}

func (l *opList) pop() *Op {
	op := l.head
	if op == nil {
		return nil
	}
	l.head, op.next = op.next, nil
	if l.head == nil {
		l.tail = nil
	}
	return op
}
