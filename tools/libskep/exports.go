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
	"sync"
	"time"
	"unsafe"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/gpu"
	"github.com/skepkv/skep/gpu/slots"
)

var stores sync.Map // of *opened, by number

func within(ms C.int64_t) (context.Context, context.CancelFunc) {
	return timeout(int64(ms))
}

// fail tells the caller of err. A panic of ours is not the engine's end.
func fail(to *C.skep_error, err *error) C.int {
	if p := recover(); p != nil {
		*err = fmt.Errorf("skep: internal error: %v", p)
	}
	if *err == nil {
		return 0
	}
	code := C.int32_t(skep.KindOf(*err))
	if code == 0 {
		code = -1
	}
	if to != nil {
		to.code = code
		room := unsafe.Slice((*byte)(unsafe.Pointer(&to.message[0])), len(to.message))
		n := copy(room[:len(room)-1], (*err).Error())
		room[n] = 0
	}
	return C.int(code)
}

func find(s C.skep_store) (*opened, error) {
	if o, ok := stores.Load(uint64(s)); ok {
		return o.(*opened), nil
	}
	return nil, noStore(uint64(s))
}

// take is find for who closes it: of several one does.
func take(s uint64) (*opened, error) {
	if o, ok := stores.LoadAndDelete(s); ok {
		return o.(*opened), nil
	}
	return nil, noStore(s)
}

func noStore(s uint64) error { return skep.Invalidf(op, "store", s, "one that is open") }

func scopeOf(s *C.skep_scope) (skep.Scope, error) {
	if s == nil || s.salt_bytes > skep.MaxSaltSize || s.salt_bytes > 0 && s.salt == nil {
		return skep.Scope{}, skep.Invalidf(op, "scope", "missing, or with a longer salt", fmt.Sprintf("one with a salt of at most %d bytes", skep.MaxSaltSize))
	}
	return skep.Scope{Namespace: skep.NamespaceID(s.namespace_id), Salt: skep.Salt(C.GoBytes(s.salt, C.int(s.salt_bytes)))}, nil
}

func keysOf(p unsafe.Pointer, n C.uint32_t) ([]skep.Key, error) {
	if n > skep.MaxChainKeys || n > 0 && p == nil {
		return nil, skep.Invalidf(op, "keys", int(n), fmt.Sprintf("at most %d, and an address", skep.MaxChainKeys))
	}
	return append([]skep.Key(nil), unsafe.Slice((*skep.Key)(p), int(n))...), nil
}

func textOf(p *C.char) (string, error) {
	if p == nil {
		return "", skep.Invalidf(op, "json", "NULL", "a document")
	}
	return C.GoString(p), nil
}

var errNowhere = skep.Invalidf(op, "where the result goes", "NULL", "an address")

//export skepgo_open
func skepgo_open(text *C.char, out *C.skep_store, e *C.skep_error) (rc C.int) {
	var err error
	defer func() { rc = fail(e, &err) }()
	if out == nil {
		err = errNowhere
		return
	}
	ctx, cancel := within(0)
	defer cancel()
	var js string
	var o *opened
	if js, err = textOf(text); err == nil {
		if o, err = open(ctx, js); err == nil {
			id := last.Add(1)
			stores.Store(id, o)
			*out = C.skep_store(id)
		}
	}
	return
}

//export skepgo_close
func skepgo_close(s C.skep_store, e *C.skep_error) (rc C.int) {
	var err error
	defer func() { rc = fail(e, &err) }()
	err = closeStore(uint64(s))
	return
}

// closeStore closes a store, and all that a C program has of it.
func closeStore(s uint64) error {
	o, err := take(s)
	if err != nil {
		return err
	}
	ctx, cancel := timeout(0)
	defer cancel()
	o.keepNoMore()
	left := errors.Join(o.endQueues(ctx), o.endRestorings(ctx))
	o.endPrefills(ctx)
	o.endEvents()
	o.forgetWriters()
	return inUse(errors.Join(o.close(), left))
}

