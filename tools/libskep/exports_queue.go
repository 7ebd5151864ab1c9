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
	"time"
	"unsafe"

	"github.com/skepkv/skep"
)

//export skepgo_queue_open
func skepgo_queue_open(s C.skep_store, depth C.uint32_t, out *C.skep_queue, eventfd *C.int,
	e *C.skep_error) (rc C.int) {
	var err error
	defer func() { rc = fail(e, &err) }()
	var o *opened
	if o, err = find(s); err != nil {
		return
	}
	if out == nil {
		err = errNowhere
		return
	}
	id, q, err := o.newQueue(int(min(depth, maxDepth+1)))
	if err != nil {
		return
	}
	*out = C.skep_queue(id)
	if eventfd != nil {
		*eventfd = C.int(q.signal.fd)
	}
	return
}

//export skepgo_submit
func skepgo_submit(id C.skep_queue, ops *C.skep_op, n C.uint32_t, taken *C.uint32_t, e *C.skep_error) (rc C.int) {
	var err error
	defer func() { rc = fail(e, &err) }()
	var q *queue
	if q, err = queueOf(uint64(id)); err != nil {
		return
	}
	if taken == nil || ops == nil && n > 0 {
		err = errNowhere
		return
	}
	*taken = 0
	for at := unsafe.Pointer(ops); n > 0; n-- {
		var c C.skep_op
		if c, err = opAt(at); err != nil {
			return
		}
		at = unsafe.Add(at, c.size)
		var x operation
		if x, err = q.of.operationOf(&c); err != nil {
			return
		}
		var room bool
		if room, err = q.begin(x); err != nil || !room {
			return
		}
		*taken++
	}
	return
}

//export skepgo_drain
func skepgo_drain(id C.skep_queue, into *C.skep_done, n C.uint32_t, got *C.uint32_t, e *C.skep_error) (rc C.int) {
	var err error
	defer func() { rc = fail(e, &err) }()
	var q *queue
	if q, err = queueOf(uint64(id)); err != nil {
		return
	}
	if got == nil || into == nil && n > 0 {
		err = errNowhere
		return
	}
	*got = 0
	list, err := q.drain(int(min(n, maxDepth)))
	for i := range list {
		list[i].write(&unsafe.Slice(into, int(n))[i])
	}
	*got = C.uint32_t(len(list))
	return
}

// write tells a caller of an operation that is over.
func (c *completion) write(to *C.skep_done) {
	*to = C.skep_done{tag: C.uint64_t(c.tag), what: C.uint32_t(c.what), blocks: C.int64_t(c.blocks),
		tokens: C.int64_t(c.tokens), bytes: C.int64_t(c.bytes), lease: C.uint64_t(c.lease)}
	if c.err == nil {
		return
	}
	if to.code = C.int32_t(skep.KindOf(c.err)); to.code == 0 {
		to.code = -1
	}
	room := unsafe.Slice((*byte)(unsafe.Pointer(&to.message[0])), len(to.message))
	room[copy(room[:len(room)-1], c.err.Error())] = 0
}

//export skepgo_queue_close
func skepgo_queue_close(id C.skep_queue, timeoutMs C.int64_t, e *C.skep_error) (rc C.int) {
	var err error
	defer func() { rc = fail(e, &err) }()
	var q *queue
	if q, err = queueOf(uint64(id)); err != nil {
		return
	}
	ctx, cancel := within(timeoutMs)
	defer cancel()
	if err = errors.Join(q.close(ctx), q.held()); err == nil {
		queues.Delete(uint64(id))
	}
	return
}

// sizeBefore10 is the size of an operation of SKEP_VERSION 8 and 9, which has nothing of what follows.
const sizeBefore10 = unsafe.Offsetof(C.skep_op{}.pieces)

// opAt is the operation at an address, which says how long it is.
func opAt(at unsafe.Pointer) (c C.skep_op, err error) {
	size := *(*C.uint32_t)(at)
	if size != C.sizeof_skep_op && uintptr(size) != sizeBefore10 {
		return c, skep.Invalidf(op, "size of an operation", uint32(size),
			fmt.Sprintf("%d, or %d as of SKEP_VERSION 8 and 9", int(C.sizeof_skep_op), int(sizeBefore10)))
	}
	copy(unsafe.Slice((*byte)(unsafe.Pointer(&c)), size), unsafe.Slice((*byte)(at), size))
	return c, nil
}

// operationOf is what a caller wants done, with copies of all that is the caller's but the blocks' memory.
func (o *opened) operationOf(c *C.skep_op) (x operation, err error) {
	x = operation{tag: uint64(c.tag), what: uint32(c.what), timeout: span(int64(c.timeout_ms))}
	lease := skep.LeaseID(c.lease)
	switch c.what {
	case C.SKEP_OP_RENEW:
		d := time.Duration(max(-1, min(int64(c.lease_ms), 1<<40))) * time.Millisecond
		if d < 0 || d > skep.MaxLease {
			return x, skep.Invalidf(op, "lease in ms", int64(c.lease_ms), fmt.Sprintf("0 to %d", skep.MaxLease.Milliseconds()))
		}
		x.do = func(ctx context.Context, _ *completion) error {
			_, err := o.Renew(ctx, lease, d)
			return err
		}
		return x, nil
	case C.SKEP_OP_RELEASE:
		x.do = func(ctx context.Context, _ *completion) error { return o.Release(ctx, lease) }
		return x, nil
	case C.SKEP_OP_FLUSH:
		x.do = func(ctx context.Context, _ *completion) error { return o.Flush(ctx) }
		return x, nil
	case C.SKEP_OP_WRITE, C.SKEP_OP_COMMIT, C.SKEP_OP_COMMIT_ACCEPTED, C.SKEP_OP_ABORT:
		return x, o.writingOn(c, &x)
	}
	scope, err := scopeOf(c.scope)
	if err != nil {
		return x, err
	}
	if c.what == C.SKEP_OP_BEGIN {
		return x, o.beginning(c, &x, scope)
	}
	keys, err := keysOf(c.keys, c.n)
	if err != nil {
		return x, err
	}
	if len(keys) == 0 {
		return x, skep.Invalidf(op, "keys of an operation", 0, "1 or more")
	}
	return x, o.aboutKeys(c, &x, scope, keys)
}

