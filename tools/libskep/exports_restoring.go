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
	"slices"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/skepkv/skep"
)

func restoringOf(r C.skep_restoring) (*restoring, error) {
	if x, ok := restorings.Load(uint64(r)); ok {
		return x.(*restoring), nil
	}
	return nil, skep.Invalidf(op, "restore under way", uint64(r), "one that was begun and not ended")
}

// wordOf is a claim word in memory of the caller's; nil where there is none.
func wordOf(p *C.uint64_t) (*atomic.Uint64, error) {
	if p == nil {
		return nil, nil
	}
	return skep.ClaimWordAt(unsafe.Slice((*byte)(unsafe.Pointer(p)), 8))
}

func costOf(c *C.skep_cost) (*skep.Compute, error) {
	if c == nil {
		return nil, skep.Invalidf(op, "cost", "NULL", "what computing costs")
	}
	k := &skep.Compute{Suffix: int(c.suffix), Cost: skep.RecomputeCost{Fixed: time.Duration(c.fixed_ns), PerToken: time.Duration(c.per_token_ns), PerTokenSquared: float64(c.per_square_ns)}}
	return k, k.Validate()
}

//export skepgo_restore_begin
func skepgo_restore_begin(s C.skep_store, sc *C.skep_scope, keys unsafe.Pointer, n, from, to C.uint32_t, dest *C.skep_paged,
	on C.skep_stream, cost *C.skep_cost, word *C.uint64_t, timeoutMs C.int64_t, out *C.skep_restoring, e *C.skep_error) (rc C.int) {
	var err error
	defer func() { rc = fail(e, &err) }()
	var r *restoring
	if out == nil || dest == nil || dest.k == nil || dest.slots == nil {
		err = errNowhere
		return
	}
	if from >= to || to > n {
		err = skep.Invalidf(op, "blocks", skep.Range{From: int(from), To: int(to)}, fmt.Sprintf("in 0 to %d", n))
		return
	}
	if r, err = beginFor(s, sc, keys, n, skep.Range{From: int(from), To: int(to)}, dest, on, cost, word, timeoutMs); err == nil {
		var number uint64
		if number, err = r.number(); err == nil {
			*out = C.skep_restoring(number)
		}
	}
	return
}

// beginFor makes sure of what a caller says of a restore and begins it.
func beginFor(s C.skep_store, sc *C.skep_scope, keys unsafe.Pointer, n C.uint32_t, blocks skep.Range, dest *C.skep_paged,
	on C.skep_stream, cost *C.skep_cost, word *C.uint64_t, timeoutMs C.int64_t) (*restoring, error) {
	o, err := find(s)
	if err != nil {
		return nil, err
	}
	c := skep.Chain{Blocks: blocks.Subset()}
	if c.Scope, err = scopeOf(sc); err != nil {
		return nil, err
	}
	if c.Keys, err = keysOf(keys, n); err != nil {
		return nil, err
	}
	if c.Compute, err = costOf(cost); err != nil {
		return nil, err
	}
	w, err := wordOf(word)
	if err != nil {
		return nil, err
	}
	if err = ofEachThread(dest, on); err != nil {
		return nil, err
	}
	ctx, cancel := within(timeoutMs)
	defer cancel()
	st, err := streamOf(dest, on)
	if err != nil {
		return nil, err
	}
	t, err := o.targetOf(ctx, c.Namespace, dest, blocks.Len(), skep.All, st)
	if err != nil {
		return nil, err
	}
	t.slots = slices.Clone(t.slots) // the caller's, who may let go of them now
	g, err := o.geometry(ctx, c.Namespace)
	if err != nil {
		return nil, err
	}
	until, _ := ctx.Deadline()
	return o.begin(c, blocks, g, t, w, time.Until(until))
}

//export skepgo_claim
func skepgo_claim(id C.skep_restoring, from, to C.int64_t, idle C.int, out *C.skep_claimed, e *C.skep_error) (rc C.int) {
	var err error
	defer func() { rc = fail(e, &err) }()
	var r *restoring
	if r, err = restoringOf(id); err != nil {
		return
	}
	if out == nil {
		err = errNowhere
		return
	}
	ctx, cancel := within(0)
	defer cancel()
	load := skep.Idle
	if idle == 0 {
		load = skep.Busy
	}
	var c skep.Claim
	if c, err = r.ses.Claim(ctx, 0, skep.Only(int(from), int(to)), load); err == nil {
		*out = C.skep_claimed{C.int64_t(c.Granted.From), C.int64_t(c.Granted.To), C.int64_t(c.Next)}
	}
	return
}

