package wire

import (
	"math/bits"
	"sync"

	"github.com/zeebo/xxh3"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/wire/frames"
	"github.com/skepkv/skep/wire/link"
)

// verifier compares bytes that come in order with the checksums that cover them.
type verifier struct {
	sums []frames.Sum
	s    *link.Summer
	at   int    // the sum that covers the next byte
	done uint64 // bytes of it that were given to s
	bad  int    // number of sums that did not match, or do not fit
}

func (v *verifier) write(p []byte) {
	for len(p) > 0 {
		if v.at >= len(v.sums) {
			v.bad++
			return
		}
		c := &v.sums[v.at]
		n := min(c.Len-v.done, uint64(len(p)))
		switch {
		case v.done == 0 && n == c.Len && c.Kind == frames.SumXXH3:
			v.judge(xxh3.HashSeed(p[:n], c.Seed) == c.Check)
		default:
			if v.done == 0 {
				v.s.Reset(c.Kind, c.Seed)
			}
			v.s.Write(p[:n])
			if v.done += n; v.done == c.Len {
				v.judge(v.s.Sum() == c.Check && link.KnownSum(c.Kind) == nil)
			}
		}
		p = p[n:]
	}
}

func (v *verifier) judge(ok bool) {
	if !ok {
		v.bad++
	}
	v.at, v.done = v.at+1, 0
}

// end says whether everything matched and nothing was left uncovered.
func (v *verifier) end() error {
	for v.at < len(v.sums) && v.sums[v.at].Len == 0 {
		v.at++
	}
	if v.bad > 0 || v.at != len(v.sums) || v.done != 0 {
		return &skep.Error{Op: opRestore, Kind: skep.Damaged, Field: "checksum on arrival", Value: v.bad, Limit: 0}
	}
	return nil
}

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
	return aligned(1 << class)[:n]
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
