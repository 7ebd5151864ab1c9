//go:build cuda && cgo && linux

package cuda

/*
#include "driver.h"
#include <stdlib.h>
*/
import "C"

import (
	"math/bits"
	"runtime"
	"sync"
	"time"
	"unsafe"

	"github.com/skepkv/skep"
)

const (
	minStage  = 64 << 10
	maxStage  = 4 << 20
	stageWait = 10 * time.Second
)

// stage is pinned memory for one piece of a copy of memory that is not pinned.
type stage struct {
	bytes []byte
	c     *C.skep_stage
	pin   runtime.Pinner // of where the piece goes
}

// deliver has the stream's host function copy the stage to b.
func (g *stage) deliver(b []byte) {
	p := unsafe.SliceData(b)
	g.pin.Pin(p)
	g.c.to, g.c.from, g.c.n = unsafe.Pointer(p), unsafe.Pointer(unsafe.SliceData(g.bytes)), C.size_t(len(b))
}

// stages are those of a device: free ones by size (powers of two), and those in use, which
// the stream marks when it is done with them.
type stages struct {
	mu    sync.Mutex
	free  [8][]*stage
	busy  []*stage
	bytes int64
}

func classOf(n int) int { return max(0, bits.Len(uint(n-1))-bits.Len(uint(minStage-1))) }

// take gives a stage for n bytes, at most maxStage. Where all of the limit is in use it waits
// for streams to be done; NoMemory when none is for long.
func (t *stages) take(d *device, n int) (*stage, error) {
	for end := time.Now().Add(stageWait); ; time.Sleep(50 * time.Microsecond) {
		g, err := t.try(d, classOf(n))
		if g != nil || err != nil {
			return g, err
		}
		if r := d.pulse(); r != success {
			return nil, failure("GPU", r)
		}
		if time.Now().After(end) {
			return nil, &skep.Error{Op: "GPU", Kind: skep.NoMemory, Field: "staging bytes", Value: n, Limit: d.limit}
		}
	}
}

// try is take without the wait: nil when nothing is free.
func (t *stages) try(d *device, class int) (*stage, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.reclaim()
	size := int64(minStage) << class
	for c := range t.free { // room for this size from others
		for c != class && len(t.free[class]) == 0 && t.bytes+size > d.limit && len(t.free[c]) > 0 {
			t.drop(d, c)
		}
	}
	if len(t.free[class]) == 0 {
		if t.bytes+size > d.limit {
			return nil, nil
		}
		b, r := d.allocHost(size)
		if r != success {
			return nil, failure("allocate pinned memory", r)
		}
		t.bytes += size
		t.free[class] = append(t.free[class], &stage{bytes: b, c: (*C.skep_stage)(C.calloc(1, C.sizeof_skep_stage))})
	}
	last := len(t.free[class]) - 1
	g := t.free[class][last]
	t.free[class] = t.free[class][:last]
	*g.c = C.skep_stage{}
	t.busy = append(t.busy, g)
	return g, nil
}

// reclaim frees what streams are done with.
func (t *stages) reclaim() {
	rest := t.busy[:0]
	for _, g := range t.busy {
		if C.skep_stage_done(g.c) == 0 {
			rest = append(rest, g)
			continue
		}
		g.pin.Unpin()
		class := classOf(len(g.bytes))
		t.free[class] = append(t.free[class], g)
	}
	clear(t.busy[len(rest):])
	t.busy = rest
}

// drop gives one free stage of a class back to the driver.
func (t *stages) drop(d *device, class int) {
	last := len(t.free[class]) - 1
	g := t.free[class][last]
	t.free[class] = t.free[class][:last]
	t.bytes -= int64(len(g.bytes))
	_ = d.freeHost(g.bytes)
	C.free(unsafe.Pointer(g.c))
}

// close gives everything back, what a device that failed was at work with too: nothing of
// its queues is done any more.
func (t *stages) close(d *device) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.reclaim()
	for _, g := range t.busy {
		g.pin.Unpin()
		class := classOf(len(g.bytes))
		t.free[class] = append(t.free[class], g)
	}
	t.busy = nil
	for class := range t.free {
		for len(t.free[class]) > 0 {
			t.drop(d, class)
		}
	}
}
