//go:build cuda && cgo && linux

package cuda

/*
#include "driver.h"
*/
import "C"

import (
	"cmp"
	"slices"
	"sync/atomic"
	"unsafe"

	"gorgonia.org/cu"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/gpu"
)

// memory is device memory: of cuMemAlloc (no handle), mapped (with one), or opened by a
// Handle (foreign without one).
type memory struct {
	device  *device
	at      uint64
	n, size int64
	handle  uint64
	foreign bool
	freed   atomic.Bool
}

func (m *memory) Size() int64 { return m.size }

// mapped maps the memory of m.handle for all devices that may use it. On failure it is gone.
func (m *memory) mapped() result {
	d := m.device
	r := result(C.skep_map(d.c(), C.uint64_t(m.handle), C.size_t(m.size), (*C.uint64_t)(&m.at)))
	if r != success {
		_ = C.skep_release(d.c(), C.uint64_t(m.handle))
		return r
	}
	d.mu.Lock()
	reach := make([]int, 0, len(d.reach))
	for number := range d.reach {
		reach = append(reach, number)
	}
	d.mu.Unlock()
	for _, number := range reach {
		if r := result(C.skep_access(d.c(), C.uint64_t(m.at), C.size_t(m.size), C.int(number))); r != success {
			_ = m.release()
			return r
		}
	}
	return success
}

func (m *memory) release() result {
	d := m.device
	switch {
	case m.handle != 0:
		return result(C.skep_unmap(d.c(), C.uint64_t(m.handle), C.uint64_t(m.at), C.size_t(m.size)))
	case m.foreign:
		return result(C.skep_ipc_close(d.c(), C.uint64_t(m.at)))
	}
	return d.in(func() error { return cu.MemFree(cu.DevicePtr(m.at)) })
}

// Free implements gpu.Memory.
func (m *memory) Free() error {
	if m.freed.Swap(true) {
		return &skep.Error{Op: "free GPU memory", Kind: skep.Invalid, Field: "memory", Value: "freed twice", Limit: "once"}
	}
	d := m.device
	d.mu.Lock()
	gone := d.closed || d.failed != nil
	delete(d.memories, m)
	d.mu.Unlock()
	if gone { // Close, or the end of the process, gives it back
		return nil
	}
	return d.check("free GPU memory", m.release())
}

// address is where n bytes of a place are, for streams of d. What it refuses is what the
// driver would call an illegal address.
func (d *device) address(p gpu.Place, n int64) (uint64, error) {
	illegal := func(what string) error {
		return &skep.Error{Op: "GPU", Kind: skep.DeviceFailed, Field: "illegal address", Value: what}
	}
	m, _ := p.Memory.(*memory)
	switch {
	case m == nil:
		return 0, illegal("no memory of a CUDA device")
	case m.freed.Load():
		return 0, illegal("freed memory")
	case p.Offset < 0 || n < 0 || p.Offset > m.n-n:
		return 0, illegal("out of bounds")
	}
	if m.device != d {
		d.mu.Lock()
		peer := d.peers[m.device.number]
		d.mu.Unlock()
		if !peer {
			return 0, illegal("memory of a device that is no peer")
		}
		m.device.mu.Lock()
		gone := m.device.closed || m.device.failed != nil
		m.device.mu.Unlock()
		if gone {
			return 0, illegal("memory of a device that failed")
		}
	}
	return m.at + uint64(p.Offset), nil
}

// pinned is host memory the driver keeps in place.
type pinned struct {
	bytes      []byte
	registered bool
}

func addressOf(b []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(b))) }

func (p pinned) release(d *device) result {
	if p.registered {
		return result(C.skep_host_unregister(d.c(), unsafe.Pointer(unsafe.SliceData(p.bytes))))
	}
	return d.freeHost(p.bytes)
}

// allocHost takes pinned memory without noting it.
func (d *device) allocHost(n int64) ([]byte, result) {
	var p unsafe.Pointer
	var at uint64
	r := result(C.skep_host_alloc(d.c(), C.size_t(n), &p, (*C.uint64_t)(&at)))
	if r != success {
		return nil, r
	}
	return unsafe.Slice((*byte)(p), n), success
}

func (d *device) freeHost(b []byte) result {
	return result(C.skep_host_free(d.c(), unsafe.Pointer(unsafe.SliceData(b))))
}

// AllocHost implements gpu.Pinner.
func (d *device) AllocHost(n int64) ([]byte, error) {
	if err := d.usable(); err != nil {
		return nil, err
	}
	if n < 1 || n > 1<<40 {
		return nil, skep.Invalidf("allocate pinned memory", "bytes", n, "1 to 1 TiB")
	}
	b, r := d.allocHost(n)
	if err := d.check("allocate pinned memory", r); err != nil {
		return nil, err
	}
	d.note(pinned{bytes: b})
	return b, nil
}

// Pin implements gpu.Pinner.
func (d *device) Pin(b []byte) error {
	if err := d.usable(); err != nil {
		return err
	}
	if len(b) == 0 {
		return skep.Invalidf("pin memory", "bytes", 0, "1 or more")
	}
	if err := d.check("pin memory", result(C.skep_host_register(d.c(), unsafe.Pointer(unsafe.SliceData(b)), C.size_t(len(b))))); err != nil {
		return err
	}
	d.note(pinned{b, true})
	return nil
}

func (d *device) note(p pinned) {
	d.mu.Lock()
	defer d.mu.Unlock()
	i, _ := slices.BinarySearchFunc(d.pinned, p, func(a, b pinned) int { return cmp.Compare(addressOf(a.bytes), addressOf(b.bytes)) })
	d.pinned = slices.Insert(d.pinned, i, p)
}

// Unpin implements gpu.Pinner.
func (d *device) Unpin(b []byte) error {
	d.mu.Lock()
	i := slices.IndexFunc(d.pinned, func(p pinned) bool { return addressOf(p.bytes) == addressOf(b) && len(p.bytes) == len(b) })
	if i < 0 || len(b) == 0 {
		d.mu.Unlock()
		return skep.Invalidf("unpin memory", "memory", len(b), "what AllocHost or Pin made, whole")
	}
	p := d.pinned[i]
	d.pinned = slices.Delete(d.pinned, i, i+1)
	d.mu.Unlock()
	return d.check("unpin memory", p.release(d))
}

// direct says that b lies in one piece of pinned memory.
func (d *device) direct(b []byte) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	at := addressOf(b)
	i, found := slices.BinarySearchFunc(d.pinned, at, func(p pinned, at uintptr) int { return cmp.Compare(addressOf(p.bytes), at) })
	if !found {
		i--
	}
	if i < 0 {
		return false
	}
	p := d.pinned[i].bytes
	return at >= addressOf(p) && at-addressOf(p)+uintptr(len(b)) <= uintptr(len(p))
}
