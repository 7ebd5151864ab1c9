package sparse

import "unsafe"

// addressOf is where a slice's bytes begin, for alignment only.
func addressOf(b []byte) int64 { return int64(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) }
