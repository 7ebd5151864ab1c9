package restore

import (
	"runtime/debug"
	"syscall"
	"unsafe"

	"github.com/skepkv/skep"
)

// A destination may be a mapped file that somebody cuts short (a client's: package wire). The kernel says EFAULT
// where a drive is to write there. Where this process touches such a page it would end, so each place that reads or
// writes destinations does so by touch.

// errGone is what becomes of a chunk whose destination is not there: it says nothing of the block, or of a drive.
var errGone = &skep.Error{Op: "restore", Kind: skep.Invalid, Field: "destination",
	Value: "memory that is not there any more",
	Limit: "mapped, in a file that is not cut short", Err: syscall.EFAULT}

// touch runs f, which reads or writes ch's destination and holds no lock that it would not give back.
func (ch *chunk) touch(f func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		r := recover()
		if r == nil {
			return
		}
		if at, ok := r.(interface{ Addr() uintptr }); !ok || !ch.landsAt(at.Addr()) {
			panic(r)
		}
		err = errGone
	}()
	return f()
}

// landsAt says whether an address is of ch's destination.
func (ch *chunk) landsAt(at uintptr) bool {
	within := func(p []byte) bool {
		first := uintptr(unsafe.Pointer(unsafe.SliceData(p)))
		return at >= first && at-first < uintptr(len(p))
	}
	d := &ch.chain.Dest
	if d.Paged != nil {
		for i := range d.Paged.Planes {
			if within(d.Paged.Planes[i][0]) || within(d.Paged.Planes[i][1]) {
				return true
			}
		}
	}
	return within(d.Memory)
}
