//go:build cgo

package main

/*
#define SKEP_NO_PROTOTYPES
#define SKEP_NO_WORD
#include "skep.h"
*/
import "C"

import (
	"fmt"
	"time"
	"unsafe"

	"github.com/skepkv/skep"
)

// asked is what calls about keys are given.
func asked(s C.skep_store, sc *C.skep_scope, keys unsafe.Pointer, n C.uint32_t) (*opened, skep.Scope, []skep.Key, error) {
	o, err := find(s)
	if err != nil {
		return nil, skep.Scope{}, nil, err
	}
	scope, err := scopeOf(sc)
	if err != nil {
		return nil, scope, nil, err
	}
	list, err := keysOf(keys, n)
	return o, scope, list, err
}

// placesOf is memory of the caller's for the blocks of n keys, of which leading ones may be NULL.
func placesOf(at *unsafe.Pointer, lengths *C.int64_t, n C.uint32_t) ([][]byte, error) {
	lead := 0
	for at != nil && lead < int(n) && unsafe.Slice(at, int(n))[lead] == nil {
		lead++
	}
	if lead == 0 || lead == int(n) || lengths == nil {
		return blocksOf(at, lengths, n)
	}
	rest, err := blocksOf(&unsafe.Slice(at, int(n))[lead], &unsafe.Slice(lengths, int(n))[lead], n-C.uint32_t(lead))
	return append(make([][]byte, lead), rest...), err
}

// blocksOf is memory of the caller's, one block after the other.
func blocksOf(at *unsafe.Pointer, lengths *C.int64_t, n C.uint32_t) ([][]byte, error) {
	if n > skep.MaxPutBlocks || n > 0 && (at == nil || lengths == nil) {
		return nil, skep.Invalidf(op, "blocks", int(n), fmt.Sprintf("at most %d, and addresses and lengths", skep.MaxPutBlocks))
	}
	out := make([][]byte, n)
	for i, p := range unsafe.Slice(at, int(n)) {
		l := int64(unsafe.Slice(lengths, int(n))[i])
		if l < 1 || l > skep.MaxPartBytes || p == nil {
			return nil, skep.Invalidf(op, fmt.Sprintf("bytes of block %d", i), l, fmt.Sprintf("1 to %d, and an address", skep.MaxPartBytes))
		}
		out[i] = unsafe.Slice((*byte)(p), l)
	}
	return out, nil
}

//export skepgo_exists
func skepgo_exists(s C.skep_store, sc *C.skep_scope, keys unsafe.Pointer, n C.uint32_t, timeoutMs C.int64_t, tiers *C.uint8_t, e *C.skep_error) (rc C.int) {
	var err error
	defer func() { rc = fail(e, &err) }()
	o, scope, list, err := asked(s, sc, keys, n)
	if err != nil || n == 0 {
		return
	}
	if tiers == nil {
		err = errNowhere
		return
	}
	ctx, cancel := within(timeoutMs)
	defer cancel()
	err = o.exists(ctx, scope, list, unsafe.Slice((*skep.Tier)(unsafe.Pointer(tiers)), int(n)))
	return
}

//export skepgo_lookup_each
func skepgo_lookup_each(s C.skep_store, sc *C.skep_scope, keys unsafe.Pointer, n C.uint32_t,
	leaseMs, timeoutMs C.int64_t, found *C.uint8_t, lease *C.uint64_t, e *C.skep_error) (rc C.int) {
	var err error
	defer func() { rc = fail(e, &err) }()
	o, scope, list, err := asked(s, sc, keys, n)
	if err != nil {
		return
	}
	if found == nil && n > 0 || lease == nil {
		err = errNowhere
		return
	}
	*lease = 0
	if n == 0 {
		return
	}
	ctx, cancel := within(timeoutMs)
	defer cancel()
	var id skep.LeaseID
	id, err = o.lookupEach(ctx, scope, list, leaseOf(leaseMs), unsafe.Slice((*byte)(found), int(n)))
	*lease = C.uint64_t(id)
	return
}