//export skepgo_computed
func skepgo_computed(id C.skep_restoring, from, to, tookNs, otherNs C.int64_t, e *C.skep_error) (rc C.int) {
	var err error
	defer func() { rc = fail(e, &err) }()
	var r *restoring
	ctx, cancel := within(0)
	defer cancel()
	if r, err = restoringOf(id); err == nil {
		err = r.ses.Computed(ctx, 0, skep.Range{From: int(from), To: int(to)}, time.Duration(tookNs), time.Duration(otherNs))
	}
	return
}

//export skepgo_restore_poll
func skepgo_restore_poll(id C.skep_restoring, timeoutMs C.int64_t, states *C.uint8_t, waiting *C.uint32_t, e *C.skep_error) (rc C.int) {
	var err error
	defer func() { rc = fail(e, &err) }()
	var r *restoring
	if r, err = restoringOf(id); err != nil {
		return
	}
	if states == nil || waiting == nil {
		err = errNowhere
		return
	}
	d := time.Duration(min(max(int64(timeoutMs), 0), int64(time.Hour/time.Millisecond))) * time.Millisecond
	n, err := r.poll(d, unsafe.Slice((*blockState)(unsafe.Pointer(states)), r.blocks.Len()))
	*waiting = C.uint32_t(n)
	return
}

//export skepgo_restore_end
func skepgo_restore_end(id C.skep_restoring, timeoutMs C.int64_t, e *C.skep_error) (rc C.int) {
	var err error
	defer func() { rc = fail(e, &err) }()
	var r *restoring
	if r, err = restoringOf(id); err != nil {
		return
	}
	ctx, cancel := within(timeoutMs)
	defer cancel()
	if err = r.end(ctx); err == nil {
		restorings.Delete(uint64(id))
	}
	return
}

//export skepgo_shared_alloc
func skepgo_shared_alloc(s C.skep_store, n C.int64_t, memory *unsafe.Pointer, fd *C.int, offset *C.int64_t, e *C.skep_error) (rc C.int) {
	var err error
	defer func() { rc = fail(e, &err) }()
	var o *opened
	if o, err = find(s); err != nil {
		return
	}
	if memory == nil || fd == nil || offset == nil {
		err = errNowhere
		return
	}
	c := o.client
	if c == nil {
		err = &skep.Error{Op: op, Kind: skep.Unsupported, Field: "store", Value: "no server's", Limit: "one of connect and shared_bytes"}
		return
	}
	ctx, cancel := within(0)
	defer cancel()
	var m skep.Memory
	if m, err = o.Alloc(ctx, int64(n)); err != nil {
		return
	}
	file, at, ok := c.SharedFile(m.Bytes())
	if !ok {
		m.Release()
		err = &skep.Error{Op: op, Kind: skep.NoMemory, Field: "shared bytes", Value: int64(n), Limit: "what shared_bytes leaves"}
		return
	}
	*memory, *fd, *offset = unsafe.Pointer(unsafe.SliceData(m.Bytes())), C.int(file), C.int64_t(at)
	o.mu.Lock()
	defer o.mu.Unlock()
	o.shared[uintptr(*memory)] = m
	return
}

//export skepgo_shared_free
func skepgo_shared_free(s C.skep_store, memory unsafe.Pointer, e *C.skep_error) (rc C.int) {
	var err error
	defer func() { rc = fail(e, &err) }()
	var o *opened
	if o, err = find(s); err != nil {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	m := o.shared[uintptr(memory)]
	if m == nil {
		err = skep.Invalidf(op, "shared memory", uintptr(memory), "memory of skep_shared_alloc")
		return
	}
	delete(o.shared, uintptr(memory))
	m.Release()
	return
}

// endRestorings ends what is under way of a store that is closed. NotReleased: not all of it is over.
func (o *opened) endRestorings(ctx context.Context) (err error) {
	restorings.Range(func(id, x any) bool {
		if r := x.(*restoring); r.of == o {
			err = errors.Join(err, r.end(ctx))
			restorings.Delete(id)
		}
		return true
	})
	return err
}