//export skepgo_namespace
func skepgo_namespace(s C.skep_store, text *C.char, id *C.uint32_t, e *C.skep_error) C.int {
	return skepgo_namespace_within(s, text, 0, id, e)
}

//export skepgo_namespace_within
func skepgo_namespace_within(
	s C.skep_store, text *C.char, timeoutMs C.int64_t, id *C.uint32_t, e *C.skep_error,
) (rc C.int) {
	var err error
	defer func() { rc = fail(e, &err) }()
	var o *opened
	var js string
	var sp spaceSpec
	if o, err = find(s); err != nil {
		return
	}
	if js, err = textOf(text); err != nil {
		return
	}
	if id == nil {
		err = errNowhere
		return
	}
	if err = parse(js, &sp); err != nil {
		return
	}
	ctx, cancel := within(timeoutMs)
	defer cancel()
	var n skep.NamespaceInfo
	if n, err = o.openNamespace(ctx, sp); err == nil {
		*id = C.uint32_t(n.ID)
	}
	return
}

//export skepgo_put
func skepgo_put(s C.skep_store, sc *C.skep_scope, parent unsafe.Pointer, depth C.uint32_t, keys unsafe.Pointer, n C.uint32_t,
	blocks *unsafe.Pointer, blockBytes C.int64_t, outcomes *C.uint8_t, e *C.skep_error) (rc C.int) {
	var err error
	defer func() { rc = fail(e, &err) }()
	var o *opened
	r := &skep.PutRequest{Depth: int(depth)}
	if o, err = find(s); err != nil {
		return
	}
	if r.Scope, err = scopeOf(sc); err != nil {
		return
	}
	var list []skep.Key
	if list, err = keysOf(keys, n); err != nil {
		return
	}
	if n > skep.MaxPutBlocks || blockBytes < 1 || blockBytes > skep.MaxPartBytes || blocks == nil || outcomes == nil {
		err = skep.Invalidf(op, "blocks, their bytes and outcomes", fmt.Sprint(n, " ", blockBytes), fmt.Sprintf("at most %d of 1 to %d bytes, and addresses", skep.MaxPutBlocks, skep.MaxPartBytes))
		return
	}
	if parent != nil {
		k := *(*skep.Key)(parent)
		r.Parent = &k
	}
	for i, p := range unsafe.Slice(blocks, int(n)) {
		if p == nil {
			err = skep.Invalidf(op, fmt.Sprintf("block %d", i), "NULL", "an address")
			return
		}
		r.Blocks = append(r.Blocks, skep.Block{Key: list[i], Parts: []skep.Part{{Bytes: unsafe.Slice((*byte)(p), int(blockBytes))}}})
	}
	ctx, cancel := within(0)
	defer cancel()
	var res []skep.PutResult
	if res, err = o.put(ctx, r); err == nil {
		to := unsafe.Slice(outcomes, int(n))
		for i := range res {
			to[i] = C.uint8_t(res[i].Outcome)
		}
	}
	return
}

//export skepgo_lookup
func skepgo_lookup(s C.skep_store, sc *C.skep_scope, keys unsafe.Pointer, n C.uint32_t, leaseMs C.int64_t,
	out *C.skep_found, e *C.skep_error) C.int {
	return skepgo_lookup_within(s, sc, keys, n, leaseMs, 0, out, e)
}

//export skepgo_lookup_within
func skepgo_lookup_within(s C.skep_store, sc *C.skep_scope, keys unsafe.Pointer, n C.uint32_t, leaseMs, timeoutMs C.int64_t,
	out *C.skep_found, e *C.skep_error) (rc C.int) {
	var err error
	defer func() { rc = fail(e, &err) }()
	var o *opened
	r := &skep.LookupRequest{Lease: leaseOf(leaseMs)}
	if o, err = find(s); err != nil {
		return
	}
	if r.Scope, err = scopeOf(sc); err != nil {
		return
	}
	if r.Keys, err = keysOf(keys, n); err != nil {
		return
	}
	if out == nil {
		err = errNowhere
		return
	}
	ctx, cancel := within(timeoutMs)
	defer cancel()
	var f skep.LookupResult
	if f, err = o.lookup(ctx, r); err == nil {
		*out = C.skep_found{C.int64_t(f.Blocks), C.int64_t(f.Tokens), C.int64_t(f.Bytes), C.uint64_t(f.Lease.ID)}
	}
	return
}

