//go:build cgo

package main

/*
#define SKEP_NO_PROTOTYPES
#define SKEP_NO_WORD
#include "skep.h"
*/
import "C"

import (
	"unsafe"

	"github.com/skepkv/skep"
)

//export skepgo_mem_register
func skepgo_mem_register(s C.skep_store, memory unsafe.Pointer, n C.int64_t, fd C.int, offset,
	timeoutMs C.int64_t, e *C.skep_error) (rc C.int) {
	var err error
	defer func() { rc = fail(e, &err) }()
	var o *opened
	if o, err = find(s); err != nil {
		return
	}
	if memory == nil || n < 1 || n > 1<<47 {
		err = skep.Invalidf(op, "bytes of memory", int64(n), "1 or more, and an address")
		return
	}
	ctx, cancel := within(timeoutMs)
	defer cancel()
	err = o.register(ctx, unsafe.Slice((*byte)(memory), int64(n)), int(fd), int64(offset))
	return
}

//export skepgo_mem_unregister
func skepgo_mem_unregister(s C.skep_store, memory unsafe.Pointer, timeoutMs C.int64_t, e *C.skep_error) (rc C.int) {
	var err error
	defer func() { rc = fail(e, &err) }()
	var o *opened
	if o, err = find(s); err != nil {
		return
	}
	ctx, cancel := within(timeoutMs)
	defer cancel()
	err = o.unregister(ctx, uintptr(memory))
	return
}
