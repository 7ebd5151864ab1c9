package index

import "unsafe"

// chunkLen is how many elements of an arena are mapped together. For every element
// size that is a multiple of four bytes a chunk is a whole number of 2 MiB pages;
// untouched parts of it take no memory.
const (
	chunkShift = 21
	chunkLen   = 1 << chunkShift
	chunkMask  = chunkLen - 1
)

// arena is an array that grows by chunks and never moves. T must hold no pointers:
// the memory is not the garbage collector's.
type arena[T any] struct {
	chunks [][]T
	maps   [][]byte // what to unmap, empty when the chunks are on the heap
	heap   bool     // use the Go heap: what the race detector can see
}

func (a *arena[T]) at(i uint32) *T { return &a.chunks[i>>chunkShift][i&chunkMask] }

// grow makes index i addressable.
func (a *arena[T]) grow(i uint32) error {
	for int(i>>chunkShift) >= len(a.chunks) {
		if a.heap {
			a.chunks = append(a.chunks, make([]T, chunkLen))
			continue
		}
		var zero T
		raw, aligned, err := mapMemory(chunkLen * int(unsafe.Sizeof(zero)))
		if err != nil {
			return err
		}
		a.maps = append(a.maps, raw)
		a.chunks = append(a.chunks, unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(aligned))), chunkLen))
	}
	return nil
}

func (a *arena[T]) free() {
	for _, m := range a.maps {
		unmapMemory(m)
	}
	a.chunks, a.maps = nil, nil
}

// bytes is the memory of the first n elements, in whole 2 MiB pages.
func (a *arena[T]) bytes(n uint32) int64 {
	var zero T
	const huge = 2 << 20
	return (int64(n)*int64(unsafe.Sizeof(zero)) + huge - 1) / huge * huge
}
