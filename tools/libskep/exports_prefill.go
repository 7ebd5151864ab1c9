//go:build cgo

package main

/*
#define SKEP_NO_PROTOTYPES
#define SKEP_NO_WORD
#include "skep.h"
*/
import "C"

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"unsafe"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/gpu"
)

// prefill is a prompt that an engine in C computes.
type prefill struct {
	*gpu.Prefill
	of     *opened
	blocks int
	layers int

	mu   sync.Mutex // signs come one at a time
	next [3]int     // layers, by sign: loaded, written, read
}

var prefills sync.Map // of *prefill, by number

// endPrefills ends those of a store that is closed.
func (o *opened) endPrefills(ctx context.Context) {
	prefills.Range(func(id, x any) bool {
		if p := x.(*prefill); p.of == o {
			_ = p.Close(ctx) // what is not released stays: closing the store says so
			prefills.Delete(id)
		}
		return true
	})
}

func prefillOf(p C.skep_prefill) (*prefill, error) {
	if x, ok := prefills.Load(uint64(p)); ok {
		return x.(*prefill), nil
	}
	return nil, skep.Invalidf(op, "prefill", uint64(p), "one that was begun and not ended")
}

//export skepgo_prefill_begin
func skepgo_prefill_begin(s C.skep_store, sc *C.skep_scope, keys unsafe.Pointer, n, history C.uint32_t, timeoutMs C.int64_t,
	out *C.skep_prefill, found *C.uint32_t, e *C.skep_error) (rc C.int) {
	var err error
	defer func() { rc = fail(e, &err) }()
	var o *opened
	r := &gpu.PrefillRequest{History: int(history)}
	if o, err = find(s); err != nil {
		return
	}
	if r.Scope, err = scopeOf(sc); err != nil {
		return
	}
	if r.Keys, err = keysOf(keys, n); err != nil {
		return
	}
	if out == nil || found == nil {
		err = errNowhere
		return
	}
	if o.front == nil {
		err = errNoDevice
		return
	}
	ctx, cancel := within(timeoutMs)
	defer cancel()
	p := &prefill{of: o, blocks: int(n)}
	if g, e := o.geometry(ctx, r.Scope.Namespace); e == nil { // else Prefill says so
		p.layers = g.Layers()
	}
	if p.Prefill, err = o.front.Prefill(ctx, r); err != nil {
		return
	}
	id, err := o.keep(&prefills, p)
	if err != nil {
		err = errors.Join(err, p.Close(ctx))
		return
	}
	*out, *found = C.skep_prefill(id), C.uint32_t(p.History())
	return
}

//export skepgo_prefill_places
func skepgo_prefill_places(p C.skep_prefill, layer C.uint32_t, at *C.uint64_t, e *C.skep_error) (rc C.int) {
	var err error
	defer func() { rc = fail(e, &err) }()
	var x *prefill
	if x, err = prefillOf(p); err != nil {
		return
	}
	if at == nil {
		err = errNowhere
		return
	}
	if int(layer) >= x.layers {
		err = skep.Invalidf(op, "layer", int(layer), x.layers-1)
		return
	}
	to := unsafe.Slice(at, x.blocks)
	for i := range to {
		to[i] = C.uint64_t(x.of.addressOf(x.Place(i, int(layer))))
	}
	return
}

//export skepgo_prefill_step
func skepgo_prefill_step(p C.skep_prefill, to C.uint32_t, e *C.skep_error) (rc C.int) {
	var err error
	defer func() { rc = fail(e, &err) }()
	var x *prefill
	if x, err = prefillOf(p); err == nil {
		err = x.Step(int(to))
	}
	return
}

