package known

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"math"
	"slices"
	"time"

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

// mostOpen is how many writers are noted before those are looked for whose time is over.
const mostOpen = 1024

// Open notes that a block's writer is open, until it is committed, aborted or over its time. Who begins one that goes
// on with the block need not wait for it.
func (m *Memory) Open(r *skep.BeginRequest, w skep.BlockWriter) skep.BlockWriter {
	x, now := m.key(r.Scope, r.Key), skep.Steady()
	until := now.Add(cmp.Or(r.Timeout, skep.DefaultPutTimeout))
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.open) >= mostOpen {
		maps.DeleteFunc(m.open, func(_ block, until time.Time) bool { return now.After(until) })
	}
	m.open[x] = until
	return &writer{w, func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		if m.open[x].Equal(until) {
			delete(m.open, x)
		}
	}}
}

type writer struct {
	skep.BlockWriter
	closed func()
}

func (w *writer) Commit(ctx context.Context, ack skep.Ack) (skep.PutResult, error) {
	out, err := w.BlockWriter.Commit(ctx, ack)
	if !errors.Is(err, skep.Invalid) { // a byte was not written: it stays open
		w.closed()
	}
	return out, err
}

func (w *writer) Abort(ctx context.Context) error {
	defer w.closed()
	return w.BlockWriter.Abort(ctx)
}

// IsOpen says whether a writer of one of some blocks is open.
func (m *Memory) IsOpen(sc skep.Scope, of []skep.Key) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := skep.Steady()
	return slices.ContainsFunc(of, func(k skep.Key) bool { return now.Before(m.open[m.key(sc, k)]) })
}

// Last is the turn of who waits for all puts: of a writer.
const Last = math.MaxUint64

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
	for range len(keys) + 1 {
		under := m.Under(sc, keys, turn)
		if ask() || !Wait(ctx, under) {
			return
		}
	}
}
