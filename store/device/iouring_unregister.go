//go:build iouring && linux

package device

import (
	"runtime"
	"unsafe"

	"github.com/pawelgaczynski/giouring"
	"golang.org/x/sys/unix"
)

// UnregisterArena gives the places of mem in the kernel's table back.
func (r *ring) UnregisterArena(mem []byte) {
	if len(mem) == 0 || r.enter(1) != nil {
		return // closed: the exit of the ring gave everything back
	}
	defer r.exit(1)
	base := uintptr(unsafe.Pointer(unsafe.SliceData(mem)))
	end := base + uintptr(len(mem))
	r.mu.Lock()
	defer r.mu.Unlock()
	keep := r.mu.regions[:0]
	for _, g := range r.mu.regions {
		if g.base < base || g.end > end {
			keep = append(keep, g)
			continue
		}
		iov := &unix.Iovec{} // an empty place
		up := giouring.RsrcUpdate2{Offset: uint32(g.index), Nr: 1, Data: uint64(uintptr(unsafe.Pointer(iov)))}
		err := r.register(giouring.RegisterBuffersUpdate, unsafe.Pointer(&up), uint32(unsafe.Sizeof(up)))
		runtime.KeepAlive(iov)
		if err == nil {
			r.mu.spare = append(r.mu.spare, uint32(g.index))
		}
	}
	clear(r.mu.regions[len(keep):])
	r.mu.regions = keep
}
