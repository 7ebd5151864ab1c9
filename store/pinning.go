package store

import (
	"errors"

	"github.com/skepkv/skep/store/internal/locks"

	"github.com/skepkv/skep/store/device"
	"github.com/skepkv/skep/store/internal/space"
	"github.com/skepkv/skep/store/memory"
)

// pinning registers the arena with the drives, part by part as it is used: what is registered is resident, and
// a store that has read little keeps little.
type pinning struct {
	taken chan []byte // parts of the arena, in the order of their first use; has room for all

	mu    locks.Mutex[locks.Pinning]
	parts [][]byte // registered, or tried
	bytes int64    // of them, where a drive took them
}

// newArena makes the arena, which tells of its parts.
func (s *Store) newArena(o memory.Options) (err error) {
	// Called before the first buffer, the channel is made in time.
	o.Taken = func(part []byte) { s.pinned.taken <- part }
	if s.arena, err = memory.New(o); err == nil {
		s.pinned.taken = make(chan []byte, s.arena.Parts())
		s.background.Go(s.pinParts)
	}
	return err
}

// pinParts registers parts as they are used, until the store closes.
func (s *Store) pinParts() {
	for {
		select {
		case <-s.ctx.Done():
			return
		case part := <-s.pinned.taken:
			s.pinned.mu.Lock()
			s.pinned.parts = append(s.pinned.parts, part)
			s.pinned.mu.Unlock()
			for _, d := range s.members.All() {
				s.pinFor(d)
			}
		}
	}
}

// pinFor registers with d what it lacks. Reads into what is not registered work, at the cost of some CPU.
func (s *Store) pinFor(d *space.Drive) {
	if d == nil || d.Removed.Load() {
		return
	}
	p := &s.pinned
	p.mu.Lock()
	defer p.mu.Unlock()
	for ; d.Pinned < len(p.parts); d.Pinned++ {
		err := device.RegisterArena(d.Dev, p.parts[d.Pinned])
		switch {
		case err == nil:
			p.bytes = max(p.bytes, lengths(p.parts[:d.Pinned+1]))
		case s.ctx.Err() != nil:
			return
		default:
			if !errors.Is(err, errors.ErrUnsupported) {
				s.log.Warn("memory not registered with the device; reads cost more CPU", "device", d.Path, "error", err)
			}
			d.Pinned = s.arena.Parts() // what was refused once is not tried again
			return
		}
	}
}

// idle is what is registered of the arena beyond what is in use.
func (p *pinning) idle(used int64) int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return max(0, p.bytes-used)
}

func lengths(parts [][]byte) (n int64) {
	for _, p := range parts {
		n += int64(len(p))
	}
	return n
}
