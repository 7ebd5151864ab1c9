//go:build cgo

package main

/*
#define SKEP_NO_PROTOTYPES
#define SKEP_NO_WORD
#include "skep.h"
*/
import "C"

import (
	"encoding/json"
	"fmt"
	"time"
	"unsafe"

	"github.com/skepkv/skep"
)

// hintOf is what a caller knows of blocks' future. What is out of bounds is the Store's to refuse.
func hintOf(h *C.skep_hints) (skep.Hint, error) {
	if h == nil {
		return skep.Hint{}, skep.Invalidf(op, "future", "NULL", "what is known of the blocks")
	}
	if h.drop != 0 && h.drop != 1 {
		return skep.Hint{}, skep.Invalidf(op, "drop", int(h.drop), "0 or 1")
	}
	out := skep.Hint{Pin: msOf(h.pin_ms), NextUse: msOf(h.next_use_ms), TTL: msOf(h.ttl_ms), Steps: int(h.steps),
		Drop: h.drop == 1}
	if h.program != nil {
		out.Program = C.GoString(h.program)
	}
	return out, nil
}

// msOf is a time of so many milliseconds, or the longest there is.
func msOf(ms C.int64_t) time.Duration {
	const most = int64(1<<63-1) / int64(time.Millisecond)
	return time.Duration(max(min(int64(ms), most), -most)) * time.Millisecond
}

//export skepgo_hint
func skepgo_hint(s C.skep_store, sc *C.skep_scope, keys unsafe.Pointer, n C.uint32_t, future *C.skep_hints,
	timeoutMs C.int64_t, known *C.uint32_t, e *C.skep_error) (rc C.int) {
	var err error
	defer func() { rc = fail(e, &err) }()
	o, scope, list, err := asked(s, sc, keys, n)
	if err != nil {
		return
	}
	if known == nil {
		err = errNowhere
		return
	}
	var h skep.Hint
	if h, err = hintOf(future); err != nil {
		return
	}
	ctx, cancel := within(timeoutMs)
	defer cancel()
	var there int
	if there, err = o.Hint(ctx, scope, list, h); err == nil {
		*known = C.uint32_t(there)
	}
	return
}

//export skepgo_purge
func skepgo_purge(s C.skep_store, tenant, model *C.char, sc *C.skep_scope, timeoutMs C.int64_t,
	e *C.skep_error) (rc C.int) {
	var err error
	defer func() { rc = fail(e, &err) }()
	var o *opened
	var p skep.Purge
	if o, err = find(s); err != nil {
		return
	}
	if tenant != nil {
		p.Tenant = C.GoString(tenant)
	}
	if model != nil {
		p.Model = C.GoString(model)
	}
	if sc != nil {
		var scope skep.Scope
		if scope, err = scopeOf(sc); err != nil {
			return
		}
		if p.Namespace = scope.Namespace; len(scope.Salt) > 0 {
			p.Namespace, p.Salt = 0, &scope
		}
	}
	ctx, cancel := within(timeoutMs)
	defer cancel()
	err = o.Purge(ctx, p)
	return
}

//export skepgo_namespace_delete
func skepgo_namespace_delete(s C.skep_store, id C.uint32_t, timeoutMs C.int64_t, e *C.skep_error) (rc C.int) {
	var err error
	defer func() { rc = fail(e, &err) }()
	var o *opened
	if o, err = find(s); err != nil {
		return
	}
	ctx, cancel := within(timeoutMs)
	defer cancel()
	err = o.deleteNamespace(ctx, skep.NamespaceID(id))
	return
}

//export skepgo_list
func skepgo_list(s C.skep_store, id C.uint32_t, place *C.uint64_t, keys unsafe.Pointer, n C.uint32_t,
	timeoutMs C.int64_t, count *C.uint32_t, e *C.skep_error) (rc C.int) {
	var err error
	defer func() { rc = fail(e, &err) }()
	var o *opened
	if o, err = find(s); err != nil {
		return
	}
	if n < 1 || n > skep.MaxChainKeys || keys == nil {
		err = skep.Invalidf(op, "room for keys", int(n), fmt.Sprintf("1 to %d, and an address", skep.MaxChainKeys))
		return
	}
	if place == nil || count == nil {
		err = errNowhere
		return
	}
	ctx, cancel := within(timeoutMs)
	defer cancel()
	list, next, err := o.ListKeys(ctx, skep.NamespaceID(id), uint64(*place), int(n))
	if err == nil {
		*count = C.uint32_t(copy(unsafe.Slice((*skep.Key)(keys), int(n)), list))
		*place = C.uint64_t(next)
	}
	return
}

//export skepgo_stats
func skepgo_stats(s C.skep_store, timeoutMs C.int64_t, text *C.char, room C.uint64_t, bytes *C.uint64_t,
	e *C.skep_error) (rc C.int) {
	var err error
	defer func() { rc = fail(e, &err) }()
	var o *opened
	if o, err = find(s); err != nil {
		return
	}
	if bytes == nil || text == nil && room > 0 {
		err = errNowhere
		return
	}
	ctx, cancel := within(timeoutMs)
	defer cancel()
	var st skep.Stats
	if st, err = o.Stats(ctx); err != nil {
		return
	}
	var js []byte
	if js, err = json.Marshal(st); err != nil {
		return
	}
	if *bytes = C.uint64_t(len(js)); *bytes < room {
		to := unsafe.Slice((*byte)(unsafe.Pointer(text)), len(js)+1)
		to[copy(to, js)] = 0
	}
	return
}
