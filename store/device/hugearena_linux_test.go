package device_test

import (
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// hugeArena returns n bytes off the Go heap, 2 MiB-aligned and in huge pages
// where the system has them: contiguity decides the speed of large reads.
func hugeArena(b *testing.B, n int) ([]byte, func()) {
	const huge = 2 << 20
	m, err := unix.Mmap(-1, 0, n+2*huge, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		b.Fatal(err)
	}
	skip := int(-uintptr(unsafe.Pointer(&m[0])) & (huge - 1))
	a := m[skip : skip+(n+huge-1)&^(huge-1)]
	_ = unix.Madvise(a, unix.MADV_HUGEPAGE)
	for i := 0; i < len(a); i += 4096 {
		a[i] = 1
	}
	return a[:n:n], func() { _ = unix.Munmap(m) }
}