// leaseOf is how long a lookup of so many milliseconds leases; below 0: not at all.
func leaseOf(ms C.int64_t) time.Duration {
	if ms < 0 {
		return skep.NoLease
	}
	return min(time.Duration(min(int64(ms), 1<<40))*time.Millisecond, skep.MaxLease)
}

//export skepgo_release
func skepgo_release(s C.skep_store, lease C.uint64_t, e *C.skep_error) (rc C.int) {
	var err error
	defer func() { rc = fail(e, &err) }()
	var o *opened
	if o, err = find(s); err == nil {
		ctx, cancel := within(0)
		defer cancel()
		err = o.Release(ctx, skep.LeaseID(lease))
	}
	return
}

//export skepgo_restore
func skepgo_restore(s C.skep_store, sc *C.skep_scope, keys unsafe.Pointer, n, from, to C.uint32_t, dest *C.skep_paged,
	on C.skep_stream, timeoutMs C.int64_t, blocks *C.uint32_t, e *C.skep_error) C.int {
	return skepgo_restore_layers(s, sc, keys, n, from, to, 0, 0, dest, on, timeoutMs, blocks, e)
}

//export skepgo_restore_layers
func skepgo_restore_layers(s C.skep_store, sc *C.skep_scope, keys unsafe.Pointer, n, from, to, first, last C.uint32_t,
	dest *C.skep_paged, on C.skep_stream, timeoutMs C.int64_t, blocks *C.uint32_t, e *C.skep_error) (rc C.int) {
	var err error
	defer func() { rc = fail(e, &err) }()
	var o *opened
	var scope skep.Scope
	var list []skep.Key
	if o, err = find(s); err != nil {
		return
	}
	if scope, err = scopeOf(sc); err != nil {
		return
	}
	if list, err = keysOf(keys, n); err != nil {
		return
	}
	if blocks == nil {
		err = errNowhere
		return
	}
	var restore func(context.Context) (int, error)
	if restore, err = o.restoreOf(scope, list, from, to, layersOf(first, last), dest, on); err != nil {
		return
	}
	ctx, cancel := within(timeoutMs)
	defer cancel()
	arrived, err := restore(ctx)
	*blocks = C.uint32_t(arrived)
	return
}

// layersOf are layers [from, to), 0 and 0 all.
func layersOf(from, to C.uint32_t) skep.Subset {
	if from == 0 && to == 0 {
		return skep.All
	}
	return skep.Only(int(from), int(to))
}

// restoreOf is a restore into an engine's paged cache, to be done. The thread that calls this has the current CUDA
// context of a default stream.
func (o *opened) restoreOf(scope skep.Scope, keys []skep.Key, from, to C.uint32_t, only skep.Subset,
	dest *C.skep_paged, on C.skep_stream) (func(context.Context) (int, error), error) {
	if dest == nil || dest.k == nil || dest.slots == nil {
		return nil, errNowhere
	}
	blocks := skep.Range{From: int(from), To: int(to)}
	if from >= to || blocks.To > len(keys) {
		return nil, skep.Invalidf(op, "blocks", blocks, fmt.Sprintf("in 0 to %d", len(keys)))
	}
	d := *dest
	st, err := streamOf(&d, on)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) (int, error) {
		t, err := o.targetOf(ctx, scope.Namespace, &d, blocks.Len(), only, st)
		if err != nil {
			return 0, err
		}
		g, err := o.geometry(ctx, scope.Namespace)
		if err != nil {
			return 0, err
		}
		return o.restore(ctx, scope, keys, blocks, g, t)
	}, nil
}