//export skepgo_load
func skepgo_load(s C.skep_store, sc *C.skep_scope, keys unsafe.Pointer, n C.uint32_t, lease C.uint64_t, blocks *unsafe.Pointer,
	lengths *C.int64_t, timeoutMs C.int64_t, results *C.uint8_t, e *C.skep_error) C.int {
	return load(s, sc, skep.PartKV, keys, n, lease, blocks, lengths, timeoutMs, results, e)
}

//export skepgo_load_part
func skepgo_load_part(s C.skep_store, sc *C.skep_scope, part *C.char, keys unsafe.Pointer, n C.uint32_t,
	lease C.uint64_t, blocks *unsafe.Pointer, lengths *C.int64_t, timeoutMs C.int64_t, results *C.uint8_t, e *C.skep_error) C.int {
	name := "" // of none
	if part != nil {
		name = C.GoString(part)
	}
	return load(s, sc, name, keys, n, lease, blocks, lengths, timeoutMs, results, e)
}

// named says what is wrong with the name of a part.
func named(part string) error {
	if part == "" || len(part) > skep.MaxPartNameSize {
		return skep.Invalidf(op, "name of the part", part, fmt.Sprintf("1 to %d bytes", skep.MaxPartNameSize))
	}
	return nil
}

func load(s C.skep_store, sc *C.skep_scope, part string, keys unsafe.Pointer, n C.uint32_t, lease C.uint64_t,
	blocks *unsafe.Pointer, lengths *C.int64_t, timeoutMs C.int64_t, results *C.uint8_t, e *C.skep_error) (rc C.int) {
	var err error
	defer func() { rc = fail(e, &err) }()
	o, scope, list, err := asked(s, sc, keys, n)
	if err == nil {
		err = named(part)
	}
	if err != nil || n == 0 {
		return
	}
	if results == nil {
		err = errNowhere
		return
	}
	var dst [][]byte
	if dst, err = placesOf(blocks, lengths, n); err != nil {
		return
	}
	said := make([]skep.Kind, n)
	ctx, cancel := within(timeoutMs)
	defer cancel()
	err = o.load(ctx, skep.Chain{Scope: scope, Keys: list, Part: part, Lease: skep.LeaseID(lease)}, inOne(dst), said)
	for i, k := range said {
		unsafe.Slice(results, int(n))[i] = C.uint8_t(k)
	}
	return
}

//export skepgo_save
func skepgo_save(s C.skep_store, sc *C.skep_scope, parent unsafe.Pointer, depth C.uint32_t, keys unsafe.Pointer, n C.uint32_t,
	blocks *unsafe.Pointer, lengths *C.int64_t, timeoutMs C.int64_t, outcomes, reasons *C.uint8_t, e *C.skep_error) C.int {
	return save(s, sc, parent, depth, keys, n, blocks, lengths, timeoutMs, outcomes, reasons, e, skep.AckCommitted)
}

//export skepgo_save_accepted
func skepgo_save_accepted(s C.skep_store, sc *C.skep_scope, parent unsafe.Pointer, depth C.uint32_t, keys unsafe.Pointer,
	n C.uint32_t, blocks *unsafe.Pointer, lengths *C.int64_t, timeoutMs C.int64_t, outcomes, reasons *C.uint8_t,
	e *C.skep_error) C.int {
	return save(s, sc, parent, depth, keys, n, blocks, lengths, timeoutMs, outcomes, reasons, e, skep.AckAccepted)
}

//export skepgo_flush
func skepgo_flush(s C.skep_store, timeoutMs C.int64_t, e *C.skep_error) (rc C.int) {
	var err error
	defer func() { rc = fail(e, &err) }()
	var o *opened
	if o, err = find(s); err != nil {
		return
	}
	ctx, cancel := within(timeoutMs)
	defer cancel()
	err = o.Flush(ctx)
	return
}

