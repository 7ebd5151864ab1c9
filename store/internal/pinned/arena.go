package pinned

import (
	"context"
	"errors"
	"log/slog"

	"github.com/skepkv/skep/store/device"
	"github.com/skepkv/skep/store/internal/locks"
	"github.com/skepkv/skep/store/internal/members"
	"github.com/skepkv/skep/store/internal/space"
	"github.com/skepkv/skep/store/memory"
)

// Arena is an arena that tells drives of its parts. It is safe for any number of goroutines. Make it with New, and
// then Run.
type Arena struct {
	*memory.Arena
	drives *members.Set
	log    *slog.Logger
	taken  chan []byte // parts of the arena, in the order of their first use; has room for all

	mu    locks.Mutex[locks.Pinning]
	parts [][]byte // registered, or tried
	bytes int64    // of them, where a drive took them
}

// New makes an arena.
func New(o memory.Options, drives *members.Set, log *slog.Logger) (*Arena, error) {
	a := &Arena{drives: drives, log: log}
	// Called before the first buffer, the channel is made in time.
	o.Taken = func(part []byte) { a.taken <- part }
	var err error
	if a.Arena, err = memory.New(o); err != nil {
		return nil, err
	}
	a.taken = make(chan []byte, a.Parts())
	return a, nil
}

// Run registers parts as they are used, until ctx ends.
func (a *Arena) Run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case part := <-a.taken:
			a.mu.Lock()
			a.parts = append(a.parts, part)
			a.mu.Unlock()
			for _, d := range a.drives.All() {
				a.Register(ctx, d)
			}
		}
	}
}

// Register registers with d what it lacks. ctx ends with the store.
func (a *Arena) Register(ctx context.Context, d *space.Drive) {
	if d == nil || d.Removed.Load() {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for ; d.Pinned < len(a.parts); d.Pinned++ {
		err := device.RegisterArena(d.Dev, a.parts[d.Pinned])
		switch {
		case err == nil:
			a.bytes = max(a.bytes, lengths(a.parts[:d.Pinned+1]))
		case ctx.Err() != nil:
			return
		default:
			if !errors.Is(err, errors.ErrUnsupported) {
				a.log.Warn("memory not registered with the device; reads cost more CPU", "device", d.Path, "error", err)
			}
			d.Pinned = a.Parts() // what was refused once is not tried again
			return
		}
	}
}

// Idle is what is registered of the arena beyond what is in use.
func (a *Arena) Idle(used int64) int64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	return max(0, a.bytes-used)
}

func lengths(parts [][]byte) (n int64) {
	for _, p := range parts {
		n += int64(len(p))
	}
	return n
}
