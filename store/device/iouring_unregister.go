//go:build iouring && linux

package device

import "unsafe"

// UnregisterArena gives the places of mem in the kernel's table back.
func (r *ring) UnregisterArena(mem []byte) {
	if len(mem) == 0 || r.enter(1) != nil {
		return // closed: the exit of the ring gave everything back
	}
	defer r.exit(1)
	base := uintptr(unsafe.Pointer(unsafe.SliceData(mem)))
	end := base + uintptr(len(mem))
	// First nobody may name them any more. What is under way keeps its pages pinned until it ends.
	r.mu.Lock()
	var gone []region
	keep := r.mu.regions[:0]
	for _, g := range r.mu.regions {
		if g.base < base || g.end > end {
			keep = append(keep, g)
		} else {
			gone = append(gone, g)
		}
	}
	clear(r.mu.regions[len(keep):])
	r.mu.regions = keep
	r.mu.Unlock()
	for _, g := range gone {
		if r.putPlace(uint32(g.index), nil) == nil {
			r.mu.Lock()
			r.mu.spare = append(r.mu.spare, uint32(g.index))
			r.mu.Unlock()
		}
	}
}