func save(s C.skep_store, sc *C.skep_scope, parent unsafe.Pointer, depth C.uint32_t, keys unsafe.Pointer, n C.uint32_t,
	blocks *unsafe.Pointer, lengths *C.int64_t, timeoutMs C.int64_t, outcomes, reasons *C.uint8_t, e *C.skep_error,
	ack skep.Ack) (rc C.int) {
	var err error
	defer func() { rc = fail(e, &err) }()
	o, scope, list, err := asked(s, sc, keys, n)
	if err != nil || n == 0 {
		return
	}
	if outcomes == nil {
		err = errNowhere
		return
	}
	var src [][]byte
	if src, err = blocksOf(blocks, lengths, n); err != nil {
		return
	}
	r := skep.PutRequest{Scope: scope, Depth: int(depth), Ack: ack}
	if parent != nil {
		k := *(*skep.Key)(parent)
		r.Parent = &k
	}
	results := make([]skep.PutResult, n)
	ctx, cancel := within(timeoutMs)
	defer cancel()
	err = o.save(ctx, r, list, inOne(src), results)
	for i, res := range results {
		unsafe.Slice(outcomes, int(n))[i] = C.uint8_t(res.Outcome)
		if reasons != nil {
			unsafe.Slice(reasons, int(n))[i] = C.uint8_t(res.Reason)
		}
	}
	return
}

//export skepgo_want
func skepgo_want(s C.skep_store, sc *C.skep_scope, keys unsafe.Pointer, n C.uint32_t, bytes, timeoutMs C.int64_t,
	outcomes, reasons *C.uint8_t, e *C.skep_error) (rc C.int) {
	var err error
	defer func() { rc = fail(e, &err) }()
	o, scope, list, err := asked(s, sc, keys, n)
	if err != nil || n == 0 {
		return
	}
	if outcomes == nil {
		err = errNowhere
		return
	}
	ctx, cancel := within(timeoutMs)
	defer cancel()
	wants, err := o.Want(ctx, &skep.WantRequest{Scope: scope, Keys: list, Bytes: int64(bytes)})
	if err != nil {
		return
	}
	for i, w := range wants {
		outcome := C.uint8_t(w.Outcome)
		if w.Wanted {
			outcome = C.SKEP_WANTED
		}
		unsafe.Slice(outcomes, int(n))[i] = outcome
		if reasons != nil {
			unsafe.Slice(reasons, int(n))[i] = C.uint8_t(w.Reason)
		}
	}
	return
}

//export skepgo_delete
func skepgo_delete(s C.skep_store, sc *C.skep_scope, keys unsafe.Pointer, n C.uint32_t, timeoutMs C.int64_t, deleted *C.uint32_t, e *C.skep_error) (rc C.int) {
	var err error
	defer func() { rc = fail(e, &err) }()
	o, scope, list, err := asked(s, sc, keys, n)
	if err != nil {
		return
	}
	if deleted == nil {
		err = errNowhere
		return
	}
	ctx, cancel := within(timeoutMs)
	defer cancel()
	var gone int
	if gone, err = o.Delete(ctx, scope, list); err == nil {
		*deleted = C.uint32_t(gone)
	}
	return
}

//export skepgo_renew
func skepgo_renew(s C.skep_store, lease C.uint64_t, leaseMs C.int64_t, e *C.skep_error) (rc C.int) {
	var err error
	defer func() { rc = fail(e, &err) }()
	var o *opened
	if o, err = find(s); err != nil {
		return
	}
	if leaseMs < 0 || int64(leaseMs) > skep.MaxLease.Milliseconds() {
		err = skep.Invalidf(op, "lease in ms", int64(leaseMs), fmt.Sprintf("0 to %d", skep.MaxLease.Milliseconds()))
		return
	}
	ctx, cancel := within(0)
	defer cancel()
	_, err = o.Renew(ctx, skep.LeaseID(lease), time.Duration(leaseMs)*time.Millisecond)
	return
}

//export skepgo_direct
func skepgo_direct(s C.skep_store, timeoutMs C.int64_t, e *C.skep_error) (rc C.int) {
	var err error
	defer func() { rc = fail(e, &err) }()
	var o *opened
	if o, err = find(s); err != nil {
		return
	}
	if o.client != nil {
		ctx, cancel := within(timeoutMs)
		defer cancel()
		err = o.client.Attached(ctx)
	}
	return
}