// aboutKeys has x do what c says with keys.
func (o *opened) aboutKeys(c *C.skep_op, x *operation, scope skep.Scope, keys []skep.Key) error {
	said, why := make([]byte, len(keys)), make([]byte, len(keys)) // results and reasons
	x.tell = tellTo(c.results, c.reasons, said, why)
	leased := leaseOf(c.lease_ms)
	switch c.what {
	case C.SKEP_OP_LOOKUP:
		x.tell = nil
		x.do = func(ctx context.Context, done *completion) error {
			f, err := o.lookup(ctx, &skep.LookupRequest{Scope: scope, Keys: keys, Lease: leased})
			done.blocks, done.tokens, done.bytes = int64(f.Blocks), int64(f.Tokens), f.Bytes
			done.lease = f.Lease.ID
			return err
		}
	case C.SKEP_OP_LOOKUP_EACH:
		x.do = func(ctx context.Context, done *completion) (err error) {
			done.lease, err = o.lookupEach(ctx, scope, keys, leased, said)
			for _, found := range said {
				done.blocks += int64(found)
			}
			return err
		}
	case C.SKEP_OP_EXISTS:
		x.do = func(ctx context.Context, _ *completion) error {
			tiers := make([]skep.Tier, len(keys))
			err := o.exists(ctx, scope, keys, tiers)
			for i, t := range tiers {
				said[i] = byte(t)
			}
			return err
		}
	case C.SKEP_OP_WANT:
		bytes := int64(c.bytes)
		x.do = func(ctx context.Context, _ *completion) error {
			wants, err := o.Want(ctx, &skep.WantRequest{Scope: scope, Keys: keys, Bytes: bytes})
			for i, w := range wants {
				if said[i], why[i] = byte(w.Outcome), byte(w.Reason); w.Wanted {
					said[i] = C.SKEP_WANTED
				}
			}
			return err
		}
	case C.SKEP_OP_DELETE:
		x.do = func(ctx context.Context, done *completion) error {
			n, err := o.Delete(ctx, scope, keys)
			done.blocks = int64(n)
			return err
		}
	case C.SKEP_OP_HINT:
		h, err := hintOf(c.future)
		if err != nil {
			return err
		}
		x.do = func(ctx context.Context, done *completion) error {
			n, err := o.Hint(ctx, scope, keys, h)
			done.blocks = int64(n)
			return err
		}
	case C.SKEP_OP_LOAD:
		return o.loading(c, x, skep.Chain{Scope: scope, Keys: keys, Lease: skep.LeaseID(c.lease)}, said)
	case C.SKEP_OP_RESTORE:
		x.tell = nil
		if err := ofEachThread(c.dest, c.stream); err != nil {
			return err
		}
		restore, err := o.restoreOf(scope, keys, c.from, c.to, skep.All, c.dest, c.stream)
		if err != nil {
			return err
		}
		x.do = func(ctx context.Context, done *completion) error {
			n, err := restore(ctx)
			done.blocks = int64(n)
			return err
		}
	case C.SKEP_OP_SAVE, C.SKEP_OP_SAVE_ACCEPTED:
		return o.saving(c, x, skep.PutRequest{Scope: scope, Depth: int(c.depth)}, keys, said, why)
	default:
		return skep.Invalidf(op, "operation", uint32(c.what), "one of SKEP_OP_")
	}
	return nil
}

// tellTo writes results and reasons to the caller's memory, where there is some.
func tellTo(results, reasons *C.uint8_t, said, why []byte) func() {
	return func() {
		if results != nil {
			copy(unsafe.Slice((*byte)(results), len(said)), said)
		}
		if reasons != nil {
			copy(unsafe.Slice((*byte)(reasons), len(why)), why)
		}
	}
}

// loading has x load blocks.
func (o *opened) loading(c *C.skep_op, x *operation, chain skep.Chain, said []byte) error {
	into, err := placed(c, true)
	if err != nil {
		return err
	}
	chain.Layers = layersOf(c.from, c.to)
	if c.part != nil {
		chain.Part = C.GoString(c.part)
		if err := named(chain.Part); err != nil {
			return err
		}
	}
	x.do = func(ctx context.Context, done *completion) error {
		results := make([]skep.Kind, len(said))
		err := o.load(ctx, chain, into, results)
		for i, k := range results {
			if said[i] = byte(k); k == skep.Other {
				done.blocks++
			}
		}
		return err
	}
	return nil
}

// saving has x store blocks.
func (o *opened) saving(c *C.skep_op, x *operation, r skep.PutRequest, keys []skep.Key, said, why []byte) error {
	from, err := placed(c, false)
	if err != nil {
		return err
	}
	if c.what == C.SKEP_OP_SAVE_ACCEPTED {
		r.Ack = skep.AckAccepted
	}
	if c.parent != nil {
		k := *(*skep.Key)(c.parent)
		r.Parent = &k
	}
	x.do = func(ctx context.Context, done *completion) error {
		results := make([]skep.PutResult, len(said))
		err := o.save(ctx, r, keys, from, results)
		for i, res := range results {
			if said[i], why[i] = byte(res.Outcome), byte(res.Reason); res.Outcome != skep.Declined {
				done.blocks++
			}
		}
		return err
	}
	return nil
}
