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
	"unsafe"

	"github.com/skepkv/skep"
)

// mostEvents is how many one call takes at most.
const mostEvents = 4096

//export skepgo_events_open
func skepgo_events_open(s C.skep_store, epoch, seq C.uint64_t, snapshot C.int, out *C.skep_events,
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
	ctx, cancel := within(0)
	defer cancel()
	id, err := o.follow(ctx, skep.Cursor{Epoch: uint64(epoch), Seq: uint64(seq)}, snapshot != 0)
	*out = C.skep_events(id)
	return
}

//export skepgo_events_next
func skepgo_events_next(id C.skep_events, timeoutMs C.int64_t, into *C.skep_event, n C.uint32_t, got *C.uint32_t,
	e *C.skep_error) (rc C.int) {
	var err error
	defer func() { rc = fail(e, &err) }()
	var x *events
	if x, err = eventsOf(uint64(id)); err != nil {
		return
	}
	if into == nil || got == nil || n == 0 {
		err = skep.Invalidf(op, "room for events", int(n), fmt.Sprintf("1 to %d, and addresses", mostEvents))
		return
	}
	list := make([]skep.Event, min(n, mostEvents))
	some, err := x.next(span(int64(timeoutMs)), list)
	for i, ev := range list[:some] {
		to := &unsafe.Slice(into, int(n))[i]
		*to = C.skep_event{epoch: C.uint64_t(ev.Epoch), seq: C.uint64_t(ev.Seq), lost: C.uint64_t(ev.Lost),
			namespace_id: C.uint32_t(ev.Namespace), depth: C.uint32_t(ev.Depth), kind: C.uint8_t(ev.Kind),
			tier: C.uint8_t(ev.Tier), reason: C.uint8_t(ev.Reason)}
		if !ev.Time.IsZero() {
			to.unix_ns = C.int64_t(ev.Time.UnixNano())
		}
		if ev.Salted {
			to.salted = 1
		}
		*(*skep.Key)(unsafe.Pointer(&to.key)) = ev.Key
		if ev.Parent != nil {
			to.has_parent = 1
			*(*skep.Key)(unsafe.Pointer(&to.parent)) = *ev.Parent
		}
	}
	*got = C.uint32_t(some)
	return
}

//export skepgo_events_close
func skepgo_events_close(id C.skep_events, e *C.skep_error) (rc C.int) {
	var err error
	defer func() { rc = fail(e, &err) }()
	var x *events
	if x, err = eventsOf(uint64(id)); err != nil {
		return
	}
	streams.Delete(uint64(id))
	err = x.stream.Close()
	return
}
