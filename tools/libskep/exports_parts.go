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
	"fmt"
	"sync"
	"unsafe"

	"github.com/skepkv/skep"
)

// writing is a block that a C program writes.
type writing struct {
	of *opened
	w  skep.BlockWriter
}

var writers sync.Map // of *writing, by number

func writerOf(w C.skep_writer) (*writing, error) {
	if x, ok := writers.Load(uint64(w)); ok {
		return x.(*writing), nil
	}
	return nil, noWriter(uint64(w))
}

func noWriter(w uint64) error {
	return skep.Invalidf(op, "writer", w, "one that was begun and neither committed nor aborted")
}

// forgetWriters forgets those of a store that is closed, which drops what they wrote.
func (o *opened) forgetWriters() {
	writers.Range(func(id, x any) bool {
		if x.(*writing).of == o {
			writers.Delete(id)
		}
		return true
	})
}

//export skepgo_begin
func skepgo_begin(s C.skep_store, sc *C.skep_scope, parent unsafe.Pointer, depth C.uint32_t, key unsafe.Pointer,
	parts *C.skep_part, n C.uint32_t, lifeMs C.int64_t, out *C.skep_writer, e *C.skep_error) (rc C.int) {
	var err error
	defer func() { rc = fail(e, &err) }()
	o, scope, keys, err := asked(s, sc, key, 1)
	if err != nil {
		return
	}
	if out == nil {
		err = errNowhere
		return
	}
	r, err := beginOf(scope, parent, depth, keys[0], parts, n, lifeMs)
	if err != nil {
		return
	}
	ctx, cancel := within(0)
	defer cancel()
	id, err := o.beginWriting(ctx, r)
	if err == nil {
		*out = C.skep_writer(id)
	}
	return
}

// beginOf is what a caller says of a block of parts.
func beginOf(scope skep.Scope, parent unsafe.Pointer, depth C.uint32_t, key skep.Key, parts *C.skep_part, n C.uint32_t,
	lifeMs C.int64_t) (*skep.BeginRequest, error) {
	if n < 1 || n > skep.MaxParts || parts == nil {
		return nil, skep.Invalidf(op, "parts", int(n), fmt.Sprintf("1 to %d, and an address", skep.MaxParts))
	}
	r := &skep.BeginRequest{Scope: scope, Key: key, Depth: int(depth)}
	if lifeMs > 0 {
		r.Timeout = span(int64(lifeMs))
	}
	if parent != nil {
		k := *(*skep.Key)(parent)
		r.Parent = &k
	}
	for i, p := range unsafe.Slice(parts, int(n)) {
		if p.name == nil {
			return nil, skep.Invalidf(op, fmt.Sprintf("name of part %d", i), "NULL", "an address")
		}
		r.Manifest = append(r.Manifest, skep.PartSpec{Name: C.GoString(p.name), Size: int64(p.bytes)})
	}
	return r, nil
}

// beginWriting begins a block of parts, and gives its writer's number.
func (o *opened) beginWriting(ctx context.Context, r *skep.BeginRequest) (uint64, error) {
	w, err := o.Begin(ctx, r)
	if err != nil {
		return 0, err
	}
	id, err := o.keep(&writers, &writing{o, w})
	if err != nil {
		_ = w.Abort(ctx)
	}
	return id, err
}

//export skepgo_write
func skepgo_write(w C.skep_writer, part *C.char, offset C.int64_t, bytes unsafe.Pointer, n, timeoutMs C.int64_t,
	e *C.skep_error) (rc C.int) {
	var err error
	defer func() { rc = fail(e, &err) }()
	var x *writing
	if x, err = writerOf(w); err != nil {
		return
	}
	if part == nil || bytes == nil || n < 1 || int64(n) > skep.MaxPartBytes {
		err = skep.Invalidf(op, "bytes of a part", int64(n), fmt.Sprintf("1 to %d, and addresses", skep.MaxPartBytes))
		return
	}
	ctx, cancel := within(timeoutMs)
	defer cancel()
	err = x.w.Write(ctx, C.GoString(part), int64(offset), unsafe.Slice((*byte)(bytes), int64(n)))
	return
}

//export skepgo_commit
func skepgo_commit(w C.skep_writer, accepted C.int, timeoutMs C.int64_t, outcome, reason *C.uint8_t,
	e *C.skep_error) (rc C.int) {
	var err error
	defer func() { rc = fail(e, &err) }()
	var x *writing
	if x, err = writerOf(w); err != nil {
		return
	}
	ack := skep.AckCommitted
	if accepted != 0 {
		ack = skep.AckAccepted
	}
	ctx, cancel := within(timeoutMs)
	defer cancel()
	res, ended, err := x.commit(ctx, w, ack)
	if !ended {
		return
	}
	if outcome != nil {
		*outcome = C.uint8_t(res.Outcome)
	}
	if reason != nil {
		*reason = C.uint8_t(res.Reason)
	}
	return
}

// commit stores a block. Not ended: the writer goes on.
func (x *writing) commit(ctx context.Context, w C.skep_writer, ack skep.Ack) (_ skep.PutResult, ended bool, _ error) {
	res, err := x.w.Commit(ctx, ack)
	if skep.KindOf(err) == skep.Invalid {
		return res, false, err
	}
	writers.Delete(uint64(w))
	return res, true, err
}

//export skepgo_abort
func skepgo_abort(w C.skep_writer, e *C.skep_error) (rc C.int) {
	var err error
	defer func() { rc = fail(e, &err) }()
	ctx, cancel := timeout(10_000)
	defer cancel()
	err = abort(ctx, uint64(w))
	return
}

// abort drops what was written. Of two who do one does.
func abort(ctx context.Context, number uint64) error {
	x, there := writers.LoadAndDelete(number)
	if !there {
		return noWriter(number)
	}
	return x.(*writing).w.Abort(ctx)
}
