package bench

import "golang.org/x/sys/unix"

// directFlag opens a file past the page cache.
const directFlag = unix.O_DIRECT

// wantHuge asks for huge pages; memory is slower without them, nothing worse.
func wantHuge(m []byte) { _ = unix.Madvise(m, unix.MADV_HUGEPAGE) }
