package sim

import (
	"unsafe"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/gpu"
)

var _ gpu.Pinner = (*Device)(nil)

// pinned is host memory a driver would keep in place. Here it is memory like any other, and
// only counted: what nobody gives back shows.
type pinned struct {
	bytes int
	own   bool // of AllocHost
}

const page = 4096

// AllocHost implements gpu.Pinner: whole pages, as a driver gives.
func (d *Device) AllocHost(n int64) ([]byte, error) {
	d.w.mu.Lock()
	defer d.w.mu.Unlock()
	if err := d.usable(); err != nil {
		return nil, err
	}
	if n < 1 || n > 1<<40 {
		return nil, skep.Invalidf("allocate pinned memory", "bytes", n, "1 to 1 TiB")
	}
	d.pins++
	if d.pins == d.failPin {
		return nil, &skep.Error{Op: "allocate pinned memory", Kind: skep.NoMemory, Field: "bytes", Value: n}
	}
	b := make([]byte, n+page-1)
	skip := int64(-uintptr(unsafe.Pointer(unsafe.SliceData(b))) & (page - 1))
	b = b[skip : skip+n : skip+n]
	d.pin(b, true)
	return b, nil
}

func (d *Device) pin(b []byte, own bool) {
	if d.pinned == nil {
		d.pinned = map[*byte]pinned{}
	}
	d.pinned[unsafe.SliceData(b)] = pinned{len(b), own}
}

// Pin implements gpu.Pinner.
func (d *Device) Pin(b []byte) error {
	d.w.mu.Lock()
	defer d.w.mu.Unlock()
	if err := d.usable(); err != nil {
		return err
	}
	if len(b) == 0 {
		return skep.Invalidf("pin memory", "bytes", 0, "1 or more")
	}
	d.pin(b, false)
	return nil
}

// Unpin implements gpu.Pinner. Memory of AllocHost is poisoned: who still reads it sees that.
func (d *Device) Unpin(b []byte) error {
	d.w.mu.Lock()
	defer d.w.mu.Unlock()
	p, ok := d.pinned[unsafe.SliceData(b)]
	if d.closed {
		return nil // Close gave it back
	}
	if !ok || len(b) == 0 || p.bytes != len(b) {
		return skep.Invalidf("unpin memory", "memory", len(b), "what AllocHost or Pin made, whole")
	}
	delete(d.pinned, unsafe.SliceData(b))
	if p.own {
		for i := range b {
			b[i] = poison
		}
	}
	return nil
}

// FailPin makes the n-th allocation of pinned memory from now fail.
func (d *Device) FailPin(n int) {
	d.w.mu.Lock()
	defer d.w.mu.Unlock()
	d.failPin = d.pins + n
}

// Pinned is how many bytes of host memory are pinned.
func (d *Device) Pinned() (n int) {
	d.w.mu.Lock()
	defer d.w.mu.Unlock()
	for _, p := range d.pinned {
		n += p.bytes
	}
	return n
}

// Left is how many things of all devices nobody has given back: memory, pinned memory, streams.
func (w *World) Left() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := len(w.streams)
	for _, d := range w.devices {
		n += d.memories + len(d.pinned)
	}
	return n
}
