package index

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

const hugePage = 2 << 20

// mapMemory maps size bytes of zeroed anonymous memory, a multiple of 2 MiB, aligned
// so that huge pages can back it: a lookup is a handful of random reads, and with
// 4 KiB pages each would miss the TLB as well. raw is what to give to unmapMemory.
func mapMemory(size int) (raw, aligned []byte, err error) {
	raw, err = unix.Mmap(-1, 0, size+hugePage, unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_ANON|unix.MAP_PRIVATE|unix.MAP_NORESERVE)
	if err != nil {
		return nil, nil, fmt.Errorf("map %d bytes for the index: %w", size, err)
	}
	skip := 0
	if rest := int(uintptr(unsafe.Pointer(unsafe.SliceData(raw))) % hugePage); rest != 0 {
		skip = hugePage - rest
	}
	aligned = raw[skip : skip+size]
	_ = unix.Madvise(aligned, unix.MADV_HUGEPAGE) // a kernel without huge pages is slower, not wrong
	return raw, aligned, nil
}

func unmapMemory(raw []byte) { _ = unix.Munmap(raw) }
