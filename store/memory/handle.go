package memory

import (
	"github.com/skepkv/skep/store/internal/locks"
	"time"
)

// Handle pins a cached entry for one holder, until Release or, under memory
// pressure, until its deadline. It is safe for concurrent use.
type Handle struct {
	cache    *Cache
	entry    *entry
	deadline time.Time
	spill    []byte
	at       int // index in entry.handles, −1 when no longer there; guarded by cache.mu

	mu      locks.Mutex[locks.MemoryHandle] // taken after cache.mu, held for no longer than a copy
	state   handleState
	readers int // calls inside Read
	pinning bool
}

type handleState uint8

const (
	live     handleState = iota
	spilled              // the bytes are in spill
	revoked              // the bytes are gone
	released             // by the holder
)

// ID returns what the handle was got for.
func (h *Handle) ID() ID { return h.entry.id }

// Len returns the entry's length in bytes.
func (h *Handle) Len() int64 { return h.entry.length }

// Where returns the entry's Item.Where.
func (h *Handle) Where() uint64 { return h.entry.where }

// Deadline returns the time after which the memory may be taken back.
func (h *Handle) Deadline() time.Time { return h.deadline }

// Read calls fn with the entry's bytes, in order, Len bytes in all; fn must not
// write to them nor keep them. The memory stays in place until fn returns,
// whatever the deadline, and so fn should be a copy, a checksum or a send with a
// deadline of its own. Reads may run side by side.
//
// It returns fn's error, ErrRevoked when the memory was taken back, or
// ErrReleased.
func (h *Handle) Read(fn func(bufs [][]byte) error) error {
	h.mu.Lock()
	switch h.state {
	case spilled:
		h.mu.Unlock()
		return fn([][]byte{h.spill[:h.entry.length]})
	case revoked:
		h.mu.Unlock()
		return ErrRevoked
	case released:
		h.mu.Unlock()
		return ErrReleased
	}
	h.readers++
	h.mu.Unlock()
	defer h.leave()
	return fn(h.entry.views)
}

func (h *Handle) leave() {
	h.mu.Lock()
	h.readers--
	unpin := h.unpinLocked()
	h.mu.Unlock()
	if unpin {
		h.cache.unpin(h)
		return
	}
	h.cache.arena.kick() // past its deadline, the handle may be revoked now
}

// unpinLocked reports, once, that the pin is to be given up.
func (h *Handle) unpinLocked() bool {
	if !h.pinning || h.readers > 0 || h.state != released {
		return false
	}
	h.pinning = false
	return true
}

// Share returns the entry's buffers with a reference added to each, for transfers
// that outlive a callback (registered buffers, a NIC, a GPU). The caller must not
// write to them, and releases each one; until then the entry is neither evicted
// nor revoked. The last buffers may be longer than the entry. It returns
// ErrRevoked, also when the bytes were spilled, or ErrReleased.
func (h *Handle) Share() ([]*Buffer, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch h.state {
	case spilled, revoked:
		return nil, ErrRevoked
	case released:
		return nil, ErrReleased
	}
	bufs := make([]*Buffer, len(h.entry.bufs))
	for i, b := range h.entry.bufs {
		// The pin holds a reference, so this cannot fail.
		if err := b.Retain(); err != nil {
			for _, shared := range bufs[:i] {
				shared.Release()
			}
			return nil, err
		}
		bufs[i] = b
	}
	return bufs, nil
}

// Release gives up the pin; a Read in progress keeps it until it returns. The
// spill memory is the caller's again. A second Release is counted and ignored
// (with the tag invariants it panics).
func (h *Handle) Release() {
	h.mu.Lock()
	if h.state == released {
		h.mu.Unlock()
		h.cache.arena.misuse("Release of a released handle")
		return
	}
	h.state = released
	unpin := h.unpinLocked()
	h.mu.Unlock()
	if unpin {
		h.cache.unpin(h)
	}
}

// revoke ends all pins of e, or none when one of its holders is inside Read or
// shares the buffers. A holder that brought spill memory keeps the bytes there.
// It returns how many holders lost their bytes and how many had them moved.
//
// REQUIRES: cache.mu, and every handle expired.
func (e *entry) revoke() (lost, moved int64, ok bool) {
	ok = true
	for _, h := range e.handles {
		h.mu.Lock()
		ok = ok && h.readers == 0
	}
	// With every handle locked, nobody can start to Share.
	if !ok || !e.idle() {
		for _, h := range e.handles {
			h.mu.Unlock()
		}
		return 0, 0, false
	}
	for _, h := range e.handles {
		h.at = -1
		h.pinning = false
		switch {
		case h.state != live: // released a moment ago
		case int64(len(h.spill)) >= e.length:
			rest := h.spill
			for _, v := range e.views {
				rest = rest[copy(rest, v):]
			}
			h.state = spilled
			moved++
		default:
			h.state = revoked
			lost++
		}
		h.mu.Unlock()
	}
	e.handles = nil
	return lost, moved, true
}
