//go:build !linux

package memory

import "unsafe"

// mapMemory takes aligned memory from the Go heap. Go does not move heap
// objects, so the alignment holds, and dropping the slice is the release.
func mapMemory(size int, _ bool) (mem []byte, hugePages bool, unmap func() error, err error) {
	whole := make([]byte, size+hugePage)
	head := int(-uintptr(unsafe.Pointer(&whole[0])) & (hugePage - 1))
	return whole[head : head+size : head+size], false, func() error { return nil }, nil
}
