package memory

import (
	"sync/atomic"
	"unsafe"
)

// Buffer is a handle on a run of arena memory. It starts with one reference,
// owned by whoever allocated it. Its methods are safe for concurrent use; its
// bytes are as safe as the users' agreement on who writes.
type Buffer struct {
	arena *Arena
	mem   []byte // len: what was asked for; cap: what is charged
	page  int    // first page in the mapping
	pages int

	// state is loans<<32 | references. The memory is free once it is 0, and a
	// state of 0 is final: handles are not recycled, so a stale one can do no
	// harm to the memory's next user.
	state atomic.Uint64

	budget Budget // guarded by arena.mu
	owner  *entry // the cache entry that holds it; guarded by that cache's mu
}

const (
	oneRef  = 1
	oneLoan = 1 << 32
)

func refs(state uint64) uint32  { return uint32(state) }
func loans(state uint64) uint32 { return uint32(state >> 32) }

// Bytes returns the buffer's memory, Len bytes long and not zeroed. It is valid
// while the caller holds a reference. Once all references are released it
// returns nil.
func (b *Buffer) Bytes() []byte {
	if refs(b.state.Load()) == 0 {
		b.arena.misuse("Bytes of a released buffer")
		return nil
	}
	return b.mem[:len(b.mem):len(b.mem)]
}

// Padded returns the buffer's memory up to the end of its last 4 KiB page, for
// direct I/O, whose lengths must be aligned. Otherwise it is like Bytes.
func (b *Buffer) Padded() []byte {
	if refs(b.state.Load()) == 0 {
		b.arena.misuse("Padded of a released buffer")
		return nil
	}
	return b.mem[:cap(b.mem)]
}

// Len returns the bytes that were asked for.
func (b *Buffer) Len() int { return len(b.mem) }

// Charged returns the bytes charged to the budget: Len rounded up to PageSize.
func (b *Buffer) Charged() int { return cap(b.mem) }

// Offset returns where the buffer starts in Arena.Bytes.
func (b *Buffer) Offset() int64 { return int64(b.page) * PageSize }

// Budget returns what the buffer is charged to.
func (b *Buffer) Budget() Budget {
	b.arena.mu.Lock()
	defer b.arena.mu.Unlock()
	return b.budget
}

// Retain adds a reference, to be given up with Release. It returns ErrReleased
// when there is none left to share.
func (b *Buffer) Retain() error { return b.acquire(oneRef, "Retain of a released buffer") }

// Lend records that a device may write to or read from the buffer until Return,
// whatever its references do meanwhile. Call it before submitting. It returns
// ErrReleased when no reference is left.
func (b *Buffer) Lend() error { return b.acquire(oneLoan, "Lend of a released buffer") }

func (b *Buffer) acquire(what uint64, misuse string) error {
	for {
		s := b.state.Load()
		if refs(s) == 0 {
			b.arena.misuse(misuse)
			return ErrReleased
		}
		if b.state.CompareAndSwap(s, s+what) {
			if what == oneLoan && loans(s) == 0 {
				b.arena.lent.Add(1)
			}
			return nil
		}
	}
}

// Release gives up one reference. With the last one the memory becomes free, or,
// while it is lent, quarantined. A Release too many is counted and ignored (with
// the tag invariants it panics).
func (b *Buffer) Release() {
	for {
		s := b.state.Load()
		if refs(s) == 0 {
			b.arena.misuse("Release of a released buffer")
			return
		}
		if b.state.CompareAndSwap(s, s-oneRef) {
			b.left(s, s-oneRef)
			return
		}
	}
}

// Return ends one loan: the device's completion has arrived. A Return too many
// is treated like a Release too many.
func (b *Buffer) Return() {
	for {
		s := b.state.Load()
		if loans(s) == 0 {
			b.arena.misuse("Return of a buffer that is not lent")
			return
		}
		if b.state.CompareAndSwap(s, s-oneLoan) {
			b.left(s, s-oneLoan)
			return
		}
	}
}

// left does what follows from a step down. The compare-and-swap lets exactly one
// caller see each edge.
func (b *Buffer) left(was, now uint64) {
	a := b.arena
	if loans(was) > 0 && loans(now) == 0 {
		a.lent.Add(-1)
		if refs(now) == 0 {
			a.quarantined.Add(-1)
		}
	}
	if refs(was) > 0 && refs(now) == 0 && loans(now) > 0 {
		a.quarantined.Add(1)
	}
	if now == 0 {
		a.free(b)
		return
	}
	a.kick() // fewer users may make the buffer's cache entry evictable
}

// idle reports whether the cache's own reference is the only use of the buffer.
func (b *Buffer) idle() bool { return b.state.Load() == oneRef }

// TransferToCache moves the charge from BudgetIO to BudgetCache without moving
// the bytes; a buffer charged there already stays as it is. It returns a
// NoMemoryError when the cache budget has no room (Cache.Put makes room first),
// or ErrReleased. References and loans are not affected.
func (b *Buffer) TransferToCache() error {
	one := [1]*Buffer{b}
	return b.arena.transfer(one[:], nil)
}

const poison = 0xdb

// fillPoison and checkPoison find writes to freed memory, in builds with the tag
// invariants. A page that was never handed out is all zero, one that was is all
// poison.
func fillPoison(mem []byte) {
	for i := range mem {
		mem[i] = poison
	}
}

func checkPoison(mem []byte) {
	for ; len(mem) > 0; mem = mem[PageSize:] {
		first := mem[0]
		for _, c := range mem[:PageSize] {
			if c != first || first != 0 && first != poison {
				panic("memory: free memory was written to")
			}
		}
	}
}

func address(b []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(b))) }
