//go:build cuda && cgo && linux

package cuda

/*
#include "driver.h"
*/
import "C"

import (
	"fmt"
	"os"
	"sync"

	"gorgonia.org/cu"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/gpu"
	"github.com/skepkv/skep/layout/elastic"
)

// device is a GPU of this process.
type device struct {
	number  int
	name    string
	device  cu.Device
	context cu.CUContext
	total   int64
	limit   int64 // of staging
	spin    cu.Function
	module  cu.Module

	mu       sync.Mutex
	failed   error
	closed   bool
	peers    map[int]bool // devices whose memory it may use, by number
	reach    map[int]bool // devices that may use its memory
	memories map[*memory]struct{}
	streams  map[*stream]struct{}
	pinned   []pinned // by address
	slots    []uint64 // free counters
	pages    [][]byte // of counters
	stages   stages
}

var (
	_ gpu.Sharer  = (*device)(nil)
	_ gpu.Pinner  = (*device)(nil)
	_ gpu.Handler = (*device)(nil)
)

// alive keeps devices, and the memory their queues name, until they are closed.
var alive sync.Map

// attributes a device must have, by the driver's numbers: either of a pair.
var needed = []struct {
	name string
	ids  [2]int
}{
	{"64-bit waits and writes on streams", [2]int{122, 93}},
	{"unified addressing", [2]int{41, 41}},
}

// Count is how many GPUs there are.
func Count() (int, error) {
	n, err := cu.NumDevices()
	return n, failure("count GPUs", resultOf(err))
}

// Open opens a GPU by its number, from 0. Invalid when there is none of that number,
// Unsupported when it lacks something that skep needs. Close gives it back.
func Open(number int, o Options) (gpu.Device, error) {
	const op = "open GPU"
	load()
	n, err := Count()
	switch {
	case err != nil:
		return nil, err
	case number < 0 || number >= n:
		return nil, skep.Invalidf(op, "number", number, fmt.Sprintf("0 to %d", n-1))
	case o.StagingBytes < 0 || o.StagingBytes > 0 && o.StagingBytes < maxStage:
		return nil, skep.Invalidf(op, "staging bytes", o.StagingBytes, fmt.Sprintf("0, or at least %d", maxStage))
	}
	d := &device{number: number, limit: o.StagingBytes, peers: map[int]bool{number: true}, reach: map[int]bool{number: true},
		memories: map[*memory]struct{}{}, streams: map[*stream]struct{}{}}
	if d.limit == 0 {
		d.limit = 256 << 20
	}
	if d.device, err = cu.GetDevice(number); err != nil {
		return nil, failure(op, resultOf(err))
	}
	if d.name, err = d.device.Name(); err == nil {
		d.total, err = d.device.TotalMem()
	}
	if err != nil {
		return nil, failure(op, resultOf(err))
	}
	for _, a := range needed {
		has, _ := d.device.Attribute(cu.DeviceAttribute(a.ids[0]))
		old, _ := d.device.Attribute(cu.DeviceAttribute(a.ids[1]))
		if has == 0 && old == 0 {
			return nil, &skep.Error{Op: op, Kind: skep.Unsupported, Field: a.name, Value: "not there on " + d.name, Limit: "there"}
		}
	}
	if d.context, err = d.device.RetainPrimaryCtx(); err != nil {
		return nil, failure(op, resultOf(err))
	}
	r := d.in(func() (err error) {
		if d.module, err = cu.LoadData(spinKernel); err == nil {
			d.spin, err = d.module.Function("skep_spin")
		}
		return err
	})
	if r != success {
		_ = d.device.ReleasePrimaryCtx()
		return nil, failure(op, r)
	}
	alive.Store(d, nil)
	return d, nil
}

// spinKernel keeps one thread busy for a number of nanoseconds.
const spinKernel = `.version 6.0
.target sm_60
.address_size 64
.visible .entry skep_spin(.param .u64 duration)
{
	.reg .u64 %begin, %now, %d;
	.reg .pred %more;
	ld.param.u64 %d, [duration];
	mov.u64 %begin, %globaltimer;
again:
	mov.u64 %now, %globaltimer;
	sub.u64 %now, %now, %begin;
	setp.lt.u64 %more, %now, %d;
	@%more bra again;
	ret;
}
`