// stream is an engine's stream, with the context of a GPU's.
type stream struct {
	number uint64
	cuda   unsafe.Pointer
}

// ofEachThread refuses a stream that each thread has for itself, where threads of the library's copy.
func ofEachThread(d *C.skep_paged, on C.skep_stream) error {
	const perThread = 2 // CU_STREAM_PER_THREAD
	if d != nil && d.where == C.SKEP_CUDA && on == perThread {
		return skep.Invalidf(op, "stream", perThread,
			"one of cuStreamCreate, or 0 or 1, the legacy default: 2 is each thread's own, and other threads copy")
	}
	return nil
}

func streamOf(d *C.skep_paged, on C.skep_stream) (s stream, err error) {
	s.number = uint64(on)
	if d.where == C.SKEP_CUDA {
		s.cuda, err = contextOf(s.number)
	}
	return s, err
}

// targetOf makes sure of what the caller says of its cache, of which it uses the planes of some layers.
func (o *opened) targetOf(
	ctx context.Context, id skep.NamespaceID, d *C.skep_paged, blocks int, only skep.Subset, on stream,
) (*target, error) {
	g, err := o.geometry(ctx, id)
	if err != nil {
		return nil, err
	}
	s := g.Shape()
	if int(d.layers) != s.Layers || s.Kind == skep.Attention && d.v == nil {
		return nil, skep.Invalidf(op, "planes of layers", int(d.layers), fmt.Sprintf("%d, of K and, in an attention shape, V", s.Layers))
	}
	layers, ok := only.In(s.Layers)
	if !ok {
		return nil, skep.Invalidf(op, "layers", only, fmt.Sprintf("in 0 to %d", s.Layers))
	}
	t := &target{only: only, Pages: slots.Pages{Order: skep.AxisOrder(d.order), Tokens: int(d.page_tokens),
		Stride: int64(d.page_stride), Bytes: int64(d.plane_bytes)}}
	t.slots = unsafe.Slice((*int64)(unsafe.Pointer(d.slots)), blocks*s.BlockTokens)
	planes := [2][]C.uint64_t{slices.Clone(unsafe.Slice(d.k, int(d.layers))), nil}
	if d.v != nil {
		planes[1] = slices.Clone(unsafe.Slice(d.v, int(d.layers)))
	}
	at := func(layer int, v bool) uint64 {
		if v {
			return uint64(planes[1][layer])
		}
		return uint64(planes[0][layer])
	}
	if d.where != C.SKEP_DEVICE {
		for _, p := range planes {
			for l := layers.From; l < min(layers.To, len(p)); l++ {
				if p[l] == 0 {
					return nil, skep.Invalidf(op, fmt.Sprintf("plane of layer %d", l), "NULL", "an address")
				}
			}
		}
	}
	switch d.where {
	case C.SKEP_HOST:
		t.write = func(layer int, v bool, block []byte, runs []slots.Run) error {
			plane := hostMemory(at(layer, v), t.Bytes)
			for _, r := range runs {
				copy(plane[r.To:r.To+r.Len], block[r.From:r.From+r.Len])
			}
			return nil
		}
		return t, nil
	case C.SKEP_CUDA:
		o.toCUDA(t, at, on)
		return t, nil
	case C.SKEP_DEVICE:
		st, err := o.stream(on.number)
		if err != nil {
			return nil, err
		}
		places := [2][]gpu.Place{make([]gpu.Place, len(planes[0])), make([]gpu.Place, len(planes[1]))}
		for i, p := range planes {
			for l := layers.From; l < min(layers.To, len(p)); l++ {
				if places[i][l], err = o.place(uint64(p[l]), t.Bytes); err != nil {
					return nil, err
				}
			}
		}
		t.on = st
		t.direct = func(dst []gpu.Run, layer int, v bool, runs []slots.Run) []gpu.Run {
			plane := places[0]
			if v {
				plane = places[1]
			}
			for _, r := range runs {
				dst = append(dst, gpu.Run{From: r.From, To: gpu.Place{Memory: plane[layer].Memory, Offset: plane[layer].Offset + r.To}, Len: r.Len})
			}
			return dst
		}
		return t, nil
	}
	return nil, skep.Invalidf(op, "where", uint32(d.where), "host, device or CUDA")
}

