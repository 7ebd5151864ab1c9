// Package heap lends memory of this process, which begins at pages, up to a limit.
package heap

import (
	"sync/atomic"
	"unsafe"

	"github.com/skepkv/skep"
)

const page = 4096

// Pool is what may be lent at a time.
type Pool struct {
	Limit int64 // bytes
	used  atomic.Int64
}

// Used is the bytes that are lent.
func (p *Pool) Used() int64 { return p.used.Load() }

// Alloc lends n bytes, 1 or more.
//
// Errors: NoMemory.
func (p *Pool) Alloc(op string, n int64) (skep.Memory, error) {
	if n <= p.Limit {
		if p.used.Add(n) <= p.Limit {
			return &memory{p, Aligned(n)}, nil
		}
		p.used.Add(-n)
	}
	return nil, &skep.Error{Op: op, Kind: skep.NoMemory, Field: "bytes", Value: n, Limit: p.Limit}
}

// Aligned is n bytes that begin at a page.
func Aligned(n int64) []byte {
	b := make([]byte, n+page-1)
	skip := int64(-uintptr(unsafe.Pointer(unsafe.SliceData(b))) & (page - 1))
	return b[skip : skip+n : skip+n]
}

type memory struct {
	of *Pool
	b  []byte
}

func (m *memory) Bytes() []byte { return m.b }

func (m *memory) Release() {
	if m.b != nil {
		m.of.used.Add(-int64(len(m.b)))
		m.b = nil
	}
}
