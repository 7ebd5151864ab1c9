package wire

import (
	"math/bits"
	"sync"

	"github.com/skepkv/skep/wire/heap"
)

// buffers keeps memory that chunks were lent in, by size rounded up to a power of two.
var buffers bufferPool

type bufferPool struct{ pools [64]sync.Pool }

// get gives n bytes; nil when n is 0.
func (b *bufferPool) get(n int64) []byte {
	if n <= 0 {
		return []byte{}
	}
	class := bits.Len64(uint64(n - 1))
	if p, ok := b.pools[class].Get().(*[]byte); ok {
		return (*p)[:n]
	}
	return heap.Aligned(1 << class)[:n]
}

// put takes memory of get back.
func (b *bufferPool) put(p []byte) {
	if cap(p) == 0 {
		return
	}
	p = p[:cap(p)]
	if class := bits.Len64(uint64(len(p) - 1)); 1<<class == len(p) {
		b.pools[class].Put(&p)
	}
}
