package sim

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/gpu"
	"github.com/skepkv/skep/layout/elastic"
)

// poison is what memory holds that nobody wrote to since it was allocated or freed.
const poison = 0xA5

// Device is a simulated GPU.
type Device struct {
	w      *World
	index  int
	used   int64
	peers  map[int]bool
	failed error
	closed bool

	// Faults, for tests.
	allocs   int
	failNth  int  // the allocation that fails; 0 none
	pins     int  // allocations of pinned memory
	failPin  int  // the one that fails; 0 none
	flip     bool // a bit of the next copy
	pinned   map[*byte]pinned
	memories int // allocated or imported, and not freed
}

func sticky(what string) error {
	return &skep.Error{Op: "GPU", Kind: skep.DeviceFailed, Field: "illegal address", Value: what}
}

// Name implements gpu.Device.
func (d *Device) Name() string { return fmt.Sprintf("simulated GPU %d", d.index) }

// Simulated implements gpu.Device.
func (d *Device) Simulated() bool { return true }

// Alloc implements gpu.Device.
func (d *Device) Alloc(n int64) (gpu.Memory, error) {
	d.w.mu.Lock()
	defer d.w.mu.Unlock()
	if err := d.usable(); err != nil {
		return nil, err
	}
	if n < 1 || n > d.w.options.MemoryBytes {
		return nil, skep.Invalidf("allocate GPU memory", "bytes", n, fmt.Sprintf("1 to %d", d.w.options.MemoryBytes))
	}
	size := (n + elastic.Granule - 1) / elastic.Granule * elastic.Granule
	d.allocs++
	if d.used+size > d.w.options.MemoryBytes || d.allocs == d.failNth {
		return nil, &skep.Error{Op: "allocate GPU memory", Kind: skep.NoMemory, Field: "bytes", Value: n, Limit: d.w.options.MemoryBytes - d.used}
	}
	d.used += size
	d.memories++
	m := &memory{device: d, size: size, data: make([]byte, n)}
	m.poison()
	return m, nil
}

func (d *Device) usable() error {
	switch {
	case d.closed:
		return &skep.Error{Op: "GPU", Kind: skep.Closed}
	default:
		return d.failed
	}
}

// NewStream implements gpu.Device.
func (d *Device) NewStream() (gpu.Stream, error) {
	d.w.mu.Lock()
	defer d.w.mu.Unlock()
	if err := d.usable(); err != nil {
		return nil, err
	}
	s := &stream{device: d}
	d.w.streams = append(d.w.streams, s)
	return s, nil
}

// NewCounter implements gpu.Device.
func (d *Device) NewCounter() (gpu.Counter, error) {
	d.w.mu.Lock()
	defer d.w.mu.Unlock()
	if err := d.usable(); err != nil {
		return nil, err
	}
	return &counter{device: d}, nil
}

// EnablePeer implements gpu.Device.
func (d *Device) EnablePeer(other gpu.Device) error {
	o, ok := other.(*Device)
	if !ok || o.w != d.w {
		return &skep.Error{Op: "enable peer", Kind: skep.Unsupported, Field: "device", Value: other.Name()}
	}
	d.w.mu.Lock()
	defer d.w.mu.Unlock()
	if err := d.usable(); err != nil {
		return err
	}
	d.peers[o.index] = true
	return nil
}

// Close implements gpu.Device.
func (d *Device) Close() error {
	d.w.mu.Lock()
	defer d.w.mu.Unlock()
	for _, s := range d.w.streams {
		if s.device == d && len(s.queue) > 0 && d.failed == nil {
			return &skep.Error{Op: "close GPU", Kind: skep.NotReleased, Field: "work queued", Value: len(s.queue)}
		}
	}
	d.closed, d.memories, d.pinned = true, 0, nil
	d.w.streams = slices.DeleteFunc(d.w.streams, func(s *stream) bool { return s.device == d })
	return nil
}

// Fail makes the device fail as a sticky error does: what is queued has no effect.
func (d *Device) Fail(err error) {
	d.w.mu.Lock()
	defer d.w.mu.Unlock()
	d.failed = err
}

// FailAlloc makes the n-th allocation from now fail.
func (d *Device) FailAlloc(n int) {
	d.w.mu.Lock()
	defer d.w.mu.Unlock()
	d.failNth = d.allocs + n
}

// FlipBit flips a bit in the next copy a stream of this device writes.
func (d *Device) FlipBit() {
	d.w.mu.Lock()
	defer d.w.mu.Unlock()
	d.flip = true
}

// Revoke takes memory away from every other device when their copies have touched it so many
// times more, in the middle of one: what a lender's death does to a borrower.
func (d *Device) Revoke(m gpu.Memory, touches int) {
	d.w.mu.Lock()
	defer d.w.mu.Unlock()
	k := m.(*memory)
	k.revoking, k.touches = true, touches
}

// Hang stops the device's streams for good.
func (d *Device) Hang() {
	d.w.mu.Lock()
	defer d.w.mu.Unlock()
	for _, s := range d.w.streams {
		s.hung = s.hung || s.device == d
	}
}

type memory struct {
	device   *Device
	size     int64
	data     []byte
	freed    bool
	revoking bool // after so many touches
	touches  int
	imported bool         // another process's
	unmap    func() error // of memory shared between processes
}

func (m *memory) poison() {
	for i := range m.data {
		m.data[i] = poison
	}
}

func (m *memory) Size() int64 { return m.size }

