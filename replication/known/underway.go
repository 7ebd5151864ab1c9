package known

import (
	"context"
	"math"

	"github.com/skepkv/skep"
)

// Begin notes that blocks are being put, until end is called; of several that put one, the first is known. turn says
// which puts were begun before this one.
func (m *Memory) Begin(sc skep.Scope, blocks []skep.Block) (turn uint64, end func()) {
	keys := make([]skep.Key, len(blocks))
	for i := range blocks {
		keys[i] = blocks[i].Key
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.turn++
	return m.turn, m.beginLocked(sc, m.turn, keys...)
}

// Last is the turn of who waits for all puts, and for the writers that are being committed: of a writer.
const Last = math.MaxUint64

// Commit notes that a writer's block is being committed, until end is called. Puts do not wait for it.
func (m *Memory) Commit(sc skep.Scope, k skep.Key) (end func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.beginLocked(sc, Last-1, k)
}

func (m *Memory) beginLocked(sc skep.Scope, turn uint64, keys ...skep.Key) (end func()) {
	p := &put{turn: turn, done: make(chan struct{})}
	var mine []block
	for _, k := range keys {
		if x := m.key(sc, k); m.puts[x] == nil {
			m.puts[x] = p
			mine = append(mine, x)
		}
	}
	return func() {
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

// Under is closed when a put of one of some blocks has ended that was begun before this turn, so that no two wait for
// each other; nil: none is under way.
func (m *Memory) Under(sc skep.Scope, of []skep.Key, before uint64) (over <-chan struct{}) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, k := range of {
		if p := m.puts[m.key(sc, k)]; p != nil && p.turn < before {
			return p.done
		}
	}
	return nil
}

// Wait waits for what Under gave. False: there was nothing to wait for, or the context has ended.
func Wait(ctx context.Context, over <-chan struct{}) bool {
	if over == nil {
		return false
	}
	select {
	case <-over:
		return true
	case <-ctx.Done():
		return false
	}
}

// Until asks, by ask, for what a block goes on with, until that says that it is over, or none of it is on its way by a
// put that was begun before a turn.
func (m *Memory) Until(ctx context.Context, sc skep.Scope, keys []skep.Key, turn uint64, ask func() (over bool)) {
	for n := 0; ; n++ {
		under := m.Under(sc, keys, turn)
		if ask() || n > len(keys) || !Wait(ctx, under) {
			return
		}
	}
}