// Name implements gpu.Device.
func (d *device) Name() string { return fmt.Sprintf("%s (CUDA device %d)", d.name, d.number) }

// Simulated implements gpu.Device: it says so on the fake driver.
func (d *device) Simulated() bool { return simulated() }

func simulated() bool { return C.skep_simulated() != 0 }

func (d *device) usable() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return &skep.Error{Op: "GPU", Kind: skep.Closed}
	}
	return d.failed
}

// fail notes an error that the device does not recover from. The first counts.
func (d *device) fail(err error) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.failed == nil {
		d.failed = err
	}
	return d.failed
}

// check makes r an error, and the device's own when it lasts.
func (d *device) check(op string, r result) error {
	if r.lasting() {
		return d.fail(failure("GPU", r))
	}
	return failure(op, r)
}

// NewStream implements gpu.Device.
func (d *device) NewStream() (gpu.Stream, error) {
	if err := d.usable(); err != nil {
		return nil, err
	}
	s := &stream{device: d}
	r := d.in(func() (err error) {
		s.stream, err = cu.MakeStream(cu.NonBlocking)
		return err
	})
	if err := d.check("new stream", r); err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.streams[s] = struct{}{}
	return s, nil
}

// EnablePeer implements gpu.Device. The other GPU may be the same one, opened again.
func (d *device) EnablePeer(other gpu.Device) error {
	const op = "enable peer"
	o, ok := other.(*device)
	if !ok {
		return &skep.Error{Op: op, Kind: skep.Unsupported, Field: "device", Value: fmt.Sprintf("%T", other), Limit: "a CUDA device of this process"}
	}
	if err := d.usable(); err != nil {
		return err
	}
	if o.number == d.number {
		return nil
	}
	if can, err := d.device.CanAccessPeer(o.device); err != nil || can == 0 {
		return &skep.Error{Op: op, Kind: skep.Unsupported, Field: "device", Value: o.Name(), Limit: "one it has a link to"}
	}
	r := d.in(func() error { return o.context.EnablePeerAccess(0) })
	if r == peerTwice {
		r = success
	}
	if err := d.check(op, r); err != nil {
		return err
	}
	if err := o.reachedBy(d.number); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.peers[o.number] = true
	return nil
}

// reachedBy lets another device use memory that was mapped here.
func (d *device) reachedBy(number int) error {
	d.mu.Lock()
	d.reach[number] = true
	var list []*memory
	for m := range d.memories {
		if m.handle != 0 {
			list = append(list, m)
		}
	}
	d.mu.Unlock()
	for _, m := range list {
		if err := d.check("enable peer", result(C.skep_access(d.c(), C.uint64_t(m.at), C.size_t(m.size), C.int(number)))); err != nil {
			return err
		}
	}
	return nil
}

// Close implements gpu.Device. What a failed device holds is given back when the process
// ends, if not before.
func (d *device) Close() error {
	d.mu.Lock()
	if d.closed {
		d.mu.Unlock()
		return nil
	}
	if d.failed == nil {
		for s := range d.streams {
			if r := result(C.skep_query(d.c(), raw(s.stream))); r == notReady {
				d.mu.Unlock()
				return &skep.Error{Op: "close GPU", Kind: skep.NotReleased, Field: "work queued", Value: "some"}
			}
		}
	}
	d.closed = true
	streams, memories, pins, pages := d.streams, d.memories, d.pinned, d.pages
	d.streams, d.memories, d.pinned, d.pages = nil, nil, nil, nil
	d.mu.Unlock()
	for s := range streams {
		_ = d.in(s.stream.Destroy)
	}
	for m := range memories {
		_ = m.release()
	}
	d.stages.close(d)
	for _, p := range pins {
		_ = p.release(d)
	}
	for _, p := range pages {
		_ = d.freeHost(p)
	}
	_ = d.in(func() error { return d.module.Unload() })
	_ = d.device.ReleasePrimaryCtx()
	alive.Delete(d)
	return nil
}

