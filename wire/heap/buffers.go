package heap

import (
	"math/bits"
	"sync"
)

// Buffers keeps memory that is used again, by size rounded up to a power of two.
type Buffers struct{ pools [64]sync.Pool }

// Get gives n bytes; nil when n is 0.
func (b *Buffers) Get(n int64) []byte {
	if n <= 0 {
		return []byte{}
	}
	class := bits.Len64(uint64(n - 1))
	if p, ok := b.pools[class].Get().(*[]byte); ok {
		return (*p)[:n]
	}
	return Aligned(1 << class)[:n]
}

// Put takes memory of Get back.
func (b *Buffers) Put(p []byte) {
	if cap(p) == 0 {
		return
	}
	p = p[:cap(p)]
	if class := bits.Len64(uint64(len(p) - 1)); 1<<class == len(p) {
		b.pools[class].Put(&p)
	}
}
