package known

import (
	"context"

	"github.com/skepkv/skep"
)

// Begin notes that blocks are being put, until end is called; of several that put one, the first is known. turn says
// which puts were begun before this one.
func (m *Memory) Begin(sc skep.Scope, blocks []skep.Block) (turn uint64, end func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.turn++
	p := &put{turn: m.turn, done: make(chan struct{})}
	var mine []block
	for i := range blocks {
		if x := m.key(sc, blocks[i].Key); m.puts[x] == nil {
			m.puts[x] = p
			mine = append(mine, x)
		}
	}
	return p.turn, func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		for _, x := range mine {
			delete(m.puts, x)
		}
		close(p.done)
	}
}

// put is one that is under way.
type put struct {
	turn uint64
	done chan struct{}
}

// Await waits while a block is being put by a put that was begun before this turn, so that no two wait for each other.
// False: none is.
func (m *Memory) Await(ctx context.Context, sc skep.Scope, k skep.Key, before uint64) bool {
	m.mu.Lock()
	p := m.puts[m.key(sc, k)]
	m.mu.Unlock()
	if p == nil || p.turn >= before {
		return false
	}
	select {
	case <-p.done:
	case <-ctx.Done():
	}
	return true
}
