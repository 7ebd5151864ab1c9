//go:build !linux

package index

import "unsafe"

// mapMemory takes the memory from the Go heap, as pointer-free words.
func mapMemory(size int) (raw, aligned []byte, err error) {
	words := make([]uint64, size/8)
	b := unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(words))), size)
	return b, b, nil
}

func unmapMemory([]byte) {}
