package device

import (
	"maps"
	"sync/atomic"

	"github.com/skepkv/skep/store/internal/locks"
)

// memoryWorkers is enough to show concurrency bugs of a caller, which is what a
// memory device is for.
const memoryWorkers = 4

// memoryChunk is the unit in which a memory device takes memory.
const memoryChunk = 32 << 10

// Memory is a device in DRAM. Bytes never written read as zeros and take no
// memory, so a device much larger than the machine is fine. It loses everything
// when it is closed; a Flush does nothing. Wrap it in a Fault for crashes.
type Memory struct {
	*pool
	store *memoryStore
}

type memoryStore struct {
	mu     locks.RWMutex[locks.DeviceMemory]
	chunks map[int64]*memoryBytes // by offset / memoryChunk
}

// memoryBytes is one chunk, of one device or, since a Clone, of several: then who writes takes a copy first.
type memoryBytes struct {
	bytes  []byte
	shared atomic.Bool
}

// NewMemory makes a device of size bytes, rounded up to Align.
func NewMemory(size int64) *Memory {
	return newMemory(size, &memoryStore{chunks: map[int64]*memoryBytes{}})
}

func newMemory(size int64, s *memoryStore) *Memory {
	size = (max(size, 0) + Align - 1) &^ (Align - 1)
	info := Info{Path: "memory", Backend: "memory"}
	return &Memory{pool: newPool(s, info, size, memoryWorkers, Options{}), store: s}
}

// Clone returns a new, open device with the same bytes and size. Writes that are
// in flight are in it or not. It costs little: the two share what neither has written since.
func (m *Memory) Clone() *Memory {
	m.store.mu.RLock()
	defer m.store.mu.RUnlock()
	c := &memoryStore{chunks: maps.Clone(m.store.chunks)}
	for _, b := range c.chunks {
		b.shared.Store(true)
	}
	return newMemory(m.Size(), c)
}

// Bytes returns a copy of the whole device.
func (m *Memory) Bytes() []byte {
	b := AlignedBuffer(int(m.Size()))
	m.store.read(b, 0)
	return b
}

// Poke changes bytes behind the device's back, at any offset and length within
// it, and Peek returns some: damage and inspection for tests, aligned to nothing.
// Both ignore what lies outside the device.
func (m *Memory) Poke(off int64, b []byte) {
	if off, b = m.clip(off, b); len(b) > 0 {
		m.store.write(b, off)
	}
}

// Peek fills b from offset off; see Poke.
func (m *Memory) Peek(off int64, b []byte) {
	if off, b = m.clip(off, b); len(b) > 0 {
		m.store.read(b, off)
	}
}

func (m *Memory) clip(off int64, b []byte) (int64, []byte) {
	if off < 0 || off >= m.Size() {
		return 0, nil
	}
	return off, b[:min(int64(len(b)), m.Size()-off)]
}

func (s *memoryStore) do(op *Op) error {
	off := op.Offset
	for _, b := range op.Bufs {
		if op.Kind == Read {
			s.read(b, off)
		} else {
			s.write(b, off)
		}
		off += int64(len(b))
	}
	return nil
}

func (s *memoryStore) read(b []byte, off int64) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for len(b) > 0 {
		within := off % memoryChunk
		n := min(int64(len(b)), memoryChunk-within)
		if c := s.chunks[off/memoryChunk]; c != nil {
			copy(b[:n], c.bytes[within:])
		} else {
			clear(b[:n])
		}
		b, off = b[n:], off+n
	}
}

func (s *memoryStore) write(b []byte, off int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(b) > 0 {
		within := off % memoryChunk
		n := min(int64(len(b)), memoryChunk-within)
		c := s.chunks[off/memoryChunk]
		if c == nil || c.shared.Load() {
			own := &memoryBytes{bytes: make([]byte, memoryChunk)}
			if c != nil {
				copy(own.bytes, c.bytes)
			}
			c, s.chunks[off/memoryChunk] = own, own
		}
		copy(c.bytes[within:], b[:n])
		b, off = b[n:], off+n
	}
}

func (s *memoryStore) grow(c *core, size int64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := c.enter(1); err != nil {
		return err
	}
	defer c.exit(1)
	if err := c.checkGrow(size); err != nil {
		return err
	}
	c.size.Store(size)
	return nil
}

func (s *memoryStore) close() error { return nil }