// Alloc implements gpu.Device.
func (d *device) Alloc(n int64) (gpu.Memory, error) {
	m, err := d.newMemory(n)
	if err != nil {
		return nil, err
	}
	r := d.in(func() error {
		at, err := cu.MemAlloc(m.size)
		m.at = uint64(at)
		return err
	})
	return d.made(m, r)
}

// newMemory checks what is asked for.
func (d *device) newMemory(n int64) (*memory, error) {
	if err := d.usable(); err != nil {
		return nil, err
	}
	if n < 1 || n > d.total {
		return nil, skep.Invalidf("allocate GPU memory", "bytes", n, fmt.Sprintf("1 to %d", d.total))
	}
	return &memory{device: d, n: n, size: (n + elastic.Granule - 1) / elastic.Granule * elastic.Granule}, nil
}

func (d *device) made(m *memory, r result) (gpu.Memory, error) {
	if r == outOfMemory {
		return nil, &skep.Error{Op: "allocate GPU memory", Kind: skep.NoMemory, Field: "bytes", Value: m.n, Err: r}
	}
	if err := d.check("allocate GPU memory", r); err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.memories[m] = struct{}{}
	return m, nil
}

// AllocShared implements gpu.Sharer.
func (d *device) AllocShared(n int64) (gpu.Memory, *os.File, error) {
	m, err := d.newMemory(n)
	if err != nil {
		return nil, nil, err
	}
	var fd C.int
	r := result(C.skep_create(d.c(), C.int(d.number), C.size_t(m.size), (*C.uint64_t)(&m.handle)))
	if r == success {
		if r = m.mapped(); r == success {
			if r = result(C.skep_export(d.c(), C.uint64_t(m.handle), &fd)); r != success {
				_ = m.release()
			}
		}
	}
	mem, err := d.made(m, r)
	if err != nil {
		return nil, nil, err
	}
	return mem, os.NewFile(uintptr(fd), "GPU memory"), nil
}

// Import implements gpu.Sharer.
func (d *device) Import(f *os.File, n int64) (gpu.Memory, error) {
	m, err := d.newMemory(n)
	if err != nil {
		return nil, err
	}
	m.foreign = true
	r := result(C.skep_import(d.c(), C.int(f.Fd()), (*C.uint64_t)(&m.handle)))
	if r == success {
		r = m.mapped()
	}
	if r == invalidValue || r == badHandle || r == 304 || r == 999 { // what drivers say of other files
		return nil, &skep.Error{Op: "import GPU memory", Kind: skep.Invalid, Field: "file", Value: f.Name(), Limit: fmt.Sprintf("%d bytes of shared GPU memory", n), Err: r}
	}
	return d.made(m, r)
}

// Handle implements gpu.Handler.
func (d *device) Handle(mem gpu.Memory) (h gpu.Handle, err error) {
	const op = "name GPU memory"
	m, ok := mem.(*memory)
	if !ok || m.device != d || m.handle != 0 || m.foreign {
		return h, &skep.Error{Op: op, Kind: skep.Unsupported, Field: "memory", Value: "not of Alloc", Limit: "memory that Alloc of this device made"}
	}
	if err := d.usable(); err != nil {
		return h, err
	}
	var c C.skep_ipc
	if err := d.check(op, result(C.skep_ipc_get(d.c(), C.uint64_t(m.at), &c))); err != nil {
		return h, err
	}
	for i := range h {
		h[i] = byte(c.reserved[i])
	}
	return h, nil
}

// Open implements gpu.Handler.
func (d *device) Open(h gpu.Handle, n int64) (gpu.Memory, error) {
	m, err := d.newMemory(n)
	if err != nil {
		return nil, err
	}
	m.foreign = true
	var c C.skep_ipc
	for i := range h {
		c.reserved[i] = C.char(h[i])
	}
	return d.made(m, result(C.skep_ipc_open(d.c(), &c, (*C.uint64_t)(&m.at))))
}
