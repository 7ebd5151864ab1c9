//go:build cgo

package main

/*
#cgo LDFLAGS: -ldl
#include "driver.h"
*/
import "C"

import (
	"context"
	"fmt"
	"sync"
	"time"
	"unsafe"

	"github.com/skepkv/skep"
)

// landings are pinned host memory that restores into an engine's GPU land in, and the GPU copies
// from: drives read straight into it. One is lent again when the engine's stream is past the copies.
type landings struct {
	mu    sync.Mutex
	free  []*landing
	busy  []*landing
	bytes int64 // of all
	gone  int64 // of what nobody will say of when it could be lent again
}

// landing is one piece of it.
type landing struct {
	context unsafe.Pointer
	bytes   []byte
	event   unsafe.Pointer // past which nothing reads it; there from the first, so that making it cannot fail too late
	away    bool           // hung, and not back
	lost    C.int          // the driver's result once the context is lost, or no event says when: it is never given back
}

const (
	// landingBytes is how large a piece is, where a block is not larger: longer restores take
	// several, one after the other.
	landingBytes = 32 << 20
	// maxLanding is how much there may be, which is on its way to GPUs or waits to be lent again.
	maxLanding  = 256 << 20
	notReady    = 600
	outOfMemory = 2
)

// cudaError is a driver's result.
func cudaError(what string, r C.int) error {
	kind := skep.DeviceFailed
	switch r {
	case 0:
		return nil
	case -1:
		return &skep.Error{Op: op, Kind: skep.Unsupported, Field: "where", Value: "CUDA", Limit: "a process that has loaded libcuda.so.1, of CUDA 11 or newer"}
	case outOfMemory:
		kind = skep.NoMemory
	case 1, 201, 400, 709: // a value, a context, a handle that is none
		kind = skep.Invalid
	}
	return &skep.Error{Op: op, Kind: kind, Field: what, Err: fmt.Errorf("CUDA error %d", int(r))}
}

// contextOf is the CUDA context of an engine's stream; of a default stream the calling thread's.
func contextOf(stream uint64) (unsafe.Pointer, error) {
	var c unsafe.Pointer
	if err := cudaError("stream", C.skep_cuda_context(C.uint64_t(stream), &c)); err != nil {
		return nil, err
	}
	if c == nil {
		return nil, skep.Invalidf(op, "stream", stream, "one of a CUDA context, or a thread with a current one")
	}
	return c, nil
}

// take gives n bytes of pinned memory in a context. Where as much as may be is on its way to GPUs
// it waits for streams to get past some of it.
func (k *landings) take(ctx context.Context, c unsafe.Pointer, n int64) (*landing, error) {
	for {
		l, wait, err := k.try(c, n)
		if l != nil || err != nil {
			return l, err
		}
		select {
		case <-ctx.Done():
			return nil, &skep.Error{Op: op, Kind: skep.Deadline, Field: "pinned memory in bytes", Value: wait, Limit: int64(maxLanding), Err: ctx.Err()}
		case <-time.After(100 * time.Microsecond):
		}
	}
}

func (k *landings) try(c unsafe.Pointer, n int64) (l *landing, wait int64, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := k.collect(c); err != nil {
		return nil, 0, err
	}
	for i, l := range k.free {
		if l.context == c && int64(len(l.bytes)) >= n {
			k.free = append(k.free[:i], k.free[i+1:]...)
			return l, 0, nil
		}
	}
	for len(k.free) > 0 && k.bytes+n > maxLanding {
		k.drop(k.free[0])
		k.free = k.free[1:]
	}
	if k.bytes > 0 && k.bytes+n > maxLanding {
		return nil, k.bytes, nil
	}
	if k.gone >= maxLanding {
		return nil, 0, &skep.Error{Op: op, Kind: skep.NoMemory, Field: "pinned memory that is gone for good", Value: k.gone,
			Limit: int64(maxLanding)}
	}
	var p, e unsafe.Pointer
	if err := cudaError("pinned memory", C.skep_cuda_pinned(c, C.size_t(n), &p, &e)); err != nil {
		return nil, 0, err
	}
	k.bytes += n
	return &landing{context: c, bytes: unsafe.Slice((*byte)(p), n), event: e}, 0, nil
}

