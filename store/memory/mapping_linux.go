package memory

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// mapMemory maps size bytes, a multiple of PageSize, at a 2 MiB boundary. The
// kernel gives page alignment only, so it maps 2 MiB more and returns the excess
// at both ends. hugePages reports whether the kernel accepted the advice;
// refusing it costs speed and is not an error.
func mapMemory(size int, wantHuge bool) (mem []byte, hugePages bool, unmap func() error, err error) {
	whole, err := unix.MmapPtr(-1, 0, nil, uintptr(size+hugePage),
		unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return nil, false, nil, fmt.Errorf("memory: map %d bytes: %w", size+hugePage, err)
	}
	head := int(-uintptr(whole) & (hugePage - 1))
	start := unsafe.Add(whole, head)
	// A failure to trim wastes address space and nothing else.
	if head > 0 {
		_ = unix.MunmapPtr(whole, uintptr(head))
	}
	if tail := hugePage - head; tail > 0 {
		_ = unix.MunmapPtr(unsafe.Add(start, size), uintptr(tail))
	}
	mem = unsafe.Slice((*byte)(start), size)
	if wantHuge {
		hugePages = unix.Madvise(mem, unix.MADV_HUGEPAGE) == nil
	}
	// Gigabytes of users' tensors have no business in a core dump.
	_ = unix.Madvise(mem, unix.MADV_DONTDUMP)
	return mem, hugePages, func() error { return unix.MunmapPtr(start, uintptr(size)) }, nil
}