func (m *memory) Free() error {
	m.device.w.mu.Lock()
	defer m.device.w.mu.Unlock()
	if m.freed {
		return &skep.Error{Op: "free GPU memory", Kind: skep.Invalid, Field: "memory", Value: "freed twice", Limit: "once"}
	}
	m.freed = true
	if !m.device.closed {
		m.device.memories--
	}
	if !m.imported {
		m.poison()
		m.device.used -= m.size
	}
	if m.unmap != nil {
		m.data = nil // copies that come late find no memory: reachable says so first
		return m.unmap()
	}
	return nil
}

// span is what a copy reads or writes: host memory, or a part of a device's.
type span struct {
	memory *memory
	off, n int64
	host   []byte
}

func (s span) bytes() []byte {
	if s.memory == nil {
		return s.host
	}
	return s.memory.data[s.off : s.off+s.n]
}

// len is how many bytes it has, those of memory that is gone too.
func (s span) len() int64 {
	if s.memory == nil {
		return int64(len(s.host))
	}
	return s.n
}

func (s span) place() int {
	if s.memory == nil {
		return host
	}
	return s.memory.device.index
}

// Bytes is what device memory holds, for kernels of tests: to be called by Compute's touch.
func Bytes(p gpu.Place, n int64) []byte {
	return span{memory: p.Memory.(*memory), off: p.Offset, n: n}.bytes()
}

type stream struct {
	device *Device
	queue  []*op
	hung   bool
	closed bool
}

// add queues o; what it cannot do is the device's sticky error.
func (s *stream) add(o *op, spans ...span) {
	w := s.device.w
	w.mu.Lock()
	defer w.mu.Unlock()
	o.stream = s
	for _, p := range spans {
		if m := p.memory; m != nil && (p.off < 0 || p.n < 0 || p.off > int64(len(m.data))-p.n) && s.device.failed == nil {
			s.device.failed = sticky(fmt.Sprintf("%d bytes at %d of %d", p.n, p.off, len(m.data)))
		}
	}
	if s.device.failed == nil && !s.closed && !s.device.closed {
		s.queue = append(s.queue, o)
	}
}

func at(p gpu.Place, n int64) span {
	m, _ := p.Memory.(*memory)
	if m == nil {
		return span{memory: &memory{device: &Device{index: -2}}, off: 1, n: n} // of no device: out of bounds
	}
	return span{memory: m, off: p.Offset, n: n}
}

// CopyIn implements gpu.Stream. The source is read late.
func (s *stream) CopyIn(to gpu.Place, from []byte) {
	dst := at(to, int64(len(from)))
	s.add(&op{kind: opCopy, to: dst, from: span{host: from}}, dst)
}

// CopyOut implements gpu.Stream.
func (s *stream) CopyOut(to []byte, from gpu.Place) {
	src := at(from, int64(len(to)))
	s.add(&op{kind: opCopy, to: span{host: to}, from: src}, src)
}

// Copy implements gpu.Stream.
func (s *stream) Copy(to, from gpu.Place, n int64) {
	dst, src := at(to, n), at(from, n)
	s.add(&op{kind: opCopy, to: dst, from: src}, dst, src)
}

// Wait implements gpu.Stream.
func (s *stream) Wait(c gpu.Counter, v uint64) { s.count(opWait, c, v) }

// Signal implements gpu.Stream.
func (s *stream) Signal(c gpu.Counter, v uint64) { s.count(opSignal, c, v) }

func (s *stream) count(kind opKind, c gpu.Counter, v uint64) {
	k, ok := c.(*counter)
	if !ok {
		s.device.Fail(sticky("no counter of a simulated device"))
		return
	}
	s.add(&op{kind: kind, counter: k, value: v})
}

// Compute implements gpu.Stream.
func (s *stream) Compute(d time.Duration, touch func()) {
	s.add(&op{kind: opCompute, lasts: d, compute: touch})
}

// Hang stops the stream for good.
func Hang(s gpu.Stream) {
	st := s.(*stream)
	st.device.w.mu.Lock()
	defer st.device.w.mu.Unlock()
	st.hung = true
}

// Sync implements gpu.Stream.
func (s *stream) Sync(ctx context.Context) error {
	w := s.device.w
	w.mu.Lock()
	var last *op
	if n := len(s.queue); n > 0 {
		last = s.queue[n-1]
	}
	w.mu.Unlock()
	return w.until(ctx, func() (bool, error) {
		if s.device.failed != nil {
			return true, s.device.failed
		}
		for _, o := range s.queue {
			if o == last {
				return false, nil
			}
		}
		return true, nil
	})
}

// Close implements gpu.Stream.
func (s *stream) Close() error {
	w := s.device.w
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(s.queue) > 0 && s.device.failed == nil {
		return &skep.Error{Op: "close stream", Kind: skep.NotReleased, Field: "work queued", Value: len(s.queue)}
	}
	s.closed = true
	for i, o := range w.streams {
		if o == s {
			w.streams = append(w.streams[:i], w.streams[i+1:]...)
			break
		}
	}
	return nil
}

type counter struct {
	device *Device
	value  uint64
}

func (c *counter) Value() uint64 {
	c.device.w.mu.Lock()
	defer c.device.w.mu.Unlock()
	return c.value
}

func (c *counter) Await(ctx context.Context, v uint64) error {
	return c.device.w.until(ctx, func() (bool, error) { return c.value >= v, c.device.failed })
}

func (c *counter) Close() error { return nil }
