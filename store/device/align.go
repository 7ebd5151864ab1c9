package device

import "unsafe"

// AlignedBuffer returns n zero bytes of Go memory whose address is a multiple of
// Align. n need not be a multiple; Op.Bufs demands that it is.
func AlignedBuffer(n int) []byte {
	if n <= 0 {
		return nil
	}
	b := make([]byte, n+Align-1)
	skip := -int(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) & (Align - 1)
	return b[skip : skip+n : skip+n]
}

// IsAligned reports whether b can be one of Op.Bufs: address and length are
// multiples of Align, and it is not empty.
func IsAligned(b []byte) bool {
	return len(b) > 0 && len(b)%Align == 0 &&
		uintptr(unsafe.Pointer(unsafe.SliceData(b)))%Align == 0
}

func aligned(n int64) bool { return n&(Align-1) == 0 }

// skipBytes returns what is left of bufs after the first n bytes, without changing
// bufs.
func skipBytes(bufs [][]byte, n int) [][]byte {
	for len(bufs) > 0 && n >= len(bufs[0]) {
		n -= len(bufs[0])
		bufs = bufs[1:]
	}
	if n == 0 {
		return bufs
	}
	rest := append([][]byte(nil), bufs...)
	rest[0] = rest[0][n:]
	return rest
}

// AlignedAddress reports whether b begins at a multiple of a page.
func AlignedAddress(b []byte) bool { return uintptr(unsafe.Pointer(unsafe.SliceData(b)))%Align == 0 }