// sign gives one of an engine's signs for its n-th layer: they go up, one at a time.
func sign(p C.skep_prefill, n C.uint32_t, on C.skep_stream, which int) error {
	x, err := prefillOf(p)
	if err != nil {
		return err
	}
	st, err := x.of.stream(uint64(on))
	if err != nil {
		return err
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if int(n) != x.next[which] || which > 0 && x.next[which-1] <= int(n) {
		return skep.Invalidf(op, "layer", int(n), fmt.Sprintf("%d, first of skep_prefill_loaded, then of skep_prefill_written, then of skep_prefill_read", x.next[which]))
	}
	x.next[which]++
	[]func(int, gpu.Stream){x.Loaded, x.Written, x.Read}[which](int(n), st)
	return nil
}

//export skepgo_prefill_loaded
func skepgo_prefill_loaded(p C.skep_prefill, n C.uint32_t, on C.skep_stream, e *C.skep_error) (rc C.int) {
	var err error
	defer func() { rc = fail(e, &err) }()
	err = sign(p, n, on, 0)
	return
}

//export skepgo_prefill_written
func skepgo_prefill_written(p C.skep_prefill, n C.uint32_t, on C.skep_stream, e *C.skep_error) (rc C.int) {
	var err error
	defer func() { rc = fail(e, &err) }()
	err = sign(p, n, on, 1)
	return
}

//export skepgo_prefill_read
func skepgo_prefill_read(p C.skep_prefill, n C.uint32_t, on C.skep_stream, e *C.skep_error) (rc C.int) {
	var err error
	defer func() { rc = fail(e, &err) }()
	err = sign(p, n, on, 2)
	return
}

//export skepgo_prefill_commit
func skepgo_prefill_commit(p C.skep_prefill, timeoutMs C.int64_t, stored *C.uint32_t, e *C.skep_error) (rc C.int) {
	var err error
	defer func() { rc = fail(e, &err) }()
	var x *prefill
	if x, err = prefillOf(p); err != nil {
		return
	}
	if stored == nil {
		err = errNowhere
		return
	}
	ctx, cancel := within(timeoutMs)
	defer cancel()
	res, err := x.Commit(ctx)
	n := 0
	for n < len(res) && res[n].Outcome != skep.Declined {
		n++
	}
	*stored = C.uint32_t(n)
	return
}

//export skepgo_prefill_end
func skepgo_prefill_end(p C.skep_prefill, timeoutMs C.int64_t, e *C.skep_error) (rc C.int) {
	var err error
	defer func() { rc = fail(e, &err) }()
	var x *prefill
	if x, err = prefillOf(p); err != nil {
		return
	}
	ctx, cancel := within(timeoutMs)
	defer cancel()
	if err = x.Close(ctx); skep.KindOf(err) != skep.NotReleased {
		prefills.Delete(uint64(p))
	}
	return
}

//export skepgo_device_write
func skepgo_device_write(s C.skep_store, address C.uint64_t, n C.int64_t, from unsafe.Pointer, e *C.skep_error) (rc C.int) {
	var err error
	defer func() { rc = fail(e, &err) }()
	var o *opened
	var at gpu.Place
	if o, err = find(s); err != nil {
		return
	}
	if from == nil || n < 0 {
		err = errNowhere
		return
	}
	if at, err = o.place(uint64(address), int64(n)); err != nil {
		return
	}
	err = o.atOnce(func(st gpu.Stream) { st.CopyIn(at, unsafe.Slice((*byte)(from), int(n))) })
	return
}

//export skepgo_stream_copy
func skepgo_stream_copy(s C.skep_store, id C.skep_stream, to, from C.uint64_t, n C.int64_t, e *C.skep_error) (rc C.int) {
	var err error
	defer func() { rc = fail(e, &err) }()
	var o *opened
	var st gpu.Stream
	var dst, src gpu.Place
	if o, err = find(s); err != nil {
		return
	}
	if st, err = o.stream(uint64(id)); err != nil {
		return
	}
	if dst, err = o.place(uint64(to), int64(n)); err != nil {
		return
	}
	if src, err = o.place(uint64(from), int64(n)); err == nil {
		st.Copy(dst, src, int64(n))
	}
	return
}
