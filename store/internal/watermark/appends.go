package watermark

import (
	"sync/atomic"

	"github.com/skepkv/skep/store/internal/locks"
)

// appends knows which appends are under way, so that a flush knows up to which sequence number
// everything is on the drives.
type appends struct {
	mu        locks.Mutex[locks.Marks]
	underway  map[uint64]struct{}
	unflushed int64
}

// Begin gives an append its number and marks it as under way, in one step.
func (r *Root) Begin() uint64 {
	a := &r.appends
	a.mu.Lock()
	defer a.mu.Unlock()
	seq := r.seq.Add(1)
	a.underway[seq] = struct{}{}
	return seq
}

// End says that an append has written so many bytes, all it will.
func (r *Root) End(seq uint64, bytes int64) {
	a := &r.appends
	a.mu.Lock()
	delete(a.underway, seq)
	a.unflushed += bytes
	a.mu.Unlock()
}

// Unflushed is how many bytes were written since the watermark was last advanced.
func (r *Root) Unflushed() int64 {
	a := &r.appends
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.unflushed
}

// Owe has the watermark advanced although nothing was written: it is to pass what was verified.
func (r *Root) Owe() {
	a := &r.appends
	a.mu.Lock()
	a.unflushed++
	a.mu.Unlock()
}

// begun is the last number given out, and how many bytes are unflushed.
func (a *appends) begun(seq *atomic.Uint64) (top uint64, bytes int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return seq.Load(), a.unflushed
}

// low is the highest sequence number such that no append at or below it is under
// way, given that none above top has begun.
func (a *appends) low(top uint64) uint64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	for seq := range a.underway {
		if seq <= top {
			top = seq - 1
		}
	}
	return top
}

// flushed takes bytes off what is unflushed.
func (a *appends) flushed(bytes int64) {
	a.mu.Lock()
	a.unflushed -= bytes
	a.mu.Unlock()
}