// collect frees what streams are past. A context that is lost keeps what it has in use, and is an
// error to who asks for it, nobody else; nil asks for all. What is lost with it is no longer counted among
// what may be on its way: others would wait for it until their deadline.
func (k *landings) collect(c unsafe.Pointer) error {
	rest := k.busy[:0:0]
	var err error
	for _, l := range k.busy {
		r := l.lost
		if r == 0 {
			r = C.skep_cuda_passed(l.context, l.event)
		}
		switch r {
		case 0:
			k.free = append(k.free, l)
			continue
		case notReady:
		default:
			if l.lost == 0 {
				l.lost, k.bytes = r, k.bytes-int64(len(l.bytes))
			}
			if c == nil || c == l.context {
				err = cudaError("stream", r)
			}
		}
		rest = append(rest, l)
	}
	k.busy = rest
	return err
}

// queued says that a stream has been told of all copies from l.
func (k *landings) queued(l *landing, stream uint64) error {
	r := C.skep_cuda_mark(l.context, C.uint64_t(stream), l.event)
	if r == 0 {
		return nil
	}
	return k.unmarked(l, r, C.skep_cuda_passed(l.context, l.event))
}

// unmarked is for l where a mark failed with r: it stays pinned and is never lent again, for nobody knows when the
// stream is past the copies. In a context that lives it counts as gone for good, whatever r is: marks can fail again
// and again. A context that failed, which state says, gives no more.
func (k *landings) unmarked(l *landing, r, state C.int) error {
	l.lost = r
	k.forget(l, state == 0 || state == notReady)
	return cudaError("stream", r)
}

// back lends l again when the stream is past the copies. Of one whose queued failed nobody knows when that is: never.
// REQUIRES: nothing writes to it any more.
func (k *landings) back(l *landing) {
	if l.lost != 0 {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if l.away {
		k.countAwayLocked(l, -1)
	}
	k.busy = append(k.busy, l)
}

// hung is for what a session that does not close may write to: until it is back it counts among what is gone for good.
// Else others would wait for it, who may have as much again.
func (k *landings) hung(l *landing) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.countAwayLocked(l, 1)
}

func (k *landings) countAwayLocked(l *landing, sign int64) {
	n := sign * int64(len(l.bytes))
	k.bytes, k.gone, l.away = k.bytes-n, k.gone+n, sign > 0
}

// lose is for what is never lent again: drives may write to it for good.
func (k *landings) lose(l *landing) { k.forget(l, true) }

// forget counts l no longer among what may be on its way: others would wait for it until their deadline. Of what is
// gone for good there may be maxLanding, too.
func (k *landings) forget(l *landing, gone bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	n := int64(len(l.bytes))
	k.bytes, l.bytes = k.bytes-n, nil
	if gone {
		k.gone += n
	}
}

func (k *landings) drop(l *landing) {
	k.bytes -= int64(len(l.bytes))
	C.skep_cuda_unpinned(l.context, unsafe.Pointer(unsafe.SliceData(l.bytes)), l.event)
}

// close gives all of it back, once streams are past it. NotReleased when one is not in time.
func (k *landings) close() error {
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(100 * time.Microsecond) {
		k.mu.Lock()
		err := k.collect(nil)
		for _, l := range k.free {
			k.drop(l)
		}
		k.free = nil
		left := len(k.busy)
		k.mu.Unlock()
		if err != nil || left == 0 {
			return err
		}
		if time.Now().After(end) {
			return &skep.Error{Op: op, Kind: skep.NotReleased, Field: "pinned memory", Value: left, Limit: "streams that go on"}
		}
	}
}

// copyIn queues the copy of b, of pinned memory, to a device address.
func (l *landing) copyIn(stream, to uint64, b []byte) error {
	return cudaError("copy", C.skep_cuda_copy(l.context, C.uint64_t(stream), C.uint64_t(to), unsafe.Pointer(unsafe.SliceData(b)), C.size_t(len(b))))
}