// toCUDA has t write to an engine's GPU, behind what its stream has to do.
func (o *opened) toCUDA(t *target, at func(layer int, v bool) uint64, on stream) {
	var land *landing
	t.take = func(ctx context.Context, n int64) (_ *room, err error) {
		if land, err = o.land.take(ctx, on.cuda, n); err != nil {
			return nil, err
		}
		l := land
		return &room{bytes: l.bytes, queued: func() error { return o.land.queued(l, on.number) },
			back: func() { o.land.back(l) }, lose: func() { o.land.lose(l) }, hung: func() { o.land.hung(l) }}, nil
	}
	t.write = func(layer int, v bool, block []byte, runs []slots.Run) error {
		plane := at(layer, v)
		for _, r := range runs {
			if err := land.copyIn(on.number, plane+uint64(r.To), block[r.From:r.From+r.Len]); err != nil {
				return err
			}
		}
		return nil
	}
}

// hostMemory is memory of the caller's.
func hostMemory(address uint64, n int64) []byte {
	return unsafe.Slice(*(**byte)(unsafe.Pointer(&address)), int(n))
}

//export skepgo_device_alloc
func skepgo_device_alloc(s C.skep_store, n C.int64_t, address *C.uint64_t, e *C.skep_error) (rc C.int) {
	var err error
	defer func() { rc = fail(e, &err) }()
	var o *opened
	if o, err = find(s); err != nil {
		return
	}
	if address == nil {
		err = errNowhere
		return
	}
	var at uint64
	if at, err = o.alloc(int64(n)); err == nil {
		*address = C.uint64_t(at)
	}
	return
}

//export skepgo_device_free
func skepgo_device_free(s C.skep_store, address C.uint64_t, e *C.skep_error) (rc C.int) {
	var err error
	defer func() { rc = fail(e, &err) }()
	var o *opened
	if o, err = find(s); err == nil {
		err = o.free(uint64(address))
	}
	return
}

//export skepgo_device_read
func skepgo_device_read(s C.skep_store, address C.uint64_t, n C.int64_t, to unsafe.Pointer, e *C.skep_error) (rc C.int) {
	var err error
	defer func() { rc = fail(e, &err) }()
	var o *opened
	var at gpu.Place
	if o, err = find(s); err != nil {
		return
	}
	if to == nil || n < 0 {
		err = errNowhere
		return
	}
	if at, err = o.place(uint64(address), int64(n)); err != nil {
		return
	}
	err = o.atOnce(func(st gpu.Stream) { st.CopyOut(unsafe.Slice((*byte)(to), int(n)), at) })
	return
}

//export skepgo_stream_new
func skepgo_stream_new(s C.skep_store, out *C.skep_stream, e *C.skep_error) (rc C.int) {
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
	var id uint64
	if id, err = o.newStream(); err == nil {
		*out = C.skep_stream(id)
	}
	return
}

//export skepgo_stream_sync
func skepgo_stream_sync(s C.skep_store, id C.skep_stream, timeoutMs C.int64_t, e *C.skep_error) (rc C.int) {
	var err error
	defer func() { rc = fail(e, &err) }()
	var o *opened
	var st gpu.Stream
	if o, err = find(s); err != nil {
		return
	}
	if st, err = o.stream(uint64(id)); err == nil {
		ctx, cancel := within(timeoutMs)
		defer cancel()
		err = st.Sync(ctx)
	}
	return
}

//export skepgo_stream_free
func skepgo_stream_free(s C.skep_store, id C.skep_stream, e *C.skep_error) (rc C.int) {
	var err error
	defer func() { rc = fail(e, &err) }()
	var o *opened
	if o, err = find(s); err == nil {
		err = o.freeStream(uint64(id))
	}
	return
}
