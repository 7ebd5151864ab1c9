package gpu

import (
	"slices"
	"sync"

	"github.com/skepkv/skep"
)

// pinned is host memory that a device copies directly and, where the Store behind registers it,
// drives read into directly. Restores that bring no memory of their own land in
// it; where it is full, or too small, they land in memory of the Store behind, and the device
// copies through stages of its own.
type pinned struct {
	device Pinner
	all    []byte
	forget func() // of the Store behind; nil: it knows nothing of it

	mu     sync.Mutex
	free   []span // by offset, none touching another
	used   int64
	most   int64 // of used, since it was made
	misses int64 // pieces there was no room for
	lost   bool  // the device failed, and may still write to what was in use: no more is lent
	over   bool  // closed: when the last piece is back, all of it goes back
	idle   bool  // nothing the device was told to do touches it any more
}

// span is bytes [from, to) of the memory.
type span struct{ from, to int64 }

// pinnedPage is what pieces are aligned to, for drives.
const pinnedPage = 4096

// newPinned takes n bytes of a device's pinned memory. Unsupported where it has none.
func newPinned(d Device, behind skep.Store, n int64) (*pinned, error) {
	p, ok := d.(Pinner)
	if !ok {
		return nil, &skep.Error{Op: "gpu store", Kind: skep.Unsupported, Field: "pinned memory", Value: d.Name(), Limit: "a device that has some"}
	}
	all, err := p.AllocHost(n)
	if err != nil {
		return nil, err
	}
	k := &pinned{device: p, all: all, free: []span{{0, n}}}
	// Without it drives use the memory too, with a little more CPU.
	if k.forget, err = behind.Register(all); err != nil {
		k.forget = nil
	}
	return k, nil
}

// piece is memory lent to one reader or several: back when the last has given it back.
type piece struct {
	of    *pinned
	at    span
	bytes []byte
	holds int // under of.mu
}

// take lends n bytes, held once. nil when there is no room, or no pinned memory.
func (k *pinned) take(n int64) *piece {
	if k == nil {
		return nil
	}
	size := (n + pinnedPage - 1) / pinnedPage * pinnedPage
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.over || k.lost {
		return nil
	}
	for i, f := range k.free {
		if f.to-f.from < size {
			continue
		}
		at := span{f.from, f.from + size}
		if k.free[i].from = at.to; at.to == f.to {
			k.free = slices.Delete(k.free, i, i+1)
		}
		k.used += size
		k.most = max(k.most, k.used)
		return &piece{k, at, k.all[at.from : at.from+n : at.from+n], 1}
	}
	k.misses++
	return nil
}

// hold adds a reader.
func (p *piece) hold() *piece {
	p.of.mu.Lock()
	defer p.of.mu.Unlock()
	p.holds++
	return p
}

// release says that a reader is done. Safe on nil.
func (p *piece) release() {
	if p == nil {
		return
	}
	k := p.of
	k.mu.Lock()
	p.holds--
	if p.holds == 0 {
		k.back(p.at)
	}
	end := k.over && k.idle && k.used == 0
	k.mu.Unlock()
	if end {
		_ = k.end()
	}
}

// back puts a span among the free ones. REQUIRES: k.mu.
func (k *pinned) back(at span) {
	k.used -= at.to - at.from
	i, _ := slices.BinarySearchFunc(k.free, at.from, func(f span, from int64) int { return int(f.from - from) })
	k.free = slices.Insert(k.free, i, at)
	if i+1 < len(k.free) && k.free[i].to == k.free[i+1].from {
		k.free[i].to = k.free[i+1].to
		k.free = slices.Delete(k.free, i+1, i+2)
	}
	if i > 0 && k.free[i-1].to == k.free[i].from {
		k.free[i-1].to = k.free[i].to
		k.free = slices.Delete(k.free, i, i+1)
	}
}

// lose says that the device failed with a copy under way, which may still be carried out.
func (k *pinned) lose() {
	if k == nil {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.lost = true
}

// forgotten has the Store behind forget the memory: before it is closed.
func (k *pinned) forgotten() {
	if k != nil && k.forget != nil {
		k.forget()
		k.forget = nil
	}
}

// close gives the memory back to the driver: now, or when its last reader is done. idle says
// that nothing the device was told to do touches it any more; else it stays pinned.
func (k *pinned) close(idle bool) error {
	if k == nil {
		return nil
	}
	k.mu.Lock()
	k.over, k.idle = true, idle
	now := idle && k.used == 0
	k.mu.Unlock()
	if !now {
		return nil
	}
	return k.end()
}

func (k *pinned) end() error {
	k.mu.Lock()
	all := k.all
	k.all = nil
	k.mu.Unlock()
	if all == nil {
		return nil
	}
	return k.device.Unpin(all)
}

// stats are the bytes there are, lent now, lent at most, and how often there was no room.
func (k *pinned) stats() (all, used, most, misses int64) {
	if k == nil {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	return int64(len(k.all)), k.used, k.most, k.misses
}
