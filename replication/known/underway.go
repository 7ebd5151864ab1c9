package known

import (
	"context"
	"sync"

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

// Open notes that a block's writer is open, until it is committed or aborted. Who goes on with the block need not wait.
func (m *Memory) Open(sc skep.Scope, k skep.Key, w skep.BlockWriter) skep.BlockWriter {
	x := m.key(sc, k)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.open[x]++
	return &writer{w, sync.OnceFunc(func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		if m.open[x]--; m.open[x] == 0 {
			delete(m.open, x)
		}
	})}
}

type writer struct {
	skep.BlockWriter
	closed func()
}

func (w *writer) Commit(ctx context.Context, ack skep.Ack) (skep.PutResult, error) {
	defer w.closed()
	return w.BlockWriter.Commit(ctx, ack)
}

func (w *writer) Abort(ctx context.Context) error {
	defer w.closed()
	return w.BlockWriter.Abort(ctx)
}

// IsOpen says whether a writer of a block is open.
func (m *Memory) IsOpen(sc skep.Scope, k skep.Key) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.open[m.key(sc, k)] > 0
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
